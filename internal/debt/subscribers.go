package debt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/store"
)

// SubscriberRow is what is recorded of a subscriber, whether it is in the configuration or not.
type SubscriberRow struct {
	store.Subscriber
	// Waiting and Dead are what it is owed.
	Waiting, Dead Sum
}

// Sum is how much is owed, and how old it is.
type Sum struct {
	Number int64
	// Oldest is the position of the first one, Since when that event committed (or, where the server did
	// not know it, when it was recorded). Both are zero when there is none.
	Oldest event.Position
	Since  time.Time
}

// Subscribers returns the slot's subscribers by name. It reads an index over everything owed.
func (s *Store) Subscribers(ctx context.Context) ([]SubscriberRow, error) {
	var subscribers []SubscriberRow
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		// Positions first, then what is owed: then what lies before a position and is not owed is finished.
		recorded, err := store.Subscribers(ctx, tx, s.slot)
		if err != nil {
			return err
		}
		subscribers = make([]SubscriberRow, len(recorded))
		names := make([]string, len(recorded))
		for i, sub := range recorded {
			subscribers[i].Subscriber, names[i] = sub, sub.Name
		}
		rows, err := tx.Query(ctx, sumsSQL, s.slot, names)
		if err != nil {
			return err
		}
		n := 0
		_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
			r := &subscribers[n]
			n++
			var commits [2]string
			var since [2]*time.Time
			err := row.Scan(&r.Waiting.Number, &r.Waiting.Oldest.Epoch, &commits[0], &r.Waiting.Oldest.Ordinal, &since[0],
				&r.Dead.Number, &r.Dead.Oldest.Epoch, &commits[1], &r.Dead.Oldest.Ordinal, &since[1])
			for i, sum := range [2]*Sum{&r.Waiting, &r.Dead} {
				if err == nil {
					sum.Since = or(since[i])
					sum.Oldest.Commit, err = event.ParseLSN(commits[i])
				}
			}
			return struct{}{}, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list subscribers: %w", err)
	}
	return subscribers, nil
}

// sumsSQL has a row for each of the subscribers in $2, in their order.
var sumsSQL = `
	SELECT w.number, w.epoch, w.commit_lsn, w.ordinal, w.since, d.number, d.epoch, d.commit_lsn, d.ordinal, d.since
	FROM unnest($2::text[]) WITH ORDINALITY s(name, n), ` + sumSQL(lane.StateWaiting) + ` w, ` + sumSQL(lane.StateDead) + ` d
	ORDER BY s.n`

// sumSQL is the Sum of subscriber s in one state, which is written out, because each has an index of its own.
func sumSQL(state lane.State) string {
	those := "FROM walpost.owed o WHERE o.slot = $1 AND o.subscriber = s.name AND o.state = '" + string(state) + "'"
	return `LATERAL (
		SELECT n.number, coalesce(f.epoch, 0) AS epoch, coalesce(f.commit_lsn, '0/0')::text AS commit_lsn,
		       coalesce(f.ordinal, 0) AS ordinal, coalesce(f.committed_at, f.recorded_at) AS since
		FROM (SELECT count(*) AS number ` + those + `) n LEFT JOIN LATERAL (
		    SELECT o.* ` + those + ` ORDER BY o.epoch, o.commit_lsn, o.ordinal LIMIT 1) f ON true)`
}

// Pause makes a subscriber owe everything from now on. Pausing one that is paused changes nothing.
func (s *Store) Pause(ctx context.Context, name, who, why string) error {
	return s.setPaused(ctx, name, true, s.refusing(ctx, who, "pause", why))
}

// Unwanted is Pause on the word of the subscriber itself: it wants nothing any more. That is an act of the relay,
// so it does not depend on its note.
func (s *Store) Unwanted(ctx context.Context, name, why string) error {
	return s.setPaused(ctx, name, true, func(tx pgx.Tx, facts map[string]any) error {
		_ = store.NoteByRelay(ctx, tx, s.slot, "walpost", "pause", facts, reason(why))
		return nil
	})
}

// refusing notes the change of a person; without the note there is no change.
func (s *Store) refusing(ctx context.Context, who, action, why string) func(pgx.Tx, map[string]any) error {
	return func(tx pgx.Tx, facts map[string]any) error {
		_, err := store.Audit(ctx, tx, s.slot, who, action, facts, why)
		return err
	}
}

