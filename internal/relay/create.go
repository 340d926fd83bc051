package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/wal"
)

// States of walpost.slots.
const (
	creating = "creating" // the slot may exist, but no row was taken from it yet
	ready    = "ready"
)

// record is what walpost.slots says about the slot.
type record struct {
	system      wal.System
	epoch       int32
	confirmed   event.LSN
	fingerprint string
	state       string
}

func loadRecord(ctx context.Context, pool *pgxpool.Pool, slot string) (*record, error) {
	var rec record
	var confirmed string
	err := pool.QueryRow(ctx, `
		SELECT system_id, timeline, epoch, confirmed::text, fingerprint, state FROM walpost.slots WHERE slot = $1`, slot).
		Scan(&rec.system.ID, &rec.system.Timeline, &rec.epoch, &confirmed, &rec.fingerprint, &rec.state)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		rec.confirmed, err = event.ParseLSN(confirmed)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is recorded of slot %q: %w", slot, err)
	}
	return &rec, nil
}

// createSlot makes the slot. That it is being made is committed first, so that a creation that broke off
// is known to be one.
func (r *Relay) createSlot(ctx context.Context, s *session, epoch int32) error {
	s.epoch = epoch
	_, err := r.Pool.Exec(ctx, `
		INSERT INTO walpost.slots (slot, system_id, timeline, epoch, fingerprint, state)
		VALUES ($1, $2, $3, $4, $5, 'creating')
		ON CONFLICT (slot) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline,
		    epoch = excluded.epoch, fingerprint = excluded.fingerprint, state = 'creating',
		    confirmed = '0/0', ours = true, updated_at = now()`,
		r.Slot, s.system.ID, s.system.Timeline, epoch, s.fingerprint)
	if err != nil {
		return fmt.Errorf("record that slot %q is being made: %w", r.Slot, err)
	}
	ended := make(chan struct{})
	go r.sayWhoIsWaitedFor(ctx, ended)
	created, err := s.conn.CreateSlot(ctx, r.Slot)
	close(ended)
	if err != nil {
		return err
	}
	r.Log.Info("slot created", "slot", r.Slot, "consistent_point", created.ConsistentPoint)
	s.created, s.confirmed = &created, created.ConsistentPoint
	return nil
}

// sayWhoIsWaitedFor explains a creation that takes long: the server waits for every transaction that was
// running when it began.
func (r *Relay) sayWhoIsWaitedFor(ctx context.Context, ended <-chan struct{}) {
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for begun := time.Now(); ; {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var oldest string
		err := r.Pool.QueryRow(ctx, `
			SELECT pg_catalog.format('pid %s of %s, since %s', pid, usename, xact_start) FROM pg_catalog.pg_stat_activity
			WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid() ORDER BY xact_start LIMIT 1`).Scan(&oldest)
		if err != nil {
			oldest = "unknown"
		}
		r.Log.Info("creating the slot waits for running transactions to end", "since", begun, "oldest", oldest)
	}
}

// discardHalfMade removes what a creation that broke off may have left.
func (r *Relay) discardHalfMade(ctx context.Context, slot *wal.Slot) error {
	if slot == nil {
		return nil
	}
	if slot.Active {
		if slot.Confirmed != 0 {
			return fmt.Errorf("%w: pid %d", wal.ErrSlotInUse, slot.ActivePID)
		}
		// Still waiting to be made for a process that is gone.
		if _, err := r.Pool.Exec(ctx, `SELECT pg_catalog.pg_terminate_backend($1)`, slot.ActivePID); err != nil {
			return fmt.Errorf("end the session that was making slot %q: %w", r.Slot, err)
		}
		return fmt.Errorf("%w: ended pid %d, which was making it", wal.ErrSlotInUse, slot.ActivePID)
	}
	r.Log.Info("dropping a slot whose creation broke off", "slot", r.Slot)
	if _, err := r.Pool.Exec(ctx, `SELECT pg_catalog.pg_drop_replication_slot($1)`, r.Slot); err != nil {
		return fmt.Errorf("drop slot %q, whose creation broke off: %w", r.Slot, err)
	}
	return nil
}

// deliverWaitingRows hands over the rows that were committed before the slot existed, from the snapshot
// that belongs to its first position: nothing is missing between them and the stream, and nothing is
// there twice. They are one transaction that ends where the slot begins; only when all of them are
// finished is the slot recorded as ready, so a process that dies before begins again.
func (r *Relay) deliverWaitingRows(ctx context.Context, s *session, p *parts) error {
	begin := s.created.ConsistentPoint - 1 // no real commit has it: they are 8-aligned
	p.tracker.Begin(begin)
	var rows int64
	err := postgres.InSnapshot(ctx, r.Pool, s.created.Snapshot, func(tx pgx.Tx) error {
		for _, table := range s.tables {
			if table.Published == "" {
				continue // nobody knows which of its rows wait
			}
			err := table.Unpublished(ctx, tx, func(ev *event.Event) error {
				for !p.tracker.HasRoom() {
					select {
					case <-p.tracker.Room():
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				ev.Source = table.Source.Name
				p.dispatch.FromTable(ev, event.Position{Epoch: s.epoch, Commit: begin, Ordinal: rows})
				rows++
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("deliver the rows that waited before slot %q: %w", r.Slot, err)
	}
	p.tracker.Commit(s.created.ConsistentPoint)
	if rows > 0 {
		r.Log.Info("delivered rows that waited before the slot existed", "rows", rows)
	}
	return nil
}

func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
