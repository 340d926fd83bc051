package relay

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// Kinds of repair. Either way every unpublished row of the tables becomes a debt, so that nothing is lost
// whatever the stream lacks. (docs/postgres.md §4 and §5)
const (
	slotAnew = "anew" // A: the slot is lost; a new one begins where the snapshot of the rows ends
	slotKept = "kept" // B: the slot is there; what it brings of the rows once more is known by their ids
)

// repair is what is to be done because the stream may have a hole.
type repair struct {
	kind, reason string
	adopt        bool // the slot was prepared by somebody else and never read by us
	// only are the subscribers whose positions are not believed, where nothing else is wrong: the stream has no hole,
	// so the others go on where they were. Empty is all.
	only  []string
	begun time.Time
}

// findOrMakeSlot compares the slot that the server has with what we know about it, and does what is to be
// done.
func (r *Relay) findOrMakeSlot(ctx context.Context, s *session, why *changed) error {
	s.epoch = 1
	if s.record != nil {
		s.epoch = s.record.nextEpoch(s.system)
	}
	if s.slot == nil && s.record == nil {
		_, err := r.makeSlot(ctx, s, nil)
		return err
	}
	fix, err := r.diagnose(ctx, s, why)
	if err != nil {
		return err
	}
	if fix == nil {
		fix = r.doubt(s)
	}
	if fix == nil {
		s.confirmed = s.slot.Confirmed
		return nil
	}
	return r.repair(ctx, s, fix)
}

// diagnose says which repair is needed, nil for none. (docs/postgres.md §4)
func (r *Relay) diagnose(ctx context.Context, s *session, why *changed) (*repair, error) {
	slot, rec := s.slot, s.record
	fix := func(kind, format string, args ...any) (*repair, error) {
		return &repair{kind: kind, reason: fmt.Sprintf(format, args...), begun: time.Now()}, nil
	}
	switch {
	case rec == nil:
		found, _ := fix(slotKept, "slot %q was prepared by somebody else; it is used from %v on and never dropped", r.Slot, slot.Confirmed)
		found.adopt = true
		return found, nil
	case rec.state == store.SlotCreating: // no row has been taken from it yet
		return fix(slotAnew, "making slot %q broke off", r.Slot)
	case slot == nil:
		return fix(slotAnew, "slot %q is gone", r.Slot)
	case slot.Lost():
		return fix(slotAnew, "slot %q is lost: the server has removed what it needed (wal_status %q %s)", r.Slot, slot.WALStatus, slot.Invalidation)
	case s.published.Made:
		return fix(slotAnew, "publication %q was gone, and slot %q brings nothing of one that is younger", r.Publication, r.Slot)
	case why != nil && why.anew:
		return fix(slotAnew, "%s", why.reason)
	case rec.system != s.system:
		return fix(slotKept, "this is not the server or timeline that slot %q was read from (%s/%d, now %s/%d)",
			r.Slot, rec.system.ID, rec.system.Timeline, s.system.ID, s.system.Timeline)
	case rec.confirmed > s.end:
		return fix(slotKept, "%v is recorded as confirmed of slot %q, beyond %v, the end of the WAL: that cannot be, so it is not believed", rec.confirmed, r.Slot, s.end)
	case slot.Confirmed > rec.confirmed:
		return fix(slotKept, "slot %q stands at %v, beyond the %v that was recorded: somebody else moved it or made it anew", r.Slot, slot.Confirmed, rec.confirmed)
	}
	if rec.fingerprint != s.fingerprint {
		if holes, err := r.holes(ctx, s.tables, rec.fingerprint, s.fingerprint); err != nil || holes {
			if err != nil {
				return nil, err
			}
			return fix(slotKept, publicationReason)
		}
		return nil, r.published(ctx, s.tables, rec.fingerprint, s.fingerprint)
	}
	return nil, nil
}

// doubt is the repair for subscribers whose positions are not believed, nil if all are.
func (r *Relay) doubt(s *session) *repair {
	names := s.doubted()
	if len(names) == 0 {
		return nil
	}
	reasons := make([]string, len(names))
	for i, name := range names {
		reasons[i] = fmt.Sprintf("what is recorded of subscriber %q is not believed: %s", name, s.known[name].doubt)
	}
	return &repair{kind: slotKept, reason: strings.Join(reasons, "; "), only: names, begun: time.Now()}
}

// repair closes the hole, or says why a person has to.
func (r *Relay) repair(ctx context.Context, s *session, fix *repair) (err error) {
	known, err := store.HasSubscribers(ctx, r.Pool, r.Slot)
	if err != nil {
		return err
	}
	if known && !fix.adopt {
		if err := r.mayRepair(ctx, s, fix); err != nil {
			return err
		}
		r.setState(Repairing, &changed{reason: fix.reason})
		r.Log.Warn("the stream may have a hole; repairing it from the table", "slot", r.Slot, "kind", fix.kind, "reason", fix.reason)
	} else if !known && fix.kind == slotAnew {
		fix = nil // the first creation broke off: this is still the first
	}
	var rows int64
	if fix == nil || fix.kind == slotAnew {
		rows, err = r.makeSlot(ctx, s, fix)
	} else {
		rows, err = r.keepSlot(ctx, s, fix)
	}
	if err != nil || fix == nil {
		return err
	}
	r.metrics.repairs.WithLabelValues(fix.kind).Inc()
	r.Log.Warn("repaired: every unpublished row is recorded as owed and sent from there", "slot", r.Slot, "kind", fix.kind,
		"reason", fix.reason, "rows", rows, "took", time.Since(fix.begun))
	return nil
}

