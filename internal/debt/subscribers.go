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

// ErrNoSubscriber means that nothing is recorded of a subscriber of that name.
var ErrNoSubscriber = errors.New("there is no subscriber")

// SubscriberRow is what is recorded of a subscriber, whether it is in the configuration or not.
type SubscriberRow struct {
	Name   string
	Paused bool
	// Gone is since when it is in no configuration; zero while it is in one.
	Gone time.Time
	// Finished and Secured are up to where everything is finished, and finished or owed.
	Finished, Secured event.Position
	// LastSeen is when a relay last wrote its position: at its start, and whenever something was finished.
	LastSeen time.Time
	// Doubt is why its positions cannot be true, "" if they can.
	Doubt string
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
	rows, err := s.pool.Query(ctx, `
		SELECT s.name, s.state = 'paused', s.gone_at, s.last_seen,
		       s.finished_epoch, s.finished_commit::text, s.finished_ordinal,
		       s.secured_epoch, s.secured_commit::text, s.secured_ordinal,
		       coalesce(`+store.DoubtPosition+`, ''),
		       w.number, w.epoch, w.commit_lsn, w.ordinal, w.since, d.number, d.epoch, d.commit_lsn, d.ordinal, d.since
		FROM walpost.subscribers s LEFT JOIN walpost.slots k USING (slot), `+sumSQL(lane.StateWaiting)+` w, `+sumSQL(lane.StateDead)+` d
		WHERE s.slot = $1 ORDER BY s.name`, s.slot)
	if err != nil {
		return nil, fmt.Errorf("list subscribers: %w", err)
	}
	subscribers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (SubscriberRow, error) {
		var r SubscriberRow
		var gone, waiting, dead *time.Time
		positions := []*event.Position{&r.Finished, &r.Secured, &r.Waiting.Oldest, &r.Dead.Oldest}
		commits := make([]string, len(positions))
		err := row.Scan(&r.Name, &r.Paused, &gone, &r.LastSeen,
			&r.Finished.Epoch, &commits[0], &r.Finished.Ordinal, &r.Secured.Epoch, &commits[1], &r.Secured.Ordinal, &r.Doubt,
			&r.Waiting.Number, &r.Waiting.Oldest.Epoch, &commits[2], &r.Waiting.Oldest.Ordinal, &waiting,
			&r.Dead.Number, &r.Dead.Oldest.Epoch, &commits[3], &r.Dead.Oldest.Ordinal, &dead)
		for i := 0; i < len(positions) && err == nil; i++ {
			positions[i].Commit, err = event.ParseLSN(commits[i])
		}
		r.Gone, r.LastSeen, r.Waiting.Since, r.Dead.Since = or(gone), r.LastSeen.UTC(), or(waiting), or(dead)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("list subscribers: %w", err)
	}
	return subscribers, nil
}

// sumSQL is the Sum of subscriber s in one state, which is written out, because each has an index of its own.
func sumSQL(state lane.State) string {
	those := "FROM walpost.owed o WHERE o.slot = s.slot AND o.subscriber = s.name AND o.state = '" + string(state) + "'"
	return `LATERAL (
		SELECT n.number, coalesce(f.epoch, 0) AS epoch, coalesce(f.commit_lsn, '0/0')::text AS commit_lsn,
		       coalesce(f.ordinal, 0) AS ordinal, coalesce(f.committed_at, f.recorded_at) AS since
		FROM (SELECT count(*) AS number ` + those + `) n LEFT JOIN LATERAL (
		    SELECT o.* ` + those + ` ORDER BY o.epoch, o.commit_lsn, o.ordinal LIMIT 1) f ON true)`
}

// Pause makes a subscriber owe everything from now on. Pausing one that is paused changes nothing.
func (s *Store) Pause(ctx context.Context, name, who, why string) error {
	return s.setState(ctx, name, "paused", "pause", s.refusing(ctx, who, "pause", why))
}

// Unwanted is Pause on the word of the subscriber itself: it wants nothing any more. That is an act of the relay,
// so it does not depend on its note.
func (s *Store) Unwanted(ctx context.Context, name, why string) error {
	return s.setState(ctx, name, "paused", "pause", func(tx pgx.Tx, facts map[string]any) error {
		_ = NoteByRelay(ctx, tx, s.slot, "walpost", "pause", facts, reason(why))
		return nil
	})
}

