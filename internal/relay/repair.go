package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/wal"
)

// repairer makes, repairs or adopts the slot.
type repairer struct {
	*base
	members *membership
	rows    *rowDebts
	maker   *slotMaker
}

// prepareSlot makes the slot ready to be streamed: it gathers the facts, plans, and carries the plan out. Nothing is
// changed before the plan is made, so that what is refused leaves the publication and the slot as they were. why is what
// a session before this one has met, nil at the start.
func (r *repairer) prepareSlot(ctx context.Context, s *session, why *changed) error {
	s.begun = time.Now()
	facts, err := r.gatherFacts(ctx, s, why)
	if err != nil {
		return err
	}
	plan, err := slot.Diagnose(facts)
	if err != nil {
		return err
	}
	r.logPlan(plan)
	if err := r.alterPublication(ctx, s, plan); err != nil {
		return err
	}
	if err := r.claimTables(ctx, s); err != nil {
		return err
	}
	if plan.Kind == slot.Stream {
		s.confirmed, s.recorded = s.slot.Confirmed, s.record.Confirmed
		return r.recordPublished(ctx, s)
	}
	var rows int64
	step := r.Tracer.Repair(ctx, string(plan.Kind), plan.Reason)
	if plan.Kind == slot.Keep {
		rows, err = r.keepSlot(ctx, s, plan)
	} else {
		rows, err = r.maker.make(ctx, s, plan)
	}
	step.EndRepair(rows, err)
	if err != nil {
		return err
	}
	r.logDone(s, plan, rows)
	return nil
}

// gatherFacts collects what the plan depends on. It changes nothing.
func (r *repairer) gatherFacts(ctx context.Context, s *session, why *changed) (slot.Facts, error) {
	f := slot.Facts{
		Name: r.Slot, Publication: r.Publication, Server: s.slot, Record: s.record, EverReady: len(s.known) > 0,
		System: s.system, End: s.end, Published: s.published, StopOnLoss: r.StopOnLostSlot, Awaiting: len(s.writers) > 0,
	}
	if why != nil {
		f.WritersEnded = why.kind == writersEnded
		if why.kind == unreadable {
			f.Unreadable = why.reason
		}
	}
	for _, name := range s.doubted() {
		f.Doubts = append(f.Doubts, slot.Doubt{Subscriber: name, Reason: s.known[name].doubt})
	}
	err := f.ReadSources(ctx, r.Pool, r.Sources, s.tables)
	return f, err
}

func (r *repairer) logPlan(plan slot.Plan) {
	switch {
	case plan.Kind == slot.Stream:
		return
	case plan.Second:
		r.Log.Info("the second pass over the tables: every transaction that the repair had to wait for has ended", "slot", r.Slot, "plan", plan.String())
		return
	case plan.Repairs() && !plan.Adopt:
		r.condition.setState(Repairing, &changed{reason: plan.Reason})
		r.Log.Warn("the stream may have a hole; repairing it from the table", "slot", r.Slot, "kind", plan.Kind, "reason", plan.Reason, "plan", plan.String())
	default:
		r.Log.Info("preparing the slot", "slot", r.Slot, "reason", plan.Reason, "plan", plan.String())
	}
	for _, source := range plan.LostMessages {
		r.Log.Error("messages have no table: what the stream lacks of them is lost", "source", source)
	}
}

func (r *repairer) logDone(s *session, plan slot.Plan, rows int64) {
	switch {
	case plan.Second:
		r.Log.Info("rows that only the second pass has found are recorded as owed", "slot", r.Slot, "rows", rows)
	case plan.Repairs():
		r.metrics.repairs.WithLabelValues(string(plan.Kind)).Inc()
		r.Log.Warn("repaired: every unpublished row is recorded as owed and sent from there", "slot", r.Slot, "kind", plan.Kind,
			"reason", plan.Reason, "rows", rows, "took", time.Since(s.begun))
	case len(plan.Added) > 0:
		r.Log.Info("sources are new to this slot; rows that waited in them are recorded as owed", "slot", r.Slot, "sources", plan.Added, "rows", rows)
	}
}

// alterPublication makes or completes the publication, and looks at it again.
func (r *repairer) alterPublication(ctx context.Context, s *session, plan slot.Plan) (err error) {
	switch {
	case plan.MakePublication:
		tables := make([]pgx.Identifier, len(s.tables))
		for i, table := range s.tables {
			tables[i] = identifier(table)
		}
		if s.slot != nil {
			r.Log.Warn("the publication was gone; it is made again", "publication", r.Publication)
		}
		err = wal.MakePublication(ctx, r.Pool, r.Publication, tables)
	case len(plan.AddTables) > 0:
		r.Log.Warn("the publication does not carry all tables of the sources; they are added", "publication", r.Publication, "plan", plan.String())
		err = wal.AddTables(ctx, r.Pool, r.Publication, plan.AddTables)
	}
	if err != nil {
		return err
	}
	if s.published, err = slot.ReadPublished(ctx, r.Pool, r.Publication, r.Sources); err != nil {
		return err
	}
	s.fingerprint = s.compare().Record(s.published.Now, nil)
	return nil
}

