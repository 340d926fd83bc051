package lessons

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Achievements grants first_lesson, five_lessons and track_<slug>_master to learners who have completed
// 1, 5 and 10 lessons of a track. It is safe for concurrent use.
//
// It does not count events, it looks at what is true: the lessons in lesson_progress. So it does not
// matter how often, how late or in which batches events come, and no record in the inbox is needed. An
// achievement was earned when the lesson that reached the number was completed; handling more events can
// only bring that time forward, never back.
type Achievements struct {
	pool *postgres.Pool
	slot string
	log  *slog.Logger
}

// NewAchievements returns the subscriber "achievements", whose deliveries are those of slot.
func NewAchievements(pool *postgres.Pool, slot string, log *slog.Logger) *Achievements {
	return &Achievements{pool: pool, slot: slot, log: log}
}

// Name is "achievements".
func (*Achievements) Name() string { return "achievements" }

// Wants is true for "lesson.completed".
func (*Achievements) Wants(eventType string) bool { return wantsLessons(eventType) }

// Types is what it Wants, as data.
func (*Achievements) Types() []string { return lessonTypes() }

// Handle is HandleBatch for one event.
func (a *Achievements) Handle(ctx context.Context, delivery subscriber.Delivery) error {
	return subscriber.HandleOne(ctx, a, delivery)
}

// The event's own lesson counts even where lesson_progress does not show it yet: with a synchronous
// standby an event comes out of the WAL before its transaction is visible to others.
//
// A lesson completed after the tenth of its track changes nothing, so those are left out first: else every
// lesson of a learner would be read for each new one.
//
// ORDER BY gives all batches one order of row locks, so that they cannot deadlock; GROUP BY leaves one row
// per key, without which ON CONFLICT DO UPDATE refuses the statement (learners with two tracks in a batch
// earn first_lesson twice).
const grantAchievements = `
	WITH event AS (
		SELECT e.* FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::timestamptz[])
			AS e (user_id, track_slug, lesson_id, completed_at)
		LEFT JOIN public.user_achievements AS master
			ON master.user_id = e.user_id AND master.achievement_slug = 'track_' || e.track_slug || '_master'
		WHERE master.earned_at IS NULL OR master.earned_at > e.completed_at
	), completed AS (
		TABLE event
		UNION ALL
		SELECT user_id, track_slug, lesson_id, completed_at
		FROM public.lesson_progress
		WHERE completed AND (user_id, track_slug) IN (SELECT user_id, track_slug FROM event)
	), lesson AS (
		SELECT user_id, track_slug, min(completed_at) AS completed_at,
			row_number() OVER (PARTITION BY user_id, track_slug ORDER BY min(completed_at), lesson_id) AS nth
		FROM completed
		GROUP BY user_id, track_slug, lesson_id
	), earned AS (
		SELECT user_id, completed_at, CASE nth
			WHEN 1 THEN 'first_lesson'
			WHEN 5 THEN 'five_lessons'
			ELSE 'track_' || track_slug || '_master' END AS achievement
		FROM lesson
		WHERE nth IN (1, 5, 10)
	)
	INSERT INTO public.user_achievements AS mine (user_id, achievement_slug, earned_at)
	SELECT user_id, achievement, coalesce(min(completed_at), now())
	FROM earned
	GROUP BY user_id, achievement
	ORDER BY user_id, achievement
	ON CONFLICT (user_id, achievement_slug) DO UPDATE SET earned_at = excluded.earned_at
	WHERE excluded.earned_at < mine.earned_at`

// HandleBatch grants what the learners of the batch have earned by now, in one statement. A grant that
// fails, fails the events.
func (a *Achievements) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	lessons, failed := readLessons(deliveries)
	if len(lessons) > 0 {
		err := execute(ctx, a.pool, a.slot, deliveries[0].Term, grantAchievements,
			column(lessons, userOf),
			column(lessons, trackOf),
			column(lessons, func(l lesson) int64 { return l.LessonID }),
			column(lessons, func(l lesson) time.Time { return l.OccurredAt }))
		if err != nil {
			return fmt.Errorf("grant achievements for %d lessons: %w", len(lessons), err)
		}
		logHandled(ctx, a.log, "achievements granted", lessons)
	}
	return subscriber.FailedOf(failed)
}
