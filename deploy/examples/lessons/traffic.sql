-- Three learners complete six lessons each. A service would insert the row in the transaction of the completion.
INSERT INTO school.outbox (event_id, event_type, payload)
SELECT format('lesson-%s-%s', learner, lesson), 'lesson.completed',
       jsonb_build_object('event_id', format('lesson-%s-%s', learner, lesson), 'type', 'lesson.completed', 'correlation_id', 'example',
                          'occurred_at', '2026-01-02T03:04:05Z', 'user_id', learner, 'lesson_id', lesson,
                          'track_slug', 'go', 'lesson_slug', 'lesson-' || lesson)
FROM generate_series(1, 6) AS lesson, generate_series(1, 3) AS learner
ORDER BY lesson, learner;