// mayRepair refuses what a person has to decide.
func (r *Relay) mayRepair(ctx context.Context, s *session, fix *repair) error {
	if fix.kind == slotAnew && !s.record.ours {
		return &wal.SetupError{
			Problem: fmt.Sprintf("%s, and walpost did not make it, so it does not replace it", fix.reason),
			Fix: fmt.Sprintf("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %[1]s; "+
				"SELECT pg_create_logical_replication_slot(%[1]s, 'pgoutput'); then start walpost again: it sends every unpublished row first", quoteLiteral(r.Slot))}
	}
	if r.StopOnLostSlot {
		waiting, err := outbox.CountUnpublished(ctx, r.Pool, s.tables)
		if err != nil {
			return err
		}
		return &wal.SetupError{
			Problem: fmt.Sprintf("%s. What committed after %v may be missing from the stream; %d rows of the tables are unpublished", fix.reason, s.record.confirmed, waiting),
			Fix:     "start walpost once with --on-lost-slot=repair (WALPOST_ON_LOST_SLOT): every unpublished row is recorded as owed and sent, some perhaps for the second time"}
	}
	if len(fix.only) > 0 { // the stream is whole, and brings them again what it has not confirmed
		return nil
	}
	for _, source := range r.messageSources() {
		r.Log.Error("messages have no table: what the stream lacks of them is lost", "source", source.Name, "after", s.record.confirmed)
	}
	for _, table := range s.tables {
		if !table.Marks() && !table.Source.RepairAll {
			return &wal.SetupError{
				Problem: fmt.Sprintf("%s. Rows of source %q are not marked when they are delivered, so nobody knows which of them are missing after %v", fix.reason, table.Source.Name, s.record.confirmed),
				Fix: fmt.Sprintf("set repair: all for the source to send all rows that its table has, again; or go on without them: "+
					"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %[1]s; "+
					"DELETE FROM walpost.slots WHERE slot = %[1]s; DELETE FROM walpost.subscribers WHERE slot = %[1]s", quoteLiteral(r.Slot))}
		}
	}
	return nil
}

// keepSlot records the rows that wait as debt and goes on with the slot as it is. What it brings of them is
// looked up until it is past the moment of the snapshot.
//
// Before the snapshot it waits for all transactions that are running: one whose commit waits for a
// synchronous standby is in the WAL, and perhaps behind the slot, and in no snapshot; and one that wrote
// while its table was not published is not in the stream whenever it commits. (docs/postgres.md §5, B)
func (r *Relay) keepSlot(ctx context.Context, s *session, fix *repair) (rows int64, err error) {
	from, err := r.awaitRunning(ctx, "the repair")
	if err != nil {
		return 0, err
	}
	s.confirmed = s.slot.Confirmed
	rows, err = r.ready(ctx, s, fix, func(tx pgx.Tx) (int64, error) {
		meant := r.recipients(s, func(name string, _ bool) bool {
			k, known := s.known[name]
			switch {
			case fix.adopt:
				return true
			case len(fix.only) > 0:
				return k.doubt != ""
			}
			return known && (k.goneAt == "" || len(k.wants) > 0) // who is new, or comes back, starts at now
		})
		rows, err := r.recordRows(ctx, tx, s, recording{from: from, repair: !fix.adopt, some: len(fix.only) > 0, to: meant})
		switch {
		case err != nil:
			return rows, err
		case !fix.adopt:
			return rows, r.restartPositions(ctx, tx, s)
		}
		s.members = r.atTheBeginning(s)
		return rows, r.savePositions(ctx, tx, s, s.members)
	})
	if err != nil {
		return rows, fmt.Errorf("record the rows that wait beside slot %q: %w", r.Slot, err)
	}
	return rows, nil
}

// awaitRunning waits until every transaction that is running now has ended. It returns where in the WAL the
// others begin: what committed below it is in every snapshot from now on.
//
// It takes a transaction id to know which are older. The end of a snapshot would not do: it comes after the last
// that has ended, and one that still runs can be younger than that.
func (r *Relay) awaitRunning(ctx context.Context, what string) (from event.LSN, err error) {
	var text, next string
	err = r.Pool.QueryRow(ctx, `SELECT pg_catalog.pg_current_wal_insert_lsn()::text`).Scan(&text)
	if err == nil { // in this order: what gets its id in between is waited for, too
		err = r.Pool.QueryRow(ctx, `SELECT pg_catalog.pg_current_xact_id()::text`).Scan(&next)
	}
	if err == nil {
		from, err = event.ParseLSN(text)
	}
	if err != nil {
		return 0, fmt.Errorf("look for running transactions: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go r.sayWhoIsWaitedFor(ctx, what, ended)
	for {
		var over bool
		err := r.Pool.QueryRow(ctx, `SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) >= $1::text::xid8`, next).Scan(&over)
		if err != nil {
			return 0, fmt.Errorf("look for running transactions: %w", err)
		}
		if over {
			return from, nil
		}
		pause(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return 0, fmt.Errorf("wait for running transactions: %w", context.Cause(ctx))
		}
	}
}
