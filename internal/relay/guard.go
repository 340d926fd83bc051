package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/jackc/pgx/v5"
)

// debtInHand is how many deliveries of a debt a process can have in hand (lane reads no more at once).
const debtInHand = 1000

// quarantineLimit is how often a process must have ended with the same event in hand for that to be its
// doing, and no chance.
const quarantineLimit = 2

// quarantined is a delivery that was in hand when the process ended.
type quarantined struct {
	Subscriber string `json:"subscriber"`
	Source     string `json:"source"`
	EventID    string `json:"event_id"`
	Occurrence string `json:"occurrence"`
	// Times is how many processes ended with it in hand, as far as is known.
	Times int `json:"times"`
}

func (s *quarantined) is(subscriber string, ev *event.Event) bool {
	return s != nil && s.Times >= quarantineLimit && s.same(subscriber, ev)
}

func (s *quarantined) same(subscriber string, ev *event.Event) bool {
	return s != nil && s.Subscriber == subscriber && event.Identity{Source: s.Source, ID: s.EventID, Occurrence: s.Occurrence} == ev.Identity()
}

// guard lets one event at a time through and writes down which one, so that the event that ends the
// process is known afterwards.
type guard struct {
	*base
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

func newGuard(b *base, found *quarantined) *guard {
	g := &guard{base: b, found: found, free: make(chan struct{}, 1), handed: make(map[string]*handed)}
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
	return g.inTerm(ctx, func(tx pgx.Tx) error { return store.WriteInHand(ctx, tx, g.Slot, text) })
}

// guarded makes a subscriber go through the guard. It takes no batches then.
type guarded struct {
	subscriber.Subscriber
	guard *guard
}

// Handle writes the event down, hands it over, and writes down that it came back.
func (c guarded) Handle(ctx context.Context, d subscriber.Delivery) error {
	return c.inTurn(ctx, ctx, d, func() error { return c.Subscriber.Handle(ctx, d) })
}

// inTurn hands a delivery over when no other one is in hand, if that is before turn ends.
func (c guarded) inTurn(ctx, turn context.Context, d subscriber.Delivery, handOver func() error) error {
	select {
	case <-c.guard.free:
	case <-turn.Done():
		return fmt.Errorf("wait for the event in hand: %w", context.Cause(turn))
	}
	defer func() { c.guard.free <- struct{}{} }()
	inHand := &quarantined{Subscriber: c.Name(), Source: d.Source, EventID: d.ID, Occurrence: d.Occurrence, Times: 1}
	if c.guard.found.same(c.Name(), d.Event) {
		inHand.Times = c.guard.found.Times + 1
	}
	if err := c.guard.write(ctx, inHand); err != nil {
		return err
	}
	err := handOver()
	c.guard.count(c.Name(), d)
	clear, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementLimit)
	defer cancel()
	return errors.Join(err, c.guard.write(clear, nil))
}

// guardedPipeline is guarded for a pipeline. Its lane sends one delivery at a time.
type guardedPipeline struct {
	guarded
	pipe    subscriber.Pipeline
	timeout time.Duration // of the wait for the event in hand
}

// Send returns when its deliveries are reported, one after the other.
func (c guardedPipeline) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	for i, d := range deliveries {
		turn, cancel := context.WithTimeout(ctx, c.timeout)
		err := c.inTurn(ctx, turn, d, func() error {
			reported := make(chan error, 1)
			c.pipe.Send(ctx, []subscriber.Delivery{d}, func(_ int, err error) { reported <- err })
			return <-reported
		})
		cancel()
		done(i, err)
	}
}

func (c guardedPipeline) Abort(ctx context.Context) error { return c.pipe.Abort(ctx) }

// guarding lets a subscriber go through the guard, one delivery at a time.
func (g *guard) guarding(sub subscriber.Subscriber, options lane.Options) (subscriber.Subscriber, lane.Options) {
	one := guarded{sub, g}
	pipe, ok := sub.(subscriber.Pipeline)
	if !ok {
		return one, options
	}
	options.Batch, options.InFlight = 1, 1
	return guardedPipeline{one, pipe, options.Timeout}, options
}
