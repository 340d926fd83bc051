package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/lease"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
	"github.com/backendstart/walpost/migrations"
)

// session is one replication connection and what was found when it was opened.
type session struct {
	conn        *wal.Conn
	key         store.Key         // by which it is recorded as the one that has the slot
	slot        *wal.Slot         // as it was found, nil if there was none
	record      *store.SlotRecord // what was known of it, nil if nothing
	published   slot.Published
	system      wal.System
	epoch       int32
	confirmed   event.LSN         // where the slot stands
	fingerprint store.Fingerprint // what is recorded of what is published
	writers     []slot.Writer     // a second pass over the tables waits for their end
	begun       time.Time         // when it was found out what to do about the slot
	tables      []*outbox.Table
	budget      int64             // bytes of WAL that debt may hold
	horizon     event.LSN         // end of the WAL when we took the lead
	end         event.LSN         // of the WAL, not all of it flushed, when the positions were read
	known       map[string]stored // what is recorded of subscribers, in the configuration or not
	members     []member          // who gets what, by number in the tracker; nil until it is known
}

// changed is why what is in memory does not fit the slot or the database any more. Then it yields: the rooms
// end what is in a handler, and are built again from what the database says.
type changed struct {
	reason string
	// unreadable: the slot is there and does not bring any more what it should, so it has to be replaced.
	unreadable bool
	// writersEnded: the transactions that a second pass has to wait for have ended.
	writersEnded bool
}

func (c *changed) Error() string { return c.reason }

// Is lets lanes know it as a reason to hand nothing more over.
func (c *changed) Is(target error) bool { return target == lane.ErrYield }

func asChanged(err error) *changed {
	var c *changed
	switch {
	case errors.As(err, &c):
		return c
	case errors.Is(err, store.ErrChanged), errors.Is(err, store.ErrFenced):
		return &changed{reason: err.Error()}
	}
	return nil
}

// errChangedMeanwhile means that what was found is not so any more. The next attempt finds what is.
var errChangedMeanwhile = errors.New("something has changed meanwhile")

// waits between attempts to reach Postgres.
var reconnect = lane.Backoff{Initial: 500 * time.Millisecond, Max: 15 * time.Second}

// waiting is the longest wait while another session has the slot: it may end at any moment, and then no one
// delivers.
const waiting = 2 * time.Second

// waits before everything is built once more. Nothing is delivered meanwhile, and a repair makes progress
// even when the slot is lost again: what it has recorded stays recorded.
var rebuild = lane.Backoff{Initial: 500 * time.Millisecond, Max: 2 * time.Second}

// steady is how long a stream must have run for the next wait to be a short one again.
const steady = 10 * time.Second

