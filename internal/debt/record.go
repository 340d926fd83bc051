package debt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
)

// Record makes deliveries waiting, all or none. A delivery that is recorded already stays as it is, except that a row at a
// made-up position takes the real position of its event. An event is recorded by reference if only walpost deletes the rows
// of its source, and only after this slot has marked them; otherwise with a copy, because the retention of another slot may
// delete the rows of a source with mark: off. It returns the indexes of those of which another row with the same identity is
// recorded.
func (s *Store) Record(ctx context.Context, subscriber string, owed []lane.Owed) (others []int, err error) {
	if len(owed) == 0 {
		return nil, nil
	}
	if len(owed) >= copyAtLeast {
		err := s.inTx(ctx, func(tx pgx.Tx) error { return s.copyWaiting(ctx, tx, subscriber, owed) })
		if postgres.Code(err) != "23505" { // unique_violation: some are recorded
			return nil, err
		}
	}
	err = s.inTx(ctx, func(tx pgx.Tx) (err error) {
		others, err = s.recordWaiting(ctx, tx, subscriber, owed, leaves)
		return err
	})
	return others, err
}

// RecordWaiting is Record within the caller's transaction, which must be one of postgres.InTx: a slot that
// is being made writes the rows that waited before it, piece by piece, in the transaction that makes it
// ready.
func (s *Store) RecordWaiting(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error {
	_, err := s.recordWaiting(ctx, tx, subscriber, owed, leaves)
	return err
}

// RecordRows is RecordWaiting for a pass over the tables: what waits already moves to its place among the rows, so that
// the events of a key are sent in one order, whether they were owed before or not. Of two rows with one identity it records
// the first. It returns how many others there were.
func (s *Store) RecordRows(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) (others int, err error) {
	first := once(owed)
	recorded, err := s.recordWaiting(ctx, tx, subscriber, first, moves)
	return len(owed) - len(first) + len(recorded), err
}

// PlaceRows moves those of the deliveries that wait to their places among the rows of a pass over the tables, and records
// nothing.
func (s *Store) PlaceRows(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error {
	for owed = once(owed); len(owed) > 0; {
		n := min(len(owed), maxRows)
		var c columns
		for i := range owed[:n] {
			c.add(&owed[i])
		}
		_, err := tx.Exec(ctx, `
			WITH places AS MATERIALIZED (
				SELECT * FROM unnest($3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::bigint[], $9::bool[], $10::bool[], $11::text[])
				AS u(source, event_id, occurrence, epoch, commit_lsn, ordinal, made_up, in_table_order, bound)
			), waiting AS MATERIALIZED (
				SELECT o.at, u.* FROM places u CROSS JOIN LATERAL ( -- LIMIT keeps it from becoming a join, which could read everything that is owed
					SELECT ctid AS at FROM walpost.owed
					WHERE slot = $1 AND event_id = u.event_id AND source = u.source AND occurrence = u.occurrence AND subscriber = $2
					AND state = 'waiting' LIMIT 1 FOR UPDATE) o
			)
			UPDATE walpost.owed o SET epoch = u.epoch, commit_lsn = u.commit_lsn::pg_lsn, ordinal = u.ordinal, bound = u.bound::pg_lsn,
			    made_up = u.made_up, in_table_order = u.in_table_order
			FROM waiting u WHERE o.ctid = u.at`,
			s.slot, subscriber, c.sources, c.ids, c.occurrences, c.epochs, c.commits, c.ordinals, c.madeUp, c.inTableOrder, c.bounds)
		if err != nil {
			return fmt.Errorf("move deliveries owed to %q to their places: %w", subscriber, err)
		}
		owed = owed[n:]
	}
	return nil
}

// once leaves out all but the first of two deliveries with one identity: a statement changes a row once.
func once(owed []lane.Owed) []lane.Owed {
	seen := make(map[event.Identity]bool, len(owed))
	return slices.DeleteFunc(slices.Clone(owed), func(o lane.Owed) bool {
		again := seen[o.Event.Identity()]
		seen[o.Event.Identity()] = true
		return again
	})
}

func (s *Store) recordWaiting(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed, conflict onConflict) (others []int, err error) {
	byReference := s.byReference()
	for done := 0; len(owed) > 0; {
		n := fit(owed)
		there := false // some were recorded already
		var references, copies columns
		for i := range owed[:n] {
			if byReference(owed[i].Event) {
				references.add(&owed[i])
			} else {
				copies.add(&owed[i])
				copies.addCopy(owed[i].Event)
			}
		}
		for _, write := range []struct {
			sql  string
			rows *columns
			args []any
		}{
			{conflict.references, &references, references.args()},
			{conflict.copies, &copies, append(copies.args(), copies.copyArgs()...)},
		} {
			if len(write.rows.ids) == 0 {
				continue
			}
			inserted, err := tx.Exec(ctx, write.sql, append([]any{s.slot, subscriber, lane.StateWaiting}, write.args...)...)
			if err != nil {
				return nil, fmt.Errorf("record %s as owed to %q: %w", printable.Count(len(write.rows.ids), "delivery"), subscriber, err)
			}
			there = there || int(inserted.RowsAffected()) < len(write.rows.ids)
		}
		if there {
			if err := s.placeMadeUp(ctx, tx, subscriber, owed[:n]); err != nil {
				return nil, err
			}
			found, err := s.findOthers(ctx, tx, subscriber, owed[:n])
			if err != nil {
				return nil, err
			}
			for _, i := range found {
				others = append(others, done+i)
			}
		}
		owed, done = owed[n:], done+n
	}
	return others, nil
}

// findOthers returns, in order, the indexes of those of the deliveries of which another row with the same identity is
// recorded.
func (s *Store) findOthers(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) (others []int, err error) {
	var c columns
	for i := range owed {
		c.add(&owed[i])
	}
	rows, err := tx.Query(ctx, `
		SELECT (u.n - 1)::int FROM unnest($3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::bigint[], $9::bool[], $10::text[])
		WITH ORDINALITY AS u(source, event_id, occurrence, epoch, commit_lsn, ordinal, made_up, row_id, n)
		CROSS JOIN LATERAL ( -- LIMIT keeps it from becoming a join, which could read everything that is owed
			SELECT row_id, epoch, commit_lsn, ordinal, made_up FROM walpost.owed
			WHERE slot = $1 AND event_id = u.event_id AND source = u.source AND occurrence = u.occurrence AND subscriber = $2 LIMIT 1) o
		WHERE `+otherRow("o", "u")+` ORDER BY u.n`,
		s.slot, subscriber, c.sources, c.ids, c.occurrences, c.epochs, c.commits, c.ordinals, c.madeUp, c.rows)
	if err == nil {
		others, err = pgx.CollectRows(rows, pgx.RowTo[int])
	}
	if err != nil {
		return nil, fmt.Errorf("look for other rows with the identity of what is owed to %q: %w", subscriber, err)
	}
	return others, nil
}

// placeMadeUp gives those deliveries the positions of their events that were recorded at made-up ones. It is no part of
// the INSERT: ON CONFLICT DO UPDATE refuses two rows with one identity, which are one event.
func (s *Store) placeMadeUp(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error {
	var batch pgx.Batch
	for i := range owed {
		e := owed[i].Event
		if e.Bound != 0 {
			continue
		}
		batch.Queue(`
			UPDATE walpost.owed SET epoch = $6, commit_lsn = $7::text::pg_lsn, ordinal = $8, made_up = false, bound = $7::text::pg_lsn,
			    xid = $9, committed_at = coalesce($10, committed_at)
			WHERE `+theDelivery+` AND (row_id = $11::text OR '' IN (row_id, $11::text)) AND made_up AND NOT in_table_order AND state NOT IN ('paid')`,
			append(delivery(s.slot, e.Identity(), subscriber), e.Position.Epoch, e.Position.Commit.String(), e.Position.Ordinal, int64(e.XID), known(e.CommittedAt), e.Row)...)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("give deliveries that were added the positions of their events: %w", err)
	}
	return nil
}

// LastWaiting returns the position of the last delivery of an epoch that waits for one of the subscribers, zero if none
// does.
func (s *Store) LastWaiting(ctx context.Context, tx pgx.Tx, epoch int32, subscribers []string) (event.Position, error) {
	var commit string
	last := event.Position{Epoch: epoch}
	err := tx.QueryRow(ctx, `
		SELECT o.commit_lsn::text, o.ordinal FROM pg_catalog.unnest($2::text[]) n, LATERAL (
			SELECT commit_lsn, ordinal FROM walpost.owed WHERE slot = $1 AND subscriber = n AND state = 'waiting' AND epoch = $3
			ORDER BY epoch DESC, commit_lsn DESC, ordinal DESC LIMIT 1) o
		ORDER BY o.commit_lsn DESC, o.ordinal DESC LIMIT 1`, s.slot, subscribers, epoch).Scan(&commit, &last.Ordinal)
	if errors.Is(err, pgx.ErrNoRows) {
		return event.Position{}, nil
	}
	if err == nil {
		last.Commit, err = event.ParseLSN(commit)
	}
	if err != nil {
		return event.Position{}, fmt.Errorf("find the last delivery that waits: %w", err)
	}
	return last, nil
}

// fit is how many of the deliveries one statement takes, at least one.
func fit(owed []lane.Owed) int {
	size := 0
	for n := range owed {
		size += owed[n].Event.Size()
		if n == maxRows || n > 0 && size > maxBytes {
			return n
		}
	}
	return len(owed)
}

// Dead records a dead letter, or makes one of a delivery that is recorded in another state. It keeps a
// copy of the event, unless there is nothing to copy: an event that was too large to be held is recorded
// by reference to its row. other tells that another row with the same identity is recorded: that stays as it is.
func (s *Store) Dead(ctx context.Context, subscriber string, letter lane.Owed) (other bool, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) (err error) {
		other, err = s.recordDead(ctx, tx, subscriber, letter)
		return err
	})
	return other, err
}

// RecordDead is Dead within the caller's transaction, which must be one of postgres.InTx.
func (s *Store) RecordDead(ctx context.Context, tx pgx.Tx, subscriber string, letter lane.Owed) (other bool, err error) {
	return s.recordDead(ctx, tx, subscriber, letter)
}

func (s *Store) recordDead(ctx context.Context, tx pgx.Tx, subscriber string, letter lane.Owed) (other bool, err error) {
	var row columns
	row.add(&letter)
	args := append([]any{s.slot, subscriber, lane.StateDead}, row.args()...)
	sql := recordDeadReference
	if e := letter.Event; e.Payload != nil || e.Row == "" || e.Invalid == "" {
		row.addCopy(e)
		sql, args = recordDeadCopy, append(args, row.copyArgs()...)
	}
	written, err := tx.Exec(ctx, sql, args...)
	if err != nil {
		return false, fmt.Errorf("record event %q as dead for %q: %w", letter.Event.ID, subscriber, err)
	}
	return written.RowsAffected() == 0, nil
}
