package debt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
)

// SubscriberRow is what is recorded of a subscriber, whether it is in the configuration or not.
type SubscriberRow struct {
	Name   string
	Paused bool
	// Finished and Secured are up to where everything is finished, and finished or owed.
	Finished, Secured event.Position
	// LastSeen is when a relay last had it in its configuration.
	LastSeen time.Time
	// Waiting and Dead count what it is owed.
	Waiting, Dead int64
}

// Subscribers returns the slot's subscribers by name.
func (s *Store) Subscribers(ctx context.Context) ([]SubscriberRow, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT s.name, s.state = 'paused', s.finished_epoch, s.finished_commit::text, s.finished_ordinal,
		       s.secured_epoch, s.secured_commit::text, s.secured_ordinal, s.last_seen,
		       (SELECT count(*) FROM walpost.owed o WHERE o.slot = s.slot AND o.state = 'waiting' AND o.subscriber = s.name),
		       (SELECT count(*) FROM walpost.owed o WHERE o.slot = s.slot AND o.state = 'dead' AND o.subscriber = s.name)
		FROM walpost.subscribers s WHERE s.slot = $1 ORDER BY s.name`, s.slot)
	if err != nil {
		return nil, fmt.Errorf("list subscribers: %w", err)
	}
	subscribers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (SubscriberRow, error) {
		var r SubscriberRow
		var finished, secured string
		err := row.Scan(&r.Name, &r.Paused, &r.Finished.Epoch, &finished, &r.Finished.Ordinal,
			&r.Secured.Epoch, &secured, &r.Secured.Ordinal, &r.LastSeen, &r.Waiting, &r.Dead)
		if err == nil {
			r.Finished.Commit, err = event.ParseLSN(finished)
		}
		if err == nil {
			r.Secured.Commit, err = event.ParseLSN(secured)
		}
		r.LastSeen = r.LastSeen.UTC()
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("list subscribers: %w", err)
	}
	return subscribers, nil
}

// Pause makes a subscriber owe everything from now on. Pausing one that is paused changes nothing.
func (s *Store) Pause(ctx context.Context, name, who, why string) error {
	return s.setState(ctx, name, "paused", "pause", who, why)
}

// Resume lets a paused subscriber be paid and go on.
func (s *Store) Resume(ctx context.Context, name, who, why string) error {
	return s.setState(ctx, name, "live", "resume", who, why)
}

func (s *Store) setState(ctx context.Context, name, state, action, who, why string) error {
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
		_, err = s.audit(ctx, tx, who, action, map[string]any{"subscriber": name}, why)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s subscriber %q: %w", action, name, err)
	}
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
		_, err = s.audit(ctx, tx, who, "forget", map[string]any{"subscriber": name, "deliveries": discarded}, why)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget subscriber %q: %w", name, err)
	}
	return nil
}

func unknown(subscriber string) error {
	return fmt.Errorf("there is no subscriber %q at this slot: `walpost subscribers list` has their names", subscriber)
}
