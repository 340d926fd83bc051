package relay

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// record is what walpost.slots says about the slot.
type record struct {
	system      wal.System
	epoch       int32
	confirmed   event.LSN
	fingerprint string
	state       store.SlotState
	ours        bool // whether we made the slot, and may drop it
}

// nextEpoch is the epoch of positions on a server: it grows when the server becomes another one.
func (rec *record) nextEpoch(system wal.System) int32 {
	if rec.system.ID != system.ID {
		return rec.epoch + 1
	}
	return rec.epoch
}

func loadRecord(ctx context.Context, pool *postgres.Pool, slot string) (*record, error) {
	found, err := store.ReadSlotRecord(ctx, pool, slot)
	if err != nil || found == nil {
		return nil, err
	}
	return &record{wal.System{ID: found.SystemID, Timeline: found.Timeline}, found.Epoch, found.Confirmed, found.Fingerprint, found.State, found.Ours}, nil
}

// recordOf is what is to be recorded of the slot as the session found it.
func (s *session) recordOf(slot string) store.SlotRecord {
	return store.SlotRecord{Name: slot, SystemID: s.system.ID, Timeline: s.system.Timeline, Epoch: s.epoch, Confirmed: s.confirmed, Fingerprint: s.fingerprint}
}

// makeSlot makes the slot and records the rows that waited before it, at the first start and in a repair
// (fix is nil at the first start). That it is being made is committed first, so that a creation that broke
// off is known to be one; that it is ready is committed together with the debt. It returns how many rows
// there were.
//
// The debt comes from the snapshot that belongs to the slot's first position: nothing is missing between
// the debt and the stream, and nothing is in both. (docs/postgres.md §5, A) What keeps a second relay from doing the same
// meanwhile, open says.
func (r *Relay) makeSlot(ctx context.Context, s *session, fix *repair) (rows int64, err error) {
	if err := r.begin(ctx, s); err != nil {
		return 0, err
	}
	if s.slot != nil { // one of ours that is lost, or that a creation which broke off has left
		r.Log.Info("dropping the slot", "slot", r.Slot, "wal_status", s.slot.WALStatus)
		if err := s.conn.Drop(ctx, r.Slot); err != nil {
			return 0, err
		}
	}
	ended := make(chan struct{})
	go r.sayWhoIsWaitedFor(ctx, "creating the slot", ended)
	created, err := s.conn.CreateSlot(ctx, r.Slot)
	close(ended)
	if err != nil {
		return 0, err
	}
	r.Log.Info("slot created", "slot", r.Slot, "consistent_point", created.ConsistentPoint)
	s.confirmed = created.ConsistentPoint
	members := r.atTheBeginning(s) // nothing is before the slot but the debt, so who has left has left now
	for i := range members {       // what committed before is finished or recorded now, so it is secured
		members[i].after = event.Position{Epoch: s.epoch, Commit: s.confirmed - 1, Ordinal: math.MaxInt64}
	}
	begun := time.Now()
	rows, err = r.ready(ctx, s, fix, func(tx pgx.Tx) (int64, error) {
		fresh := r.recipients(s, func(name string, beginning bool) bool { _, known := s.known[name]; return beginning && !known })
		if len(fresh) > 0 {
			_, err := r.recordRows(ctx, tx, s, recording{snapshot: created.Snapshot, from: created.ConsistentPoint, retained: true, to: fresh})
			if err != nil {
				return 0, err
			}
		}
		others := r.recipients(s, func(name string, beginning bool) bool { _, known := s.known[name]; return !beginning || known })
		rows, err := r.recordRows(ctx, tx, s, recording{snapshot: created.Snapshot, from: created.ConsistentPoint, repair: fix != nil, to: others})
		if err != nil {
			return 0, err
		}
		return rows, r.savePositions(ctx, tx, s, members)
	})
	if err != nil {
		return rows, fmt.Errorf("record the rows that waited before slot %q: %w", r.Slot, err)
	}
	s.members = members
	r.logDepartures(s)
	if fix == nil && rows > 0 {
		r.Log.Info("rows that waited before the slot existed are recorded as owed and sent first", "rows", rows, "took", time.Since(begun))
	}
	return rows, nil
}

