package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/lease"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// errNoLead is why a relay with a lease waits.
var errNoLead = errors.New("the relay does not lead")

// leadership is how the relay becomes the only one that touches the slot, and for how long it is.
type leadership struct {
	*base
	reach *reach
}

// leads reports whether the relay may act at this moment. One without a lease is the only one of its slot.
func (l *leadership) leads() bool { return l.Lease == nil || l.Lease.Valid() }

// mayBegin is leads for a new attempt: while the lease does not answer it is in doubt. (lease.Lease.MayBegin)
func (l *leadership) mayBegin() (may bool, again <-chan struct{}) {
	if l.Lease == nil {
		return true, nil
	}
	return l.Lease.MayBegin()
}

// awaitLead returns when the relay leads, or when ctx ends, and says meanwhile who does.
func (l *leadership) awaitLead(ctx context.Context) {
	if l.Lease == nil {
		return
	}
	for waited := false; ; waited = true {
		lease := l.Lease.State()
		if lease.Held {
			if waited {
				l.condition.setState(Starting, nil) // what follows can take long: checks, publication, slot
			}
			return
		}
		state, why := Reconnecting, fmt.Errorf("%w: %s", errNoLead, lease.Why)
		switch {
		case !lease.Asked: // it asks at this moment
			state, why = Starting, nil
		case lease.Reached:
			state = Waiting
		}
		l.condition.setState(state, why)
		select {
		case <-lease.Changed:
		case <-time.After(time.Second): // the reason may be another one now
		case <-ctx.Done():
			return
		}
	}
}

// release lets a standby lead at once.
func (l *leadership) release() {
	if l.Lease != nil {
		l.Lease.Release()
	}
}

// lookAtLanes is how often it is looked whether a lane has suspended itself.
const lookAtLanes = time.Second

