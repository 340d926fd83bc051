package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	// uncleanLimit is after how many unclean ends in a row, each soon after the start, the relay starts in safe mode.
	uncleanLimit = 3
	// settled is how long after its start the end of a process is soon.
	settled = 5 * time.Minute
	// debtInHand is how many deliveries of a debt a process can have in hand (lane reads no more at once).
	debtInHand = 1000
)

// settledAfter is Options.Settled or its default.
func (r *Relay) settledAfter() time.Duration {
	if r.Settled > 0 {
		return r.Settled
	}
	return settled
}

// forgetStarts takes the count of unclean ends back when the process has lived long enough. Neither a confirm nor an
// event that was delivered does: the event that ends the process may be in a debt or a replay, beside a stream that
// is well.
func (r *Relay) forgetStarts(ctx context.Context) {
	pause(ctx, r.settledAfter())
	if ctx.Err() == nil {
		r.endClean(ctx)
	}
}

// quarantined is a delivery that was in hand when the process ended.
type quarantined struct {
	Subscriber string `json:"subscriber"`
	Source     string `json:"source"`
	EventID    string `json:"event_id"`
	Occurrence string `json:"occurrence"`
	// Times is how many processes ended with it in hand, as far as is known.
	Times int `json:"times"`
}

// quarantineLimit is how often a process must have ended with the same event in hand for that to be its
// doing, and no chance.
const quarantineLimit = 2

func (s *quarantined) is(subscriber string, ev *event.Event) bool {
	return s != nil && s.Times >= quarantineLimit && s.same(subscriber, ev)
}

func (s *quarantined) same(subscriber string, ev *event.Event) bool {
	return s != nil && s.Subscriber == subscriber && event.Identity{Source: s.Source, ID: s.EventID, Occurrence: s.Occurrence} == ev.Identity()
}

// countStart notes that a process begins to use the slot. A clean stop, and a life that is long enough, take the
// count back.
func (r *Relay) countStart(ctx context.Context) (unclean int, found *quarantined, err error) {
	var text json.RawMessage
	err = postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		unclean, text, err = store.CountUncleanStart(ctx, tx, r.Slot)
		return err
	})
	switch {
	case err != nil:
		return 0, nil, err
	case text == nil || unclean < uncleanLimit:
		return unclean, nil, nil
	}
	found = new(quarantined)
	if err := json.Unmarshal(text, found); err != nil {
		return unclean, nil, fmt.Errorf("read the event that was in hand: %w", err)
	}
	return unclean, found, nil
}

// errSafeModeDone ends safe mode. It is no failure: the pipeline is built again without it.
var errSafeModeDone = &changed{reason: "everything that was in the WAL at the start is finished or owed"}

// endSafeMode ends safe mode when the process has lived long enough and everything has been handed over that earlier
// processes can have had in hand: the event that ended them is among that. The process may have been ended by
// something else, too, and one event at a time is slow.
func (r *Relay) endSafeMode(ctx context.Context, s *session, p *parts, stop context.CancelCauseFunc) {
	pause(ctx, r.settledAfter())
	for ctx.Err() == nil {
		over, err := r.handedOver(ctx, s, p)
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("cannot look what safe mode still has to hand over, will try again", "err", err)
		}
		if over && err == nil {
			stop(errSafeModeDone)
			return
		}
		pause(ctx, time.Second)
	}
}

