package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
)

// Effect is what a subscriber does of an event. That it is done stands in walpost.inbox, where the subscriber writes to
// this database: package subscriber records it in the transaction of the effect.
type Effect struct {
	Subscriber string
	Event      event.Identity
}

// Effects are the effects of one subscriber, by column.
type Effects struct {
	sources, ids, occurrences []string
	again                     []*time.Time
	replayed                  bool
}

// Add adds an event. An effect that is recorded from before again is done once more; a zero again asks for none.
func (e *Effects) Add(of event.Identity, again time.Time) {
	e.sources, e.ids, e.occurrences = append(e.sources, of.Source), append(e.ids, of.ID), append(e.occurrences, of.Occurrence)
	var at *time.Time
	if !again.IsZero() {
		at, e.replayed = &again, true
	}
	e.again = append(e.again, at)
}

// QueueRecordEffects queues what records effects as done, in the order of their identities; fresh gets those that were
// not recorded before, each once. A record from before the moment of an Add is removed first, and the new one is never
// older than that moment: a clock that was set back must not make a new record look like one of before.
func QueueRecordEffects(batch *pgx.Batch, slot, subscriber string, effects *Effects, fresh func([]event.Identity)) {
	if effects.replayed {
		// Locked in the order in which they are recorded.
		batch.Queue(`
			DELETE FROM walpost.inbox WHERE (slot, subscriber, event_id, source, occurrence) IN (
				SELECT i.slot, i.subscriber, i.event_id, i.source, i.occurrence FROM walpost.inbox i
				JOIN (`+eachEvent("max(d.again) AS again")+`) d USING (event_id, source, occurrence)
				WHERE i.slot = $1 AND i.subscriber = $2 AND i.done_at < d.again
				ORDER BY i.event_id, i.source, i.occurrence FOR UPDATE OF i)`,
			slot, subscriber, effects.ids, effects.sources, effects.occurrences, effects.again)
	}
	batch.Queue(`
		INSERT INTO walpost.inbox (slot, subscriber, event_id, source, occurrence, done_at)
		SELECT $1, $2, d.* FROM (`+eachEvent("greatest(now(), max(d.again))")+`) d ORDER BY d.event_id, d.source, d.occurrence
		ON CONFLICT DO NOTHING
		RETURNING source, event_id, occurrence`,
		slot, subscriber, effects.ids, effects.sources, effects.occurrences, effects.again).Query(func(rows pgx.Rows) error {
		recorded, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event.Identity])
		fresh(recorded)
		return err
	})
}

// eachEvent selects the events whose identities are $3 to $5, each once, and what the deliveries of each add up
// to; again, $6, is NULL where a delivery asks for no second effect.
func eachEvent(aggregate string) string {
	return `SELECT d.event_id, d.source, d.occurrence, ` + aggregate + `
		FROM unnest($3::text[], $4::text[], $5::text[], $6::timestamptz[]) AS d(event_id, source, occurrence, again)
		GROUP BY d.event_id, d.source, d.occurrence`
}

// EffectDoneSQL is true where the effect of an event is recorded; the arguments are expressions.
func EffectDoneSQL(slot, subscriber, source, eventID, occurrence string) string {
	return `EXISTS (SELECT FROM walpost.inbox i WHERE i.slot = ` + slot + ` AND i.subscriber = ` + subscriber + ` AND i.source = ` + source + `
		AND i.event_id = ` + eventID + ` AND i.occurrence = ` + occurrence + `)`
}

