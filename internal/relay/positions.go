package relay

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/wal"
)

// names lists the subscribers in the order of their numbers.
func (r *Relay) names() []string {
	names := make([]string, len(r.Subscriptions))
	for i, sub := range r.Subscriptions {
		names[i] = sub.Subscriber.Name()
	}
	return names
}

// startPositions finds from where each subscriber goes on with a slot that exists. One that is new to it,
// or comes back after it had left the configuration, starts at now.
func (r *Relay) startPositions(ctx context.Context, s *session) error {
	type known struct {
		position event.Position
		gone     *string
	}
	rows, err := r.Pool.Query(ctx, `
		SELECT name, secured_epoch, secured_commit::text, secured_ordinal, gone_at::text
		FROM walpost.subscribers WHERE slot = $1`, r.Slot)
	if err != nil {
		return fmt.Errorf("read positions of the subscribers: %w", err)
	}
	found := make(map[string]known)
	for rows.Next() {
		var name, commit string
		var k known
		if err := rows.Scan(&name, &k.position.Epoch, &commit, &k.position.Ordinal, &k.gone); err != nil {
			rows.Close()
			return fmt.Errorf("read positions of the subscribers: %w", err)
		}
		if k.position.Commit, err = event.ParseLSN(commit); err != nil {
			rows.Close()
			return fmt.Errorf("read positions of the subscribers: %w", err)
		}
		found[name] = k
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read positions of the subscribers: %w", err)
	}

	now := event.Position{Epoch: s.epoch, Commit: s.horizon - 1, Ordinal: math.MaxInt64}
	s.after = make([]event.Position, len(r.Subscriptions))
	for i, name := range r.names() {
		k, ok := found[name]
		switch {
		case !ok && r.Subscriptions[i].FromBeginning:
			s.after[i] = event.Position{Epoch: s.epoch}
			if err := r.recordRetained(ctx, s, i); err != nil {
				return err
			}
		case !ok:
			r.Log.Info("subscriber is new to this slot and starts at now", "subscriber", name, "lsn", s.horizon)
			s.after[i] = now
		case k.gone != nil:
			r.Log.Warn("subscriber is back in the configuration and starts at now; it has no event of the time between",
				"subscriber", name, "gone_since", *k.gone, "last_position", k.position, "lsn", s.horizon)
			s.after[i] = now
		default:
			s.after[i] = k.position
		}
	}
	return r.savePositions(ctx, s, s.after)
}

// savePositions writes where each subscriber of the configuration starts, and since when the others are
// gone.
func (r *Relay) savePositions(ctx context.Context, s *session, after []event.Position) error {
	return postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		if err := r.fence.Hold(ctx, tx); err != nil {
			return err
		}
		return r.savePositionsTx(ctx, tx, s, after)
	})
}

func (r *Relay) savePositionsTx(ctx context.Context, tx pgx.Tx, s *session, after []event.Position) error {
	names := r.names()
	for i, name := range names {
		_, err := tx.Exec(ctx, `
			INSERT INTO walpost.subscribers (slot, name, system_id, timeline, secured_epoch, secured_commit, secured_ordinal)
			VALUES ($1, $2, $3, $4, $5, $6::text::pg_lsn, $7)
			ON CONFLICT (slot, name) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline,
			    secured_epoch = excluded.secured_epoch, secured_commit = excluded.secured_commit,
			    secured_ordinal = excluded.secured_ordinal, gone_at = NULL, last_seen = now(), updated_at = now()`,
			r.Slot, name, s.system.ID, s.system.Timeline, after[i].Epoch, after[i].Commit.String(), after[i].Ordinal)
		if err != nil {
			return fmt.Errorf("write position of subscriber %q: %w", name, err)
		}
	}
	_, err := tx.Exec(ctx, `
		UPDATE walpost.subscribers SET gone_at = now(), updated_at = now()
		WHERE slot = $1 AND gone_at IS NULL AND name <> ALL ($2)`, r.Slot, names)
	if err != nil {
		return fmt.Errorf("write which subscribers are gone: %w", err)
	}
	return nil
}

// positions are where the subscribers stand: everything up to secured is finished or owed, everything up
// to finished is not even owed.
type positions struct {
	names             []string
	secured, finished []event.Position
}

func positionsOf(tracker *ack.Tracker, names []string) *positions {
	p := &positions{names: names}
	for i := range names {
		// Debt first: what is owed by then is secured at the latest now.
		finished := tracker.Secured(i)
		if owed := tracker.OwesSince(i); owed != nil && owed.Compare(finished) <= 0 {
			finished = *owed
			finished.Ordinal--
		}
		p.secured = append(p.secured, tracker.Secured(i))
		p.finished = append(p.finished, finished)
	}
	return p
}

// write raises the recorded positions; they never go back.
func (p *positions) write(ctx context.Context, tx pgx.Tx, slot string) error {
	var epochs [2][]int32
	var commits [2][]string
	var ordinals [2][]int64
	for j, list := range [2][]event.Position{p.secured, p.finished} {
		for _, position := range list {
			epochs[j] = append(epochs[j], position.Epoch)
			commits[j] = append(commits[j], position.Commit.String())
			ordinals[j] = append(ordinals[j], position.Ordinal)
		}
	}
	_, err := tx.Exec(ctx, `
		UPDATE walpost.subscribers s SET
		    secured_epoch = n.se, secured_commit = n.sc::pg_lsn, secured_ordinal = n.so,
		    finished_epoch = n.fe, finished_commit = n.fc::pg_lsn, finished_ordinal = n.fo,
		    last_seen = now(), updated_at = now()
		FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[], $6::int[], $7::text[], $8::bigint[])
		     AS n(name, se, sc, so, fe, fc, fo)
		WHERE s.slot = $1 AND s.name = n.name
		  AND (s.secured_epoch, s.secured_commit, s.secured_ordinal) <= (n.se, n.sc::pg_lsn, n.so)`,
		slot, p.names, epochs[0], commits[0], ordinals[0], epochs[1], commits[1], ordinals[1])
	if err != nil {
		return fmt.Errorf("record positions of the subscribers: %w", err)
	}
	return nil
}

// recordRetained makes all rows that the tables have a debt of one subscriber that is new to the slot.
// What the stream brings of them once more is looked up until it is past this moment, which moves the
// horizon. (docs/postgres.md §5, B)
func (r *Relay) recordRetained(ctx context.Context, s *session, subscriber int) error {
	begun := time.Now()
	name := r.Subscriptions[subscriber].Subscriber.Name()
	r.Log.Info("subscriber is new to this slot and starts at the beginning", "subscriber", name)
	from, err := r.awaitRunning(ctx, "the new subscriber")
	if err != nil {
		return err
	}
	var rows int64
	err = postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) (err error) {
		if err := r.fence.Hold(ctx, tx); err != nil {
			return err
		}
		rows, err = r.recordRows(ctx, tx, s, recording{from: from, retained: true, meant: func(i int) bool { return i == subscriber }})
		return err
	})
	if err == nil {
		s.horizon, err = wal.End(ctx, r.Pool)
	}
	if err != nil {
		return fmt.Errorf("record the rows before subscriber %q: %w", name, err)
	}
	r.Log.Info("rows before the subscriber are recorded as owed and sent first", "subscriber", name, "rows", rows, "took", time.Since(begun))
	return nil
}