// handedOver reports whether a window of live events, 1,000 deliveries of each debt and a page of each replay have
// been handed over, or as many as there are. A paused subscriber is handed nothing.
func (r *Relay) handedOver(ctx context.Context, s *session, p *parts) (bool, error) {
	counts, err := r.owed.Counts(ctx)
	if err != nil {
		return false, err
	}
	waiting := make(map[string]int)
	for _, c := range counts {
		if c.State == string(lane.StateWaiting) {
			waiting[c.Subscriber] = int(c.Number)
		}
	}
	replays, err := replay.NewStore(r.Pool, r.Slot, nil, nil).Open(ctx)
	if err != nil {
		return false, err
	}
	for i, l := range p.lanes {
		if l.Stats().Paused {
			continue
		}
		handed := p.guard.handedTo(l.Name())
		_, oldest := p.tracker.OpenOf(i)
		caughtUp := r.wal.Received() >= s.horizon && (oldest == nil || oldest.Position.Commit >= s.horizon)
		if !caughtUp && handed.live < r.Window.Events || handed.owed < min(debtInHand, waiting[l.Name()]) {
			return false, nil
		}
		for _, open := range replays {
			if open.Subscriber == l.Name() && handed.replayed < l.ReplayPage() {
				return false, nil
			}
		}
	}
	return true, nil
}

// guard lets one event at a time through and writes down which one, so that the event that ends the
// process is known afterwards.
type guard struct {
	pool  *postgres.Pool
	slot  string
	found *quarantined  // at the start
	free  chan struct{} // has a token while no event is in hand

	mu     sync.Mutex
	handed map[string]*handed // by subscriber; guarded by mu
}

// handed counts the different events that a subscriber was given.
type handed struct {
	live, owed, replayed int
	owedIDs              map[event.Identity]bool // at most debtInHand
}

func newGuard(pool *postgres.Pool, slot string, found *quarantined) *guard {
	g := &guard{pool: pool, slot: slot, found: found, free: make(chan struct{}, 1), handed: make(map[string]*handed)}
	g.free <- struct{}{}
	return g
}

// count notes that a subscriber has come back from an event. An owed event that fails is handed over again and
// again; it counts once.
func (g *guard) count(name string, d subscriber.Delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.handed[name]
	if h == nil {
		h = &handed{owedIDs: make(map[event.Identity]bool)}
		g.handed[name] = h
	}
	switch {
	case d.Replay:
		h.replayed++
	case d.Owed && len(h.owedIDs) < debtInHand && !h.owedIDs[d.Identity()]:
		h.owedIDs[d.Identity()] = true
		h.owed++
	case !d.Owed && d.Attempt == 1:
		h.live++
	}
}

func (g *guard) handedTo(name string) handed {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.handed[name]; h != nil {
		return *h
	}
	return handed{}
}

// write notes what is in hand; nil is nothing.
func (g *guard) write(ctx context.Context, s *quarantined) error {
	var text json.RawMessage
	if s != nil {
		var err error
		if text, err = json.Marshal(s); err != nil {
			return fmt.Errorf("write down the event in hand: %w", err)
		}
	}
	return postgres.InTx(ctx, g.pool, func(tx pgx.Tx) error { return store.WriteInHand(ctx, tx, g.slot, text) })
}

// guarded makes a subscriber go through the guard. It takes no batches then.
type guarded struct {
	subscriber.Subscriber
	guard *guard
}

// Handle writes the event down, hands it over, and writes down that it came back.
func (c guarded) Handle(ctx context.Context, d subscriber.Delivery) error {
	select {
	case <-c.guard.free:
	case <-ctx.Done():
		return fmt.Errorf("wait for the event in hand: %w", context.Cause(ctx))
	}
	defer func() { c.guard.free <- struct{}{} }()
	inHand := &quarantined{Subscriber: c.Name(), Source: d.Source, EventID: d.ID, Occurrence: d.Occurrence, Times: 1}
	if c.guard.found.same(c.Name(), d.Event) {
		inHand.Times = c.guard.found.Times + 1
	}
	if err := c.guard.write(ctx, inHand); err != nil {
		return err
	}
	err := c.Subscriber.Handle(ctx, d)
	c.guard.count(c.Name(), d)
	clear, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementLimit)
	defer cancel()
	return errors.Join(err, c.guard.write(clear, nil))
}

// endClean notes that the process ended as it was told to.
func (r *Relay) endClean(ctx context.Context) {
	err := postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error { return store.ForgetStarts(ctx, tx, r.Slot) })
	if err != nil {
		r.Log.Warn("cannot note that this was a clean stop", "err", err)
	}
}
