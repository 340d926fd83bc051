-- Eight thoughts: each is written, edited and liked. The change and its event are one transaction. Two events are wrong: a like
-- by no one, and a type that the domain does not have.
DO $$
BEGIN
    FOR i IN 1..8 LOOP
        INSERT INTO thoughts VALUES (i, 'author-' || i % 3, 'first words');
        INSERT INTO outbox_events (event_type, payload)
        VALUES ('thought.written', jsonb_build_object('thought_id', i, 'author', 'author-' || i % 3, 'text', 'first words'));
        COMMIT;
        UPDATE thoughts SET text = 'better words' WHERE id = i;
        INSERT INTO outbox_events (event_type, payload)
        VALUES ('thought.edited', jsonb_build_object('thought_id', i, 'text', 'better words'));
        COMMIT;
        UPDATE thoughts SET likes = likes + 1 WHERE id = i;
        INSERT INTO outbox_events (event_type, payload)
        VALUES ('thought.liked', CASE WHEN i = 3 THEN jsonb_build_object('thought_id', i) ELSE jsonb_build_object('thought_id', i, 'by', 'reader-' || i) END);
        COMMIT;
    END LOOP;
    INSERT INTO outbox_events (event_type, payload) VALUES ('thought.forgotten', '{"thought_id": "eight"}');
END $$;