// Resume lets a paused subscriber be paid and go on.
func (s *Store) Resume(ctx context.Context, name, who, why string) error {
	return s.setPaused(ctx, name, false, s.refusing(ctx, who, "resume", why))
}

func (s *Store) setPaused(ctx context.Context, name string, paused bool, writeNote func(pgx.Tx, map[string]any) error) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		changed, err := store.SetPaused(ctx, tx, s.slot, name, paused)
		if err != nil || !changed {
			return err
		}
		return writeNote(tx, map[string]any{"subscriber": name})
	})
	if err != nil {
		action := "resume"
		if paused {
			action = "pause"
		}
		return fmt.Errorf("%s subscriber %q: %w", action, name, err)
	}
	store.Announce(ctx, s.pool, s.slot)
	return nil
}

// Forget removes everything about a subscriber: what it is owed is discarded, then its positions and its
// inbox go. It must not be in the configuration of a running relay; that is for the caller to check.
func (s *Store) Forget(ctx context.Context, name, who, why string) error {
	if err := s.checkKnown(ctx, name); err != nil {
		return fmt.Errorf("forget subscriber %q: %w", name, err)
	}
	discarded, err := s.Discard(ctx, Filter{Subscriber: name}, who, why)
	if err != nil {
		return fmt.Errorf("forget subscriber %q: %w", name, err)
	}
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		// Clean removes those whose rows are still to be marked.
		if _, err := tx.Exec(ctx, `
			DELETE FROM walpost.owed WHERE slot = $1 AND subscriber = $2 AND state = 'paid' AND NOT mark`, s.slot, name); err != nil {
			return err
		}
		if err := store.DeleteInbox(ctx, tx, s.slot, name); err != nil {
			return err
		}
		if err := store.DeleteSubscriber(ctx, tx, s.slot, name); err != nil {
			return err
		}
		_, err = store.Audit(ctx, tx, s.slot, who, "forget", map[string]any{"subscriber": name, "deliveries": discarded.Deliveries}, why)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget subscriber %q: %w", name, err)
	}
	store.Announce(ctx, s.pool, s.slot)
	return nil
}

// checkKnown returns store.ErrNoSubscriber where nothing is recorded of a subscriber, nor owed to it.
func (s *Store) checkKnown(ctx context.Context, name string) error {
	_, unknown := store.IsConfigured(ctx, s.pool, s.slot, name)
	if !errors.Is(unknown, store.ErrNoSubscriber) {
		return unknown
	}
	var owed bool
	err := s.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM walpost.owed WHERE slot = $1 AND state IN ('waiting', 'dead') AND subscriber = $2)`, s.slot, name).Scan(&owed)
	if err == nil && !owed {
		err = unknown
	}
	return err
}

// Rename gives everything that is recorded of a subscriber to another name, which must not be known. What a
// forgotten subscriber of that name has left behind goes where it would be in the way.
func (s *Store) Rename(ctx context.Context, tx pgx.Tx, before, name string) error {
	for _, sql := range []string{
		`DELETE FROM walpost.owed n WHERE n.slot = $1 AND n.subscriber = $3 AND EXISTS (
			SELECT FROM walpost.owed o WHERE o.slot = $1 AND o.subscriber = $2
			AND o.source = n.source AND o.event_id = n.event_id AND o.occurrence = n.occurrence)`,
		`UPDATE walpost.owed SET subscriber = $3 WHERE slot = $1 AND subscriber = $2`,
	} {
		if _, err := tx.Exec(ctx, sql, s.slot, before, name); err != nil {
			return fmt.Errorf("rename subscriber %q to %q: %w", before, name, err)
		}
	}
	if err := store.RenameInbox(ctx, tx, s.slot, before, name); err != nil {
		return err
	}
	return store.RenameSubscriber(ctx, tx, s.slot, before, name)
}

// SourcesCollide reports whether RenameSources would fail: an event is owed under the former and the new name.
func SourcesCollide(ctx context.Context, q store.Querier, slot string, renamed map[string]string) (bool, error) {
	return store.SourcesCollide(ctx, q, `walpost.owed`, slot, renamed)
}

// RenameSources gives sources other names in what is owed, by their former names.
func RenameSources(ctx context.Context, tx pgx.Tx, slot string, renamed map[string]string) error {
	return store.RenameSources(ctx, tx, `walpost.owed`, `t.slot = $1`, slot, renamed, "source")
}