// refusing notes the change of a person; without the note there is no change.
func (s *Store) refusing(ctx context.Context, who, action, why string) func(pgx.Tx, map[string]any) error {
	return func(tx pgx.Tx, facts map[string]any) error {
		_, err := s.audit(ctx, tx, who, action, facts, why)
		return err
	}
}

// Resume lets a paused subscriber be paid and go on.
func (s *Store) Resume(ctx context.Context, name, who, why string) error {
	return s.setState(ctx, name, "live", "resume", s.refusing(ctx, who, "resume", why))
}

func (s *Store) setState(ctx context.Context, name, state, action string, note func(pgx.Tx, map[string]any) error) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		var before string
		err := tx.QueryRow(ctx, `SELECT state FROM walpost.subscribers WHERE slot = $1 AND name = $2 FOR UPDATE`, s.slot, name).Scan(&before)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return unknown(name)
		case err != nil || before == state:
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE walpost.subscribers SET state = $3, updated_at = now() WHERE slot = $1 AND name = $2`, s.slot, name, state); err != nil {
			return err
		}
		return note(tx, map[string]any{"subscriber": name})
	})
	if err != nil {
		return fmt.Errorf("%s subscriber %q: %w", action, name, err)
	}
	Announce(ctx, s.pool, s.slot)
	return nil
}

// Forget removes everything about a subscriber: what it is owed is discarded, then its positions and its
// inbox go. It must not be in the configuration of a running relay; that is for the caller to check.
func (s *Store) Forget(ctx context.Context, name, who, why string) error {
	var exists bool
	err := s.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM walpost.subscribers WHERE slot = $1 AND name = $2)
		OR EXISTS (SELECT FROM walpost.owed WHERE slot = $1 AND state IN ('waiting', 'dead') AND subscriber = $2)`, s.slot, name).Scan(&exists)
	if err == nil && !exists {
		err = unknown(name)
	}
	if err != nil {
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
		if _, err := tx.Exec(ctx, `DELETE FROM walpost.inbox WHERE slot = $1 AND subscriber = $2`, s.slot, name); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM walpost.subscribers WHERE slot = $1 AND name = $2`, s.slot, name); err != nil {
			return err
		}
		_, err = s.audit(ctx, tx, who, "forget", map[string]any{"subscriber": name, "deliveries": discarded.Deliveries}, why)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget subscriber %q: %w", name, err)
	}
	Announce(ctx, s.pool, s.slot)
	return nil
}

// Rename gives everything that is recorded of a subscriber to another name, which must not be known. What a
// forgotten subscriber of that name has left behind goes where it would be in the way.
func (s *Store) Rename(ctx context.Context, tx pgx.Tx, before, name string) error {
	for _, sql := range []string{
		`DELETE FROM walpost.owed n WHERE n.slot = $1 AND n.subscriber = $3 AND EXISTS (
			SELECT FROM walpost.owed o WHERE o.slot = $1 AND o.subscriber = $2
			AND o.source = n.source AND o.event_id = n.event_id AND o.occurrence = n.occurrence)`,
		`UPDATE walpost.owed SET subscriber = $3 WHERE slot = $1 AND subscriber = $2`,
		`DELETE FROM walpost.inbox n WHERE n.slot = $1 AND n.subscriber = $3 AND EXISTS (
			SELECT FROM walpost.inbox o WHERE o.slot = $1 AND o.subscriber = $2
			AND o.source = n.source AND o.event_id = n.event_id AND o.occurrence = n.occurrence)`,
		`UPDATE walpost.inbox SET subscriber = $3 WHERE slot = $1 AND subscriber = $2`,
		`UPDATE walpost.subscribers SET name = $3, updated_at = now() WHERE slot = $1 AND name = $2`,
	} {
		if _, err := tx.Exec(ctx, sql, s.slot, before, name); err != nil {
			return fmt.Errorf("rename subscriber %q to %q: %w", before, name, err)
		}
	}
	return nil
}

func unknown(subscriber string) error {
	return fmt.Errorf("%w %q at this slot: `walpost subscribers list` has their names", ErrNoSubscriber, subscriber)
}
