package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/wal"
	"github.com/backendstart/walpost/migrations"
)

// session is one replication connection and what was found when it was opened.
type session struct {
	conn        *wal.Conn
	system      wal.System
	epoch       int32
	confirmed   event.LSN // where the slot stands
	fingerprint string
	tables      []*outbox.Table
	budget      int64            // bytes of WAL that debt may hold
	created     bool             // this session made the slot
	horizon     event.LSN        // end of the WAL when we took the lead
	after       []event.Position // by subscriber: what it needs begins after it
}

// waits between attempts to reach Postgres.
var reconnect = lane.Backoff{Initial: 500 * time.Millisecond, Max: 15 * time.Second}

// steady is how long a stream must have run for the next wait to be a short one again.
const steady = 10 * time.Second

// openUntilReady opens a session, again and again while Postgres is away or another session holds the
// slot. It returns nil without an error when ctx ends first.
func (r *Relay) openUntilReady(ctx context.Context, open func(context.Context) (*session, error)) (*session, error) {
	for failures := 1; ; failures++ {
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
			state = Waiting
		}
		r.setState(state, err)
		r.Log.Warn("cannot stream, will try again", "state", state, "attempt", failures, "wait", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// final returns err if it is one that no retry mends, and nil otherwise. A message that cannot be
// understood is one: it would come again, and nothing after it may be confirmed.
func final(err error) error {
	var setup *wal.SetupError
	switch {
	case err == nil, errors.Is(err, wal.ErrSlotInUse), errors.Is(err, wal.ErrShutdown), errors.Is(err, wal.ErrConnection):
		return nil
	case errors.As(err, &setup), errors.Is(err, migrations.ErrBehind), errors.Is(err, migrations.ErrAhead):
		return err
	case postgres.Unavailable(err), postgres.Code(err) != "":
		return nil
	}
	return err
}

// open prepares everything in the only right order: checks, tables, publication, slot. (POSTGRES §4: what
// is found, and what is done)
func (r *Relay) open(ctx context.Context) (_ *session, err error) {
	s := &session{}
	// Only the making of a slot may take long.
	checks, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if err := migrations.Check(checks, r.Pool, migrations.Walpost); err != nil {
		return nil, err
	}
	slot, err := wal.FindSlot(checks, r.Pool, r.Slot)
	if err != nil {
		return nil, err
	}
	if err := wal.Preflight(checks, r.Pool, slot != nil); err != nil {
		return nil, err
	}
	if slot != nil {
		if err := slot.Check(); err != nil {
			return nil, err
		}
		if slot.Active && slot.Confirmed != 0 {
			// Nothing is touched that belongs to whoever reads it. After a broken connection that can be
			// our own last session, until the server notices.
			return nil, fmt.Errorf("%w: pid %d", wal.ErrSlotInUse, slot.ActivePID)
		}
	}
	if s.tables, err = r.inspect(checks); err != nil {
		return nil, err
	}
	if err := wal.EnsurePublication(checks, r.Pool, r.Publication, tableNames(s.tables), slot != nil); err != nil {
		return nil, err
	}
	if s.fingerprint, err = outbox.Fingerprint(checks, r.Pool, r.Publication, r.Sources); err != nil {
		return nil, err
	}
	if s.conn, err = wal.Connect(checks, r.ReplicationURL, "walpost/"+r.Slot); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	if s.system, err = s.conn.Identify(checks); err != nil {
		return nil, err
	}
	record, err := loadRecord(checks, r.Pool, r.Slot)
	if err != nil {
		return nil, err
	}
	if r.built() && record != nil && record.confirmed < r.tracker.Confirmed() {
		return nil, r.resetAdvice(fmt.Sprintf("the database has gone back: it knows %v as confirmed of slot %q, we had recorded %v", record.confirmed, r.Slot, r.tracker.Confirmed()))
	}
	if s.budget = r.WALBudget; s.budget == Auto {
		if s.budget, err = wal.DefaultBudget(checks, r.Pool); err != nil {
			return nil, err
		}
	}
	r.owed.Use(s.tables)
	if err := r.findOrCreateSlot(ctx, s, slot, record); err != nil {
		return nil, err
	}
	taking, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if err := s.conn.Start(taking, r.Slot, r.Publication); err != nil {
		return nil, err
	}
	if r.built() {
		return s, r.fence.Check(taking, r.Pool)
	}
	// Only now, with the slot in hand, is what the subscribers have and owe ours to read: nothing that an
	// earlier process has left on the server can change it any more.
	if err := r.fence.Lead(taking, r.Pool, r.holder()); err != nil {
		return nil, err
	}
	if s.horizon, err = wal.End(taking, r.Pool); err != nil {
		return nil, err
	}
	if s.created {
		return s, nil
	}
	return s, r.startPositions(taking, s)
}

// holder names this process.
func (r *Relay) holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// findOrCreateSlot compares the slot that the server has with what we know about it.
func (r *Relay) findOrCreateSlot(ctx context.Context, s *session, slot *wal.Slot, record *record) error {
	switch {
	case slot == nil && record == nil:
		return r.createSlot(ctx, s, 1)
	case record != nil && record.state == creating:
		// No row has been taken from it yet.
		if err := r.discardHalfMade(ctx, slot); err != nil {
			return err
		}
		return r.createSlot(ctx, s, record.epoch)
	case slot == nil:
		r.Log.Error("the slot is gone; making it anew and sending the unpublished rows of the tables", "slot", r.Slot, "confirmed", record.confirmed)
		return r.createSlot(ctx, s, record.nextEpoch(s.system))
	case record == nil:
		return &wal.SetupError{
			Problem: fmt.Sprintf("slot %q exists, but walpost did not make it", r.Slot),
			Mend:    "choose another name with --slot (WALPOST_SLOT), or drop it if nobody uses it: SELECT pg_drop_replication_slot(" + quoteLiteral(r.Slot) + ")"}
	case slot.Lost():
		return r.resetAdvice(fmt.Sprintf("slot %q is lost: the server has removed WAL that it needed (wal_status %q %s)", r.Slot, slot.WALStatus, slot.Invalidation))
	case record.system != s.system:
		return r.resetAdvice(fmt.Sprintf("this is not the server or timeline that slot %q was read from (%s/%d, now %s/%d)",
			r.Slot, record.system.ID, record.system.Timeline, s.system.ID, s.system.Timeline))
	case slot.Confirmed > record.confirmed:
		return r.resetAdvice(fmt.Sprintf("slot %q stands at %v, beyond the %v that walpost recorded: somebody else moved it", r.Slot, slot.Confirmed, record.confirmed))
	case record.fingerprint != s.fingerprint:
		return r.resetAdvice("what the publication carries was changed: rows may be missing from the stream")
	}
	s.epoch, s.confirmed = record.epoch, slot.Confirmed
	return nil
}

// resetAdvice stops the relay where the stream may have a hole. The outbox table is the truth: a slot
// that is made anew begins with the unpublished rows, so nothing is lost.
func (r *Relay) resetAdvice(problem string) error {
	return &wal.SetupError{Problem: problem,
		Mend: fmt.Sprintf("drop the slot (SELECT pg_drop_replication_slot(%s)) and start again: the slot is made anew and every unpublished row of the tables is sent first", quoteLiteral(r.Slot))}
}

// reopener opens the next session after one that broke. In between the server may have become another
// one, so all is checked again; but the rooms are built for the slot as it was.
func (r *Relay) reopener(last *session) func(context.Context) (*session, error) {
	return func(ctx context.Context) (*session, error) {
		s, err := r.open(ctx)
		if err != nil {
			return nil, err
		}
		if s.system != last.system {
			s.conn.Close()
			return nil, r.resetAdvice("the connection now leads to another server or timeline")
		}
		return s, nil
	}
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
			return nil, &wal.SetupError{Problem: err.Error(), Mend: "see above"}
		}
		for _, warning := range table.Warnings() {
			r.Log.Warn(warning)
		}
		tables = append(tables, table)
	}
	return tables, nil
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

func tableNames(tables []*outbox.Table) []pgx.Identifier {
	names := make([]pgx.Identifier, len(tables))
	for i, table := range tables {
		names[i] = pgx.Identifier{table.Source.Schema, table.Source.Table}
	}
	return names
}

// alive reports whether the server still serves the replication connection with that pid.
func (r *Relay) alive(ctx context.Context, pid uint32) bool {
	slot, err := wal.FindSlot(ctx, r.Pool, r.Slot)
	return err == nil && slot != nil && slot.ActivePID == int(pid)
}
