package relay

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
)

// slotMaker makes the slot, and records what is true once it is ready.
type slotMaker struct {
	*base
	members *membership
	rows    *rowDebts
}

// make makes the slot and records the rows that waited before it, at the first start and in a repair. That it is
// being made is committed first, so that a creation that broke off is known to be one; that it is ready is committed
// together with the debt. It returns how many rows there were.
//
// The debt comes from the snapshot that belongs to the slot's first position: nothing is missing between
// the debt and the stream, and nothing is in both. (docs/postgres.md §5, A) What keeps a second relay from doing the same
// meanwhile, open says.
func (m *slotMaker) make(ctx context.Context, s *session, plan slot.Plan) (rows int64, err error) {
	if err := m.begin(ctx, s); err != nil {
		return 0, err
	}
	if plan.Drop { // one of ours that is lost, or that a creation which broke off has left
		m.Log.Info("dropping the slot", "slot", m.Slot, "wal_status", s.slot.WALStatus)
		if err := s.conn.Drop(ctx, m.Slot); err != nil {
			return 0, err
		}
	}
	ended := make(chan struct{})
	go m.sayWhoIsWaitedFor(ctx, "creating the slot", ended)
	created, err := s.conn.CreateSlot(ctx, m.Slot)
	close(ended)
	if err != nil {
		return 0, err
	}
	m.Log.Info("slot created", "slot", m.Slot, "consistent_point", created.ConsistentPoint)
	s.confirmed = created.ConsistentPoint
	members := m.members.atTheBeginning(s) // nothing is before the slot but the debt, so who has left has left now
	for i := range members {               // what committed before is finished or recorded now, so it is secured
		members[i].after = event.Position{Epoch: s.epoch, Commit: s.confirmed - 1, Ordinal: math.MaxInt64}
	}
	begun := time.Now()
	at := event.Position{Epoch: s.epoch, Commit: s.confirmed - 1} // no commit has it, because those are 8-aligned
	rows, err = m.ready(ctx, s, plan, func(tx pgx.Tx) (int64, error) {
		fresh := m.rows.recipients(s, func(name string, beginning bool) bool { _, known := s.known[name]; return beginning && !known })
		if len(fresh) > 0 {
			_, _, err := m.rows.record(ctx, tx, s, recording{snapshot: created.Snapshot, at: at, tables: s.tables, retained: true, to: fresh})
			if err != nil {
				return 0, err
			}
		}
		others := m.rows.recipients(s, func(name string, beginning bool) bool { _, known := s.known[name]; return !beginning || known })
		rows, _, err := m.rows.record(ctx, tx, s, recording{snapshot: created.Snapshot, at: at, tables: s.tables, repair: plan.Kind == slot.Replace, to: others})
		if err != nil {
			return 0, err
		}
		return rows, m.members.savePositions(ctx, tx, s, members)
	})
	if err != nil {
		return rows, fmt.Errorf("record the rows that waited before slot %q: %w", m.Slot, err)
	}
	s.members = members
	m.members.logDepartures(s)
	if plan.Kind == slot.Create && rows > 0 {
		m.Log.Info("rows that waited before the slot existed are recorded as owed and sent first", "rows", rows, "took", time.Since(begun))
	}
	return rows, nil
}

// begin records that the slot is being made.
func (m *slotMaker) begin(ctx context.Context, s *session) error {
	err := m.inTerm(ctx, func(tx pgx.Tx) error { return store.WriteCreating(ctx, tx, s.recordOf(m.Slot)) })
	if err != nil {
		return err
	}
	m.fence.Restart(0)
	return nil
}

// ready makes rows a debt and records, in the same transaction, that the slot is ready. The transaction is part
// of the leadership from its first statement on, so that the next leader waits for its end and does not begin the
// same meanwhile.
func (m *slotMaker) ready(ctx context.Context, s *session, plan slot.Plan, record func(pgx.Tx) (rows int64, err error)) (rows int64, err error) {
	err = m.inTerm(ctx, func(tx pgx.Tx) error {
		if rows, err = record(tx); err != nil {
			return err
		}
		return m.readyTx(ctx, tx, s, plan, rows)
	})
	if err == nil {
		m.fence.Restart(s.confirmed)
	}
	return rows, err
}

// readyTx records where the slot stands and what is published, and why there was a repair.
func (m *slotMaker) readyTx(ctx context.Context, tx pgx.Tx, s *session, plan slot.Plan, rows int64) error {
	if err := store.WriteReady(ctx, tx, s.recordOf(m.Slot)); err != nil {
		return err
	}
	// Once more, now that what is claimed counts: until here another slot could take it.
	if err := m.claimTablesTx(ctx, tx, s); err != nil {
		return err
	}
	if !plan.Repairs() || plan.Second {
		return nil
	}
	facts := map[string]any{"kind": plan.Kind, "rows": rows, "confirmed": s.confirmed.String(), "took_seconds": time.Since(s.begun).Seconds()}
	if s.record != nil {
		facts["confirmed_before"] = s.record.Confirmed.String()
	}
	if err := store.NoteByRelay(ctx, tx, m.Slot, m.holder(), "repair", facts, plan.Reason); err != nil && ctx.Err() == nil {
		m.metrics.notes.Inc()
		m.Log.Error("cannot note the repair in walpost.audit; the repair goes on", "facts", facts, "reason", plan.Reason, "err", err)
	}
	return nil
}
