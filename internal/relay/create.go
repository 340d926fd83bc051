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
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
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

// nextEpoch is the epoch of positions on a server: it grows when the server becomes another one.
func (rec *record) nextEpoch(system wal.System) int32 {
	if rec.system.ID != system.ID {
		return rec.epoch + 1
	}
	return rec.epoch
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
// is known to be one; that it is ready is committed together with the debt of the rows that waited.
func (r *Relay) createSlot(ctx context.Context, s *session, epoch int32) error {
	if r.built() {
		return &wal.SetupError{
			Problem: fmt.Sprintf("slot %q vanished, or was lost, while it was read", r.Slot),
			Mend:    "start walpost again: it makes the slot anew and sends every unpublished row of the tables first"}
	}
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
	s.created, s.confirmed = true, created.ConsistentPoint
	s.after = make([]event.Position, len(r.Subscriptions))
	return r.recordWaitingRows(ctx, s, created)
}

// recordWaitingRows makes every row that was committed before the slot existed a debt of each subscriber
// that wants it, in one transaction, from the snapshot that belongs to the slot's first position: nothing
// is missing between the debt and the stream, and nothing is in both. It is the same step after a slot
// was lost. (POSTGRES §5, A)
func (r *Relay) recordWaitingRows(ctx context.Context, s *session, created wal.CreatedSlot) error {
	begun := time.Now()
	var rows int64
	err := postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		fresh, err := r.freshFromBeginning(ctx, tx)
		if err != nil {
			return err
		}
		rows, err = r.recordRows(ctx, tx, s, created.Snapshot, (*outbox.Table).Unpublished, func(i int) bool { return !fresh[i] })
		if err != nil {
			return err
		}
		if len(fresh) > 0 {
			_, err = r.recordRows(ctx, tx, s, created.Snapshot, (*outbox.Table).Retained, func(i int) bool { return fresh[i] })
			if err != nil {
				return err
			}
		}
		if err := r.savePositionsTx(ctx, tx, s, s.after); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE walpost.slots SET state = 'ready', confirmed = $2::text::pg_lsn, updated_at = now() WHERE slot = $1`,
			r.Slot, created.ConsistentPoint.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("record the rows that waited before slot %q: %w", r.Slot, err)
	}
	if rows > 0 {
		r.Log.Info("rows that waited before the slot existed are recorded as owed and sent first", "rows", rows, "took", time.Since(begun))
	}
	return nil
}

// freshFromBeginning are the subscribers that this slot has never had and that begin with all rows.
func (r *Relay) freshFromBeginning(ctx context.Context, tx pgx.Tx) (map[int]bool, error) {
	fresh := make(map[int]bool)
	for i, sub := range r.Subscriptions {
		if !sub.FromBeginning {
			continue
		}
		var known bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM walpost.subscribers WHERE slot = $1 AND name = $2)`,
			r.Slot, sub.Subscriber.Name()).Scan(&known)
		if err != nil {
			return nil, fmt.Errorf("look up subscriber %q: %w", sub.Subscriber.Name(), err)
		}
		if !known {
			fresh[i] = true
		}
	}
	return fresh, nil
}

// recordRows makes the rows that read gives a debt of the subscribers that want them and are meant. The
// rows are read from the snapshot in a transaction of their own, because they are written while they are
// read. It returns how many there were.
func (r *Relay) recordRows(ctx context.Context, tx pgx.Tx, s *session, snapshot string,
	read func(*outbox.Table, context.Context, pgx.Tx, func(*event.Event) error) error, meant func(subscriber int) bool) (int64, error) {
	// It writes only now and then, while the other transaction reads.
	if _, err := tx.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		return 0, err
	}
	begun := time.Now()
	// No real commit has this LSN: they are 8-aligned. So these events sort before the stream.
	position := event.Position{Epoch: s.epoch, Commit: s.confirmed - 1}
	debts := newWaitingRows(r, tx, meant)
	err := postgres.InSnapshot(ctx, r.Pool, snapshot, func(reading pgx.Tx) error {
		for _, table := range s.tables {
			if table.Published == "" {
				r.Log.Warn("the table has no published column, so nobody knows which of its rows wait; none is sent", "source", table.Source.Name)
				continue
			}
			err := read(table, ctx, reading, func(ev *event.Event) error {
				ev.Source, ev.Position = table.Source.Name, position
				if ev.CommittedAt.IsZero() {
					ev.CommittedAt = begun
				}
				position.Ordinal++
				ev.Limit(r.MaxEvent)
				return debts.add(ctx, ev)
			})
			if err != nil {
				return err
			}
		}
		return debts.flush(ctx)
	})
	return position.Ordinal, err
}

// waitingRows collects events for each subscriber that wants them and records them in batches.
type waitingRows struct {
	relay *Relay
	tx    pgx.Tx
	meant func(subscriber int) bool
	owed  [][]lane.Owed // by subscriber
	bytes int
}

func newWaitingRows(r *Relay, tx pgx.Tx, meant func(subscriber int) bool) *waitingRows {
	return &waitingRows{relay: r, tx: tx, meant: meant, owed: make([][]lane.Owed, len(r.Subscriptions))}
}

func (w *waitingRows) add(ctx context.Context, ev *event.Event) error {
	for i, sub := range w.relay.Subscriptions {
		if w.meant(i) && sub.wants(ev.Source, ev.Type) {
			w.owed[i] = append(w.owed[i], lane.Owed{Event: ev})
		}
	}
	if w.bytes += ev.Size() + 100; w.bytes < 4<<20 {
		return nil
	}
	return w.flush(ctx)
}

func (w *waitingRows) flush(ctx context.Context) error {
	for i, owed := range w.owed {
		if err := w.relay.owed.RecordWaiting(ctx, w.tx, w.relay.Subscriptions[i].Subscriber.Name(), owed); err != nil {
			return err
		}
		w.owed[i] = owed[:0]
	}
	w.bytes = 0
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

func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
