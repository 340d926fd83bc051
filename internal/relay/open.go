package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
	"github.com/backendstart/walpost/migrations"
)

// waiting is the longest wait while another session has the slot: it may end at any moment, and then no one
// delivers.
const waiting = 2 * time.Second

// steady is how long a stream must have run for the next wait to be a short one again.
const steady = 10 * time.Second

// opener opens the sessions of the replication connection.
type opener struct {
	*base
	lead    *leadership
	members *membership
	renames *renamer
	repairs *repairer
}

// openUntilReady calls open until it succeeds: Postgres may be away, or another session may hold the slot. It returns nil
// without an error when ctx ends first.
func (o *opener) openUntilReady(ctx context.Context, open func(context.Context) (*session, error)) (*session, error) {
	var said time.Time
	for failures := 1; ; failures++ {
		o.lead.awaitLead(ctx)
		s, err := open(ctx)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		if err := final(err); err != nil {
			return nil, err
		}
		wait := reconnect.Wait(failures)
		state := Reconnecting
		if errors.Is(err, wal.ErrSlotInUse) {
			state, wait = Waiting, min(wait, waiting)
		}
		if errors.Is(err, errNoLead) {
			continue
		}
		o.condition.setState(state, err)
		if failures <= 3 || time.Since(said) >= reconnect.Max {
			said = time.Now()
			o.Log.Warn("cannot stream, will try again", "state", state, "attempt", failures, "wait", wait, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// final returns err if no retry can fix it, and nil otherwise. A message that cannot be decoded is such an error: it would
// come again, and nothing after it may be confirmed.
func final(err error) error {
	var setup *wal.SetupError
	switch {
	case asChanged(err) != nil:
		return err
	case errors.Is(err, errNoLead), errors.Is(err, errChangedMeanwhile):
		return nil
	case errors.Is(err, slot.ErrNoTable): // while it is made again under its old name
		return nil
	case errors.Is(err, wal.ErrStandby), errors.Is(err, wal.ErrElsewhere): // in a failover
		return nil
	case err == nil, errors.Is(err, wal.ErrSlotInUse), errors.Is(err, wal.ErrShutdown), errors.Is(err, wal.ErrConnection):
		return nil
	case errors.As(err, &setup), errors.Is(err, migrations.ErrBehind), errors.Is(err, migrations.ErrAhead):
		return err
	case postgres.Unavailable(err), postgres.Code(err) != "":
		return nil
	}
	return err
}

// open prepares everything in the only right order: checks, tables, publication, slot, and makes or repairs
// what is missing. why is the change after which everything is opened again, nil at the start. (docs/postgres.md §4:
// what is found, and what is done)
//
// Invariant, with a lease and without, for any number of relays of one slot, each of which may be killed, frozen or cut
// off anywhere: after leadership.beginTerm, either nothing but this relay changes the slot and its record in
// walpost.slots, or this relay's next write fails. Two rules make it so.
//
//   - Only the session whose key is recorded in walpost.leader makes, drops and reads the slot. Another session records
//     its own key only after that session has ended, and a session that has ended can neither change the slot nor
//     confirm anything any more. (leadership.claim)
//   - Only a transaction that holds the term writes the record, the positions or the debt, and only the session whose
//     key is recorded raises the term. A transaction holds the term from its first statement on. The next leader waits
//     for its end and reads what it wrote; that still describes the slot, because no one else could touch it.
//
// Three consequences. A relay that lost its session while it recorded the rows may still commit that the slot is ready,
// and that is true; if it commits later, it is fenced. A relay that was frozen between claim and beginTerm does not get
// the term. Without a lease no one takes the key from a session that lives: of two relays one makes the slot, however
// long that takes, and the other waits with wal.ErrSlotInUse, so they never undo each other's work in turn.
func (o *opener) open(ctx context.Context, why *changed) (_ *session, err error) {
	s, err := o.connectAndClaim(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	if !o.lead.leads() {
		return nil, errNoLead
	}
	if err := o.lead.beginTerm(ctx, s); err != nil {
		return nil, err
	}
	if err := o.renames.carryOver(ctx); err != nil {
		return nil, err
	}
	if err := o.renames.carryOverSources(ctx, s); err != nil {
		return nil, err
	}
	if err := o.members.readSubscribers(ctx, s); err != nil {
		return nil, err
	}
	s.epoch = slot.Epoch(s.record, s.system)
	if err := o.repairs.prepareSlot(ctx, s, why); err != nil {
		return nil, err
	}
	if err := o.recordKnownBy(ctx, s); err != nil {
		return nil, err
	}
	taking, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if err := s.conn.Start(taking, o.Slot, o.Publication); err != nil {
		return nil, err
	}
	if !o.lead.leads() { // making a slot can take long
		return nil, errNoLead
	}
	if err := o.fence.Check(taking, o.Pool); err != nil {
		return nil, err
	}
	if s.members == nil {
		if err := o.members.startPositions(ctx, s); err != nil { // for a subscriber that begins with all rows it takes long
			return nil, err
		}
	}
	// After the positions were written and flushed: what the flushed end of the WAL is now, the stream reaches, and
	// everything that a subscriber which has left may still have to get lies below it.
	s.horizon, err = wal.End(ctx, o.Pool)
	return s, err
}

// reopen opens the next session after one that broke. In between the server may have become another one, or
// the slot another slot, while memory holds events of the former one: then the error is a changed.
func (o *opener) reopen(ctx context.Context, last *session, confirmed event.LSN) (_ *session, err error) {
	s, err := o.connectAndClaim(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	switch {
	case s.record == nil || s.record.State != store.SlotReady || s.record.Confirmed < confirmed:
		return nil, &changed{reason: "the database has gone back: it does not know what was recorded"}
	case s.slot == nil:
		return nil, &changed{reason: "the slot is gone"}
	case s.system != last.system:
		return nil, &changed{reason: fmt.Sprintf("the connection leads to another server or timeline (%s/%d, now %s/%d)",
			last.system.ID, last.system.Timeline, s.system.ID, s.system.Timeline)}
	}
	if err := o.members.readEnd(ctx, s); err != nil {
		return nil, err
	}
	s.writers = last.writers
	facts, err := o.repairs.gatherFacts(ctx, s, nil)
	if err != nil {
		return nil, err
	}
	switch plan, err := slot.Diagnose(facts); {
	case err != nil:
		return nil, &changed{reason: err.Error()}
	case plan.Kind != slot.Stream:
		return nil, &changed{reason: plan.Reason}
	}
	if err := o.recordPublished(ctx, s); err != nil {
		return nil, err
	}
	s.epoch, s.confirmed = s.record.Epoch, s.slot.Confirmed
	taking, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if err := s.conn.Start(taking, o.Slot, o.Publication); err != nil {
		return nil, err
	}
	return s, o.fence.Check(taking, o.Pool)
}

// connectAndClaim connects, claims the slot for the new session, and reads the state of server, slot and tables. It ends
// the session of a former leader if that still has the slot. It changes neither slot nor tables.
func (o *opener) connectAndClaim(ctx context.Context) (_ *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	s := &session{}
	if err := migrations.Check(ctx, o.Pool, migrations.Walpost); err != nil {
		return nil, err
	}
	if s.slot, err = wal.FindSlot(ctx, o.Pool, o.Slot); err != nil {
		return nil, err
	}
	if err := wal.Preflight(ctx, o.Pool, s.slot != nil); err != nil {
		return nil, err
	}
	if s.slot != nil {
		if err := s.slot.Check(); err != nil {
			return nil, err
		}
		if s.slot.Active && s.slot.Confirmed != 0 {
			// Nothing is touched that belongs to the reader of the slot. After a broken connection that can be
			// our own last session, until the server notices.
			if err := o.lead.evict(ctx, s.slot.ActivePID); err != nil {
				return nil, err
			}
		}
	}
	if s.conn, err = wal.Connect(ctx, o.ReplicationURL, o.lead.application()); err != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(o.ReplicationOption, "replication_url"), err)
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	if err := o.lead.checkPlace(ctx, s.conn); err != nil { // before anything is made that would stay there
		return nil, err
	}
	if err := o.lead.claim(ctx, s); err != nil {
		return nil, err
	}
	if s.slot, err = o.lead.awaitFree(ctx); err != nil { // no relay changes it from here on
		return nil, err
	}
	if s.record, err = store.ReadSlotRecord(ctx, o.Pool, o.Slot); err != nil {
		return nil, err
	}
	if s.tables, err = o.inspect(ctx, s.record); err != nil {
		return nil, err
	}
	if s.published, err = slot.ReadPublished(ctx, o.Pool, o.Publication, o.Sources); err != nil {
		return nil, err
	}
	if s.budget = o.WALBudget; s.budget == Auto {
		if s.budget, err = wal.DefaultBudget(ctx, o.Pool); err != nil {
			return nil, err
		}
	}
	o.metrics.showBudget(s.budget)
	if s.system, err = s.conn.Identify(ctx); err != nil {
		return nil, err
	}
	o.owed.Use(s.tables)
	return s, nil
}

// alive reports whether the slot is still served by the WAL sender with that pid.
func (o *opener) alive(ctx context.Context, pid uint32) bool {
	found, err := wal.FindSlot(ctx, o.Pool, o.Slot)
	return err == nil && found != nil && found.ActivePID == int(pid)
}

// restartIfReadableAgain decides what to do about a stream that cannot be read. Rows that were written while their table
// had another name or lacked a column stay unreadable in the WAL, even after a person has fixed the table. Once the table
// is right, the slot is made again, because the table has every event that the stream would bring. Until then err is
// returned, for the person.
func (o *opener) restartIfReadableAgain(ctx context.Context, err error) error {
	var mismatch *dispatch.MismatchError
	if !errors.As(err, &mismatch) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if tables, inspectErr := o.inspect(ctx, nil); inspectErr != nil || !o.publishes(ctx, tables) {
		return err
	}
	return &changed{unreadable, fmt.Sprintf("the stream has rows from when a table was not as it is now (%v)", mismatch)}
}

// publishes reports whether the publication carries the tables now, with all columns that are needed, and no
// others: then a new slot brings nothing that cannot be read.
func (o *opener) publishes(ctx context.Context, tables []*outbox.Table) bool {
	all, err := wal.PublishedTables(ctx, o.Pool, o.Publication)
	if err != nil || len(all) != len(tables) {
		return false
	}
	for _, p := range all {
		fits := false
		for _, table := range tables {
			if table.Source.Schema == p.Schema && table.Source.Table == p.Table {
				_, err := table.Layout(p.Columns)
				fits = p.Columns == nil || err == nil
			}
		}
		if !fits {
			return false
		}
	}
	return true
}