// keepLead lets the lanes act only while the relay leads. A lease that was lost and got again changes
// nothing if no one else has led in between; if someone has, what is in memory is of no use any more. The
// same is looked up for a lane that has suspended itself.
func (l *leadership) keepLead(ctx context.Context, lanes []*lane.Lane, stop context.CancelCauseFunc) {
	if l.Lease == nil {
		return
	}
	checked := 0 // the lease under which the lanes may act
	for {
		lease := l.Lease.State()
		again := lookAtLanes
		if checked > 0 && slices.ContainsFunc(lanes, (*lane.Lane).Suspended) {
			checked = 0
		}
		switch {
		case !lease.Held && checked != -1:
			checked = -1
			for _, each := range lanes {
				each.Suspend()
			}
			l.Pool.Reset() // its connections may be as dead as that of the lease, and not know it either
			if ctx.Err() == nil {
				l.Log.Warn("the lease is lost; nothing is handed over until it is got again", "slot", l.Slot, "why", lease.Why)
			}
		case lease.Held && checked != lease.Acquired:
			limited, cancel := context.WithTimeout(ctx, statementLimit)
			go func() { // the lanes are suspended when the lease is lost, also while nothing answers
				select {
				case <-lease.Changed:
					cancel()
				case <-limited.Done():
				}
			}()
			err := l.fence.Check(limited, l.Pool)
			cancel()
			switch why := asChanged(err); {
			case why != nil:
				stop(why)
				return
			case err != nil:
				again = 200 * time.Millisecond // Postgres is away once more
			default:
				if checked == -1 {
					l.Log.Info("the lease is held again, and no one else has led meanwhile", "slot", l.Slot)
				}
				checked = lease.Acquired
				for _, each := range lanes {
					each.Resume()
				}
			}
		}
		select {
		case <-lease.Changed:
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

// claim makes the session the only one that touches the slot, or returns wal.ErrSlotInUse. Its key is recorded in
// place of that of the last session, once that one has ended: a lock alone could be anyone's. (docs/postgres.md §8)
func (l *leadership) claim(ctx context.Context, s *session) error {
	s.key = store.NewKey()
	if err := s.conn.ShowLife(ctx, int64(s.key)); err != nil {
		return err
	}
	var leader string // "" for any
	if l.Lease != nil {
		leader = l.Lease.Holder()
	}
	evicted := false
	for deadline := time.Now().Add(claimLimit); ; pause(ctx, 20*time.Millisecond) {
		var last store.Reader
		err := postgres.InTx(ctx, l.Pool, func(tx pgx.Tx) (err error) {
			if last, err = store.FindReader(ctx, tx, l.Slot); err != nil || last.PID != 0 {
				return err
			}
			return store.ClaimReader(ctx, tx, l.Slot, leader, last.Key, s.key)
		})
		switch {
		case l.Lease != nil && last.Key != 0 && last.Holder != leader: // another one has led, perhaps without a lease
			l.Lease.StepDown(0)
			return errNoLead
		case err != nil:
			return overtaken(err)
		case last.PID == 0:
			return nil
		case l.Lease != nil && !evicted:
			if err := l.evict(ctx, last.PID); err != nil {
				return err
			}
			evicted = true
		case time.Now().After(deadline) || ctx.Err() != nil: // one that is just ending is waited for
			return fmt.Errorf("%w: pid %d", wal.ErrSlotInUse, last.PID)
		}
	}
}

// claimLimit is how long a session that ends may take until that is seen.
const claimLimit = time.Second

// overtaken makes of another relay that was faster one that is waited for.
func overtaken(err error) error {
	if errors.Is(err, store.ErrOvertaken) {
		return fmt.Errorf("%w: %w", wal.ErrSlotInUse, err)
	}
	return err
}

// beginTerm begins a leadership of the session that has claimed the slot, and reads what is recorded: nothing that an
// earlier process has left on the server can change that any more.
func (l *leadership) beginTerm(ctx context.Context, s *session) (err error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if err := l.fence.Lead(ctx, l.Pool, l.holder(), s.key, l.Lease != nil); err != nil {
		return overtaken(err)
	}
	// The session that answers has not ended, so its key was there all the time: no one has claimed the slot since.
	if s.system, err = s.conn.Identify(ctx); err != nil {
		return err
	}
	s.record, err = store.ReadSlotRecord(ctx, l.Pool, l.Slot)
	return err
}

// evict ends the session that has the slot, if that is a relay which does not lead any more, or our own
// last session, of which the server has not noticed yet that it is gone. Any other session that has the slot is left
// alone.
func (l *leadership) evict(ctx context.Context, pid int) error {
	inUse := fmt.Errorf("%w: pid %d", wal.ErrSlotInUse, pid)
	if l.Lease == nil || !l.Lease.Valid() {
		return inUse
	}
	application, ended, err := store.EndRelaySession(ctx, l.Pool, pid)
	if err != nil {
		return inUse // it has ended by itself, or is no one's that we may see
	}
	if !ended {
		return fmt.Errorf("%w, application %q: that is no relay: end it, or choose another slot", inUse, application)
	}
	l.Log.Warn("ended the session that still had the slot", "slot", l.Slot, "pid", pid, "application", application)
	_, err = l.awaitFree(ctx)
	return err
}

// awaitFree looks the slot up until no one has it. An ended session lets go of the lock a moment before.
func (l *leadership) awaitFree(ctx context.Context) (*wal.Slot, error) {
	for deadline := time.Now().Add(evictLimit); ; pause(ctx, 20*time.Millisecond) {
		slot, err := wal.FindSlot(ctx, l.Pool, l.Slot)
		if err != nil || slot == nil {
			return nil, err
		}
		if !slot.Active {
			return slot, slot.Check()
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w: pid %d", wal.ErrSlotInUse, slot.ActivePID)
		}
	}
}

// evictLimit is how long an ended session may take to let go of the slot before that is tried again.
const evictLimit = 2 * time.Second

// application is what the replication session is called.
func (l *leadership) application() string {
	if l.Lease != nil {
		return l.Lease.Application()
	}
	return "walpost/" + l.Slot
}

// checkPlace makes sure that the replication connection leads to where the pool leads.
func (l *leadership) checkPlace(ctx context.Context, conn *wal.Conn) error {
	theirs, err := conn.Place(ctx)
	if err != nil {
		return err
	}
	ours, err := wal.PlaceOf(ctx, l.Pool)
	if err != nil {
		return err
	}
	return theirs.Same(ours)
}

// checkLease is checkPlace for the session of the lease. A pool that does not answer is no reason against it.
func (l *leadership) checkLease(ctx context.Context, session lease.Session) error {
	theirs, err := wal.PlaceOf(ctx, session)
	if err != nil {
		return err
	}
	if _, away := l.reach.silence(); away != nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, reachInterval)
	defer cancel()
	ours, err := wal.PlaceOf(limited, l.Pool)
	if err != nil {
		return nil
	}
	return theirs.Same(ours)
}

// watchReach asks until ctx ends. A leader that cannot reach Postgres through its pool can record nothing, and nothing
// is confirmed; where another relay can, that one shall lead. What every relay would meet (a lock, a refused mark, a
// full disk, a commit that waits for a standby) is no reason: each handover delivers the window again.
func (l *leadership) watchReach(ctx context.Context) {
	defer l.reach.probe.Close()
	rest, recorded := firstRest, l.fence.Records()
	ticker := time.NewTicker(reachInterval)
	defer ticker.Stop()
	for {
		l.reach.askThroughPool(ctx)
		if silent, why := l.reach.silence(); silent >= giveUpAfter && l.Lease.Valid() && l.anotherStandsBy(ctx) {
			if now := l.fence.Records(); now != recorded {
				rest, recorded = firstRest, now
			}
			l.Log.Error("the lead is given up: the relay's own connections do not reach Postgres, and another relay stands by",
				"slot", l.Slot, "silent", silent.Round(time.Second), "asks_again_after", rest, "err", why)
			l.Lease.StepDown(rest)
			rest = min(2*rest, longestRest)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *leadership) anotherStandsBy(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	yes, err := l.Lease.StandsBy(ctx)
	return yes && err == nil
}