// keepSlot records the rows that wait as debt and goes on with the slot as it is. What it brings of them is looked up
// until it is past the moment of the snapshot.
//
// A row that was written while its table was not published is not in the stream, whenever its transaction commits; and
// one whose commit waits for a synchronous standby is in the WAL, and perhaps behind the slot, and in no snapshot. Such
// transactions are known before the snapshot is taken: whatever else wrote before it is in it. When they have ended, a
// second pass finds their rows. A source without marks cannot be passed over twice, so its transactions are waited for
// before the first pass. (docs/postgres.md §5, B)
func (r *repairer) keepSlot(ctx context.Context, s *session, plan slot.Plan) (rows int64, err error) {
	again := func(table *outbox.Table) bool { return table.Marks() }
	lacking, added, others := s.tablesOf(plan.Lacking), s.tablesOf(plan.Added), s.tables
	others = slices.DeleteFunc(slices.Clone(others), func(table *outbox.Table) bool {
		return slices.Contains(lacking, table) || slices.Contains(added, table)
	})
	passed := slices.Concat(lacking, added)
	if once := slices.DeleteFunc(slices.Clone(passed), again); len(once) > 0 {
		if err := r.awaitWritersOf(ctx, "the repair", once); err != nil {
			return 0, err
		}
	}
	s.writers = nil
	if twice := slices.DeleteFunc(slices.Clone(passed), func(table *outbox.Table) bool { return !again(table) }); len(twice) > 0 && !plan.Second {
		if s.writers, err = slot.FindWriters(ctx, r.Pool, twice); err != nil {
			return 0, err
		}
		if len(s.writers) > 0 {
			s.fingerprint = s.compare().Record(s.published.Now, sourceNames(twice))
		}
	}
	s.confirmed = s.slot.Confirmed
	rows, err = r.maker.ready(ctx, s, plan, func(tx pgx.Tx) (rows int64, err error) {
		at, err := r.beforeTheStream(ctx, tx, s)
		if err != nil {
			return 0, err
		}
		record := func(o recording) error {
			o.at = at
			n, next, err := r.rows.record(ctx, tx, s, o)
			at, rows = next, rows+n
			return err
		}
		if len(lacking) > 0 {
			to := r.rows.recipients(s, func(name string, _ bool) bool {
				k, known := s.known[name]
				return plan.Adopt || known && (k.goneAt == "" || len(k.wants) > 0) // who is new, or comes back, starts at now
			})
			if err := record(recording{tables: lacking, repair: !plan.Adopt, to: to}); err != nil {
				return rows, err
			}
		}
		if len(added) > 0 {
			configured := r.names()
			to := r.rows.recipients(s, func(name string, _ bool) bool { return slices.Contains(configured, name) })
			if err := record(recording{tables: added, to: to}); err != nil {
				return rows, err
			}
		}
		if len(plan.Doubted) > 0 {
			to := r.rows.recipients(s, func(name string, _ bool) bool { return slices.Contains(plan.Doubted, name) })
			if err := record(recording{tables: others, repair: true, some: true, to: to}); err != nil {
				return rows, err
			}
		}
		if !plan.Adopt {
			return rows, r.members.restartPositions(ctx, tx, s)
		}
		s.members = r.members.atTheBeginning(s)
		return rows, r.members.savePositions(ctx, tx, s, s.members)
	})
	if err != nil {
		return rows, fmt.Errorf("record the rows that wait next to slot %q: %w", r.Slot, err)
	}
	return rows, nil
}

// beforeTheStream is the first position for rows that are read from the tables while the slot stays: behind all that is
// waiting already, and, unless something waits from further on in the stream, before all that the stream brings.
func (r *repairer) beforeTheStream(ctx context.Context, tx pgx.Tx, s *session) (event.Position, error) {
	names := append(slices.Collect(maps.Keys(s.known)), r.names()...)
	last, err := r.owed.LastWaiting(ctx, tx, s.epoch, names)
	return behind(last, event.Position{Epoch: s.epoch, Commit: s.slot.Confirmed - 1}), err
}

// behind is the first position for a row without one, not before from, that comes after last. A real commit is
// 8-aligned, so the last byte before the next one is free.
func behind(last, from event.Position) event.Position {
	const free = 7
	switch {
	case last.Compare(from) < 0:
		return from
	case last.Commit&free == free: // made up, too
		last.Ordinal++
		return last
	}
	return event.Position{Epoch: last.Epoch, Commit: last.Commit | free}
}

func sourceNames(tables []*outbox.Table) []string {
	names := make([]string, len(tables))
	for i, table := range tables {
		names[i] = table.Source.Name
	}
	return names
}

func identifier(table *outbox.Table) pgx.Identifier {
	return pgx.Identifier{table.Source.Schema, table.Source.Table}
}