// EffectsOf returns when the effects of the events with an id were committed, for the subscribers that the slot has.
func EffectsOf(ctx context.Context, q Querier, slot, eventID string) (map[Effect]time.Time, error) {
	rows, err := q.Query(ctx, `
		SELECT subscriber, source, event_id, occurrence, done_at FROM walpost.inbox
		WHERE slot = $1 AND subscriber IN (SELECT name FROM walpost.subscribers WHERE slot = $1) AND event_id = $2`, slot, eventID)
	if err != nil {
		return nil, fmt.Errorf("read inbox for event %q: %w", eventID, err)
	}
	effects := make(map[Effect]time.Time)
	var effect Effect
	var at time.Time
	of := &effect.Event
	if _, err := pgx.ForEachRow(rows, []any{&effect.Subscriber, &of.Source, &of.ID, &of.Occurrence, &at}, func() error {
		effects[effect] = at.UTC()
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read inbox for event %q: %w", eventID, err)
	}
	return effects, nil
}

// DeleteInbox removes all records of a subscriber.
func DeleteInbox(ctx context.Context, tx pgx.Tx, slot, subscriber string) error {
	if _, err := tx.Exec(ctx, `DELETE FROM walpost.inbox WHERE slot = $1 AND subscriber = $2`, slot, subscriber); err != nil {
		return fmt.Errorf("delete the inbox of %q: %w", subscriber, err)
	}
	return nil
}

// RenameInbox gives the records of a subscriber to another name. What a forgotten subscriber of that name has left
// behind goes where it would be in the way.
func RenameInbox(ctx context.Context, tx pgx.Tx, slot, before, name string) error {
	for _, sql := range []string{
		`DELETE FROM walpost.inbox n WHERE n.slot = $1 AND n.subscriber = $3 AND EXISTS (
			SELECT FROM walpost.inbox o WHERE o.slot = $1 AND o.subscriber = $2
			AND o.source = n.source AND o.event_id = n.event_id AND o.occurrence = n.occurrence)`,
		`UPDATE walpost.inbox SET subscriber = $3 WHERE slot = $1 AND subscriber = $2`,
	} {
		if _, err := tx.Exec(ctx, sql, slot, before, name); err != nil {
			return fmt.Errorf("rename the inbox of %q to %q: %w", before, name, err)
		}
	}
	return nil
}

// InboxCleaner deletes old rows of walpost.inbox, in batches. A row that is gone lets its effect happen a second time,
// so a row stays while anything can bring its event again.
type InboxCleaner struct {
	pool      *postgres.Pool
	slot      string
	retention time.Duration
	batch     int
	needed    NeededEvents
	last      *inboxRow // that was read
}

// NeededEvents returns those of the events that can come again.
type NeededEvents func(ctx context.Context, tx pgx.Tx, events []event.Identity) (map[event.Identity]bool, error)

// inboxRow is the primary key of a row, and its time.
type inboxRow struct {
	event.Identity
	Subscriber string
	DoneAt     time.Time
}

// NewInboxCleaner begins with the oldest rows of a slot. Retention must not be shorter than any source's.
func NewInboxCleaner(pool *postgres.Pool, slot string, retention time.Duration, batch int, needed NeededEvents) *InboxCleaner {
	return &InboxCleaner{pool: pool, slot: slot, retention: retention, batch: batch, needed: needed}
}

// CleanBatch reads the next batch of rows that are older than retention, deletes those that are not needed any more,
// and reports whether there may be more.
func (c *InboxCleaner) CleanBatch(ctx context.Context) (deleted int64, more bool, err error) {
	if c.retention <= 0 {
		return 0, false, nil
	}
	last := c.last
	err = postgres.InTx(ctx, c.pool, func(tx pgx.Tx) error {
		old, err := c.old(ctx, tx)
		if err != nil || len(old) == 0 {
			return err
		}
		end := old[len(old)-1]
		last, more = &end, len(old) == c.batch
		events := make([]event.Identity, len(old))
		for i, row := range old {
			events[i] = row.Identity
		}
		needed, err := c.needed(ctx, tx, events)
		if err != nil {
			return err
		}
		old = slices.DeleteFunc(old, func(row inboxRow) bool { return needed[row.Identity] })
		deleted, err = c.delete(ctx, tx, old)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("clean walpost.inbox: %w", err)
	}
	c.last = last
	return deleted, more, nil
}

// old locks the next rows in the order of their age.
func (c *InboxCleaner) old(ctx context.Context, tx pgx.Tx) ([]inboxRow, error) {
	where, args := "", []any{c.slot, c.retention, c.batch}
	if c.last != nil {
		where = " AND (i.done_at, i.subscriber, i.event_id, i.source, i.occurrence) > ($4::timestamptz, $5::text, $6::text, $7::text, $8::text)"
		args = append(args, c.last.DoneAt, c.last.Subscriber, c.last.ID, c.last.Source, c.last.Occurrence)
	}
	rows, err := tx.Query(ctx, `
		SELECT i.source, i.event_id, i.occurrence, i.subscriber, i.done_at FROM walpost.inbox i
		WHERE i.slot = $1 AND i.done_at < now() - $2::interval`+where+`
		ORDER BY i.done_at, i.subscriber, i.event_id, i.source, i.occurrence LIMIT $3 FOR UPDATE OF i SKIP LOCKED`, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[inboxRow])
}

func (c *InboxCleaner) delete(ctx context.Context, tx pgx.Tx, rows []inboxRow) (int64, error) {
	var batch pgx.Batch
	for _, row := range rows {
		batch.Queue(`
			DELETE FROM walpost.inbox WHERE slot = $1 AND subscriber = $2 AND event_id = $3 AND source = $4 AND occurrence = $5`,
			c.slot, row.Subscriber, row.ID, row.Source, row.Occurrence)
	}
	return int64(len(rows)), tx.SendBatch(ctx, &batch).Close()
}