// begin records that the slot is being made.
func (r *Relay) begin(ctx context.Context, s *session) error {
	err := postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		if err := r.fence.Hold(ctx, tx); err != nil {
			return err
		}
		return store.WriteCreating(ctx, tx, s.recordOf(r.Slot))
	})
	if err != nil {
		return err
	}
	r.fence.Restart(0)
	return nil
}

// ready makes rows a debt and records, in the same transaction, that the slot is ready. The transaction is part
// of the leadership from its first statement on, so that the next leader waits for its end and does not begin the
// same beside it.
func (r *Relay) ready(ctx context.Context, s *session, fix *repair, record func(pgx.Tx) (rows int64, err error)) (rows int64, err error) {
	err = postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		if err := r.fence.Hold(ctx, tx); err != nil {
			return err
		}
		if rows, err = record(tx); err != nil {
			return err
		}
		return r.readyTx(ctx, tx, s, fix, rows)
	})
	if err == nil {
		r.fence.Restart(s.confirmed)
	}
	return rows, err
}

// readyTx records where the slot stands and what is published, and why there was a repair.
func (r *Relay) readyTx(ctx context.Context, tx pgx.Tx, s *session, fix *repair, rows int64) error {
	if err := store.WriteReady(ctx, tx, s.recordOf(r.Slot)); err != nil {
		return err
	}
	// Once more, now that what is claimed counts: until here another slot could take it.
	if err := r.claimTablesTx(ctx, tx, s); err != nil {
		return err
	}
	if fix == nil {
		return nil
	}
	facts := map[string]any{"kind": fix.kind, "rows": rows, "confirmed": s.confirmed.String(), "took_seconds": time.Since(fix.begun).Seconds()}
	if s.record != nil {
		facts["confirmed_before"] = s.record.confirmed.String()
	}
	if err := store.NoteByRelay(ctx, tx, r.Slot, r.holder(), "repair", facts, fix.reason); err != nil && ctx.Err() == nil {
		r.metrics.notes.Inc()
		r.Log.Error("cannot note the repair in walpost.audit; the repair goes on", "facts", facts, "reason", fix.reason, "err", err)
	}
	return nil
}

// oldestSQL names the oldest transaction that has an id. Where the session of another role is hidden, its pid and role
// are not. (PostgreSQL manual, "pg_stat_activity")
const oldestSQL = `
	SELECT who FROM (
		SELECT pg_catalog.format('pid %s of role %I%s', pid, usename, ', since ' || xact_start) AS who, pg_catalog.age(backend_xid) AS age
		FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
		UNION ALL
		SELECT pg_catalog.format('prepared transaction %L of role %I, since %s', gid, owner, prepared), pg_catalog.age(transaction)
		FROM pg_catalog.pg_prepared_xacts) w ORDER BY age DESC LIMIT 1`

// sayWhoIsWaitedFor says in the log and in /ready what takes long: it waits for every transaction that was running when
// it began. Any role that can connect can have one.
func (r *Relay) sayWhoIsWaitedFor(ctx context.Context, what string, ended <-chan struct{}) {
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	setAwaited := func(problem string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.awaited = problem
	}
	defer setAwaited("")
	for begun := time.Now(); ; {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var oldest string
		if err := r.Pool.QueryRow(ctx, oldestSQL).Scan(&oldest); err != nil {
			oldest = "unknown"
		}
		setAwaited(fmt.Sprintf("%s waits for running transactions to end, for %v now; the oldest is %s: end it if it is forgotten",
			what, time.Since(begun).Round(time.Second), oldest))
		r.Log.Info(what+" waits for running transactions to end", "since", begun, "oldest", oldest)
	}
}

func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