// openUntilReady opens a session, again and again while Postgres is away or another session holds the
// slot. It returns nil without an error when ctx ends first.
func (r *Relay) openUntilReady(ctx context.Context, open func(context.Context) (*session, error)) (*session, error) {
	var said time.Time
	for failures := 1; ; failures++ {
		r.awaitLead(ctx)
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
		r.setState(state, err)
		if failures <= 3 || time.Since(said) >= reconnect.Max {
			said = time.Now()
			r.Log.Warn("cannot stream, will try again", "state", state, "attempt", failures, "wait", wait, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// final returns err if it is one that no retry fixes, and nil otherwise. A message that cannot be
// understood is one: it would come again, and nothing after it may be confirmed.
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
// Invariant, with a lease and without, however many relays of the slot there are and wherever one of them is
// killed, frozen or cut off: from lead on, what the relay knows of the slot and of its record in walpost.slots
// changes by no one's hand but its own, or else whatever it does next fails. Two rules make it so.
//
//   - Only the session whose key is recorded in walpost.leader makes, drops and reads the slot, and only its own
//     commands do so. A key is recorded in place of that of a session that has ended, and with it all that it could
//     still have done to the slot or confirmed. (claim)
//   - Only a transaction that holds the term writes the record, the positions or the debt, and the term is raised
//     only while the own key is recorded. It is held from the transaction's first statement on, so the next leader
//     waits for its end and reads what it has left: the slot is still as it says, since no one else could touch it.
//
// So a relay that lost its session while it recorded the rows may still commit that the slot is ready, and it is; one
// that comes later finds it fenced. One that was frozen between claim and term does not get the term. A key is never
// taken from a session that lives, except with a lease: of two relays one builds, however long that takes, and the
// other waits with wal.ErrSlotInUse. They do not undo each other's work in turn.
func (r *Relay) open(ctx context.Context, why *changed) (_ *session, err error) {
	s, err := r.find(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	if !r.leads() {
		return nil, errNoLead
	}
	if err := r.lead(ctx, s); err != nil {
		return nil, err
	}
	if err := r.carryOver(ctx); err != nil {
		return nil, err
	}
	if err := r.carryOverSources(ctx, s); err != nil {
		return nil, err
	}
	if err := r.readSubscribers(ctx, s); err != nil {
		return nil, err
	}
	s.epoch = slot.Epoch(s.record, s.system)
	if err := r.prepareSlot(ctx, s, why); err != nil {
		return nil, err
	}
	taking, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if err := s.conn.Start(taking, r.Slot, r.Publication); err != nil {
		return nil, err
	}
	if !r.leads() { // making a slot can take long
		return nil, errNoLead
	}
	if err := r.fence.Check(taking, r.Pool); err != nil {
		return nil, err
	}
	if s.members == nil {
		if err := r.startPositions(ctx, s); err != nil { // for a subscriber that begins with all rows it takes long
			return nil, err
		}
	}
	// After the positions were written and flushed: what the flushed end of the WAL is now, the stream reaches, and
	// everything that a subscriber which has left may still have to get lies below it.
	s.horizon, err = wal.End(ctx, r.Pool)
	return s, err
}

// reopen opens the next session after one that broke. In between the server may have become another one, or
// the slot another slot, and the rooms hold events of the one that was: then the error is a changed.
func (r *Relay) reopen(ctx context.Context, last *session) (_ *session, err error) {
	s, err := r.find(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	r.mu.Lock()
	tracker := r.tracker
	r.mu.Unlock()
	switch {
	case s.record == nil || s.record.State != store.SlotReady || s.record.Confirmed < tracker.Confirmed():
		return nil, &changed{reason: "the database has gone back: it does not know what was recorded"}
	case s.slot == nil:
		return nil, &changed{reason: "the slot is gone"}
	case s.system != last.system:
		return nil, &changed{reason: fmt.Sprintf("the connection leads to another server or timeline (%s/%d, now %s/%d)",
			last.system.ID, last.system.Timeline, s.system.ID, s.system.Timeline)}
	}
	if err := r.readEnd(ctx, s); err != nil {
		return nil, err
	}
	s.writers = last.writers
	facts, err := r.gatherFacts(ctx, s, nil)
	if err != nil {
		return nil, err
	}
	switch plan, err := slot.Diagnose(facts); {
	case err != nil:
		return nil, &changed{reason: err.Error()}
	case plan.Kind != slot.Stream:
		return nil, &changed{reason: plan.Reason}
	}
	if err := r.recordPublished(ctx, s); err != nil {
		return nil, err
	}
	s.epoch, s.confirmed = s.record.Epoch, s.slot.Confirmed
	taking, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if err := s.conn.Start(taking, r.Slot, r.Publication); err != nil {
		return nil, err
	}
	return s, r.fence.Check(taking, r.Pool)
}

// find connects, claims the slot and finds out what there is. It makes nothing.
func (r *Relay) find(ctx context.Context) (_ *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	s := &session{}
	if err := migrations.Check(ctx, r.Pool, migrations.Walpost); err != nil {
		return nil, err
	}
	if s.slot, err = wal.FindSlot(ctx, r.Pool, r.Slot); err != nil {
		return nil, err
	}
	if err := wal.Preflight(ctx, r.Pool, s.slot != nil); err != nil {
		return nil, err
	}
	if s.slot != nil {
		if err := s.slot.Check(); err != nil {
			return nil, err
		}
		if s.slot.Active && s.slot.Confirmed != 0 {
			// Nothing is touched that belongs to whoever reads it. After a broken connection that can be
			// our own last session, until the server notices.
			if err := r.evict(ctx, s.slot.ActivePID); err != nil {
				return nil, err
			}
		}
	}
	if s.conn, err = wal.Connect(ctx, r.ReplicationURL, r.application()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	if err := r.checkPlace(ctx, s.conn); err != nil { // before anything is made that would stay there
		return nil, err
	}
	if err := r.claim(ctx, s); err != nil {
		return nil, err
	}
	if s.slot, err = r.awaitFree(ctx); err != nil { // no relay changes it from here on
		return nil, err
	}
	if s.record, err = store.ReadSlotRecord(ctx, r.Pool, r.Slot); err != nil {
		return nil, err
	}
	if s.tables, err = r.inspect(ctx); err != nil {
		return nil, err
	}
	if s.published, err = slot.ReadPublished(ctx, r.Pool, r.Publication, r.Sources); err != nil {
		return nil, err
	}
	if s.budget = r.WALBudget; s.budget == Auto {
		if s.budget, err = wal.DefaultBudget(ctx, r.Pool); err != nil {
			return nil, err
		}
	}
	if s.system, err = s.conn.Identify(ctx); err != nil {
		return nil, err
	}
	r.owed.Use(s.tables)
	return s, nil
}

// checkPlace makes sure that the replication connection leads to where the pool leads.
func (r *Relay) checkPlace(ctx context.Context, conn *wal.Conn) error {
	theirs, err := conn.Place(ctx)
	if err != nil {
		return err
	}
	ours, err := wal.PlaceOf(ctx, r.Pool)
	if err != nil {
		return err
	}
	return theirs.Same(ours)
}

// checkLease is checkPlace for the session of the lease. A pool that does not answer is no reason against it.
func (r *Relay) checkLease(ctx context.Context, session lease.Session) error {
	theirs, err := wal.PlaceOf(ctx, session)
	if err != nil {
		return err
	}
	if _, away := r.reach.silence(); away != nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, reachInterval)
	defer cancel()
	ours, err := wal.PlaceOf(limited, r.Pool)
	if err != nil {
		return nil
	}
	return theirs.Same(ours)
}

// inspect looks up the tables of the sources.
func (r *Relay) inspect(ctx context.Context) ([]*outbox.Table, error) {
	var tables []*outbox.Table
	for _, source := range r.Sources {
		if source.Messages != "" {
			continue
		}
		table, err := source.Inspect(ctx, r.Pool)
		if err != nil {
			if postgres.Unavailable(err) {
				return nil, err
			}
			return nil, &wal.SetupError{Problem: err.Error(), Fix: "change the table, or what the configuration says of the source (table, columns), and start again"}
		}
		for _, warning := range table.Warnings() {
			r.Log.Warn(warning)
		}
		table.OnMissing = func(gone, replaced int) { r.noteMissing(source.Name, gone, replaced) }
		tables = append(tables, table)
	}
	return tables, nil
}

// noteMissing counts rows that were not marked because they are gone, or hold other events. A service that deletes its
// rows does that all day: the log says it once.
func (r *Relay) noteMissing(source string, gone, replaced int) {
	if gone > 0 {
		r.metrics.gone.WithLabelValues(source).Add(float64(gone))
		if _, said := r.saidGone.LoadOrStore(source, true); !said {
			r.Log.Warn("rows are gone that were to be marked as published: their service deletes them; what is still to be delivered when the slot is lost is in no table then",
				"source", source, "rows", gone, "counted_in", "walpost_rows_gone_total")
		}
	}
	if replaced == 0 {
		return
	}
	r.metrics.replaced.Add(float64(replaced))
	r.Log.Warn("rows hold other events than those that were to be marked: an id or a primary key came again; they are not marked for them", "source", source, "rows", replaced)
}

func (r *Relay) messageSources() []*outbox.Source {
	var messages []*outbox.Source
	for _, source := range r.Sources {
		if source.Messages != "" {
			messages = append(messages, source)
		}
	}
	return messages
}

// alive reports whether the server still serves the replication connection with that pid.
func (r *Relay) alive(ctx context.Context, pid uint32) bool {
	found, err := wal.FindSlot(ctx, r.Pool, r.Slot)
	return err == nil && found != nil && found.ActivePID == int(pid)
}
