// Package lane is one subscriber's queue, workers and debt. It keeps the order within a key through
// retries, batches and debt, tells an outage from a poison event, and never lets a failing event delay
// another key. It does no I/O of its own: it calls the subscriber, and an Ower where something must be
// recorded. Who hands it events is package dispatch; whom it tells that they are finished or owed is
// package ack.
//
// The files in reading order. What a lane is made of, without a lane: ordering.go and queue.go (an event, and the events of
// one key), retries.go and backlog.go (which key goes next), backoff.go and breaker.go (when to try again, and what a
// failed attempt means), slots.go, stage.go, mode.go and scope.go (what is in debt). Then lane.go (the lane), run.go (its
// life), choose.go and probe.go (what goes into a call), attempt.go (one call of the subscriber, from start to settlement)
// with outcome.go, dead.go, finish.go and observe.go, origin.go (what differs between live, owed and replayed events),
// pipeline.go (a call that is reported on delivery by delivery), lead.go (what happens while another relay may lead).
// Last the debt: standstill.go (when something falls into it), in_debt.go (what that does to keys and events), ower.go
// (where it is recorded), debt_reader.go (the goroutine that works on it), lookup.go (what is recorded already), record.go,
// pay.go, changes.go (what people change meanwhile); and replay.go (what is handed over again).
package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/slab"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Options are the settings of a subscriber.
type Options struct {
	Ordering    Ordering
	Concurrency int           // calls at the same time
	Batch       int           // events in one call, where the subscriber has HandleBatch or Send
	Timeout     time.Duration // of one call
	Backoff     Backoff
	// MaxAttempts is after how many failed attempts an event is dead, counting only those that show that the
	// event fails and not the subscriber; see breaker.counts. 0 means never.
	MaxAttempts int
	// StallAfter is how long a key may stand still before it falls into debt.
	StallAfter time.Duration
	// Standstill is how long all calls may be under way while the lane holds a full share of the window,
	// before the subscriber falls into debt. 0 is DefaultStandstill.
	Standstill time.Duration
	// InFlight is how many events a Pipeline may have that it has not reported. 0 is DefaultInFlight.
	InFlight int
	// GiveUpAfter is how long an event may fail before it is dead, even if the subscriber is away; 0 is
	// for ever.
	GiveUpAfter time.Duration
	// BlockKey keeps the later events of a key behind a dead one until a person has dealt with it.
	BlockKey bool
	// Mask takes secrets out of an error before anything of it is kept; nil changes nothing.
	Mask func(error) error
}

// masked is an error as it may be kept: what a receiver answers can hold what was sent to it.
func (o *Options) masked(err error) error {
	if err == nil || o.Mask == nil {
		return err
	}
	return o.Mask(err)
}

const (
	// overdueGrace is how long after its deadline a handler may take to notice it.
	overdueGrace = time.Second
	// warnEvery keeps a failing subscriber from filling the log.
	warnEvery = 10 * time.Second
)

// DefaultStandstill suits a destination that works or does not, as one address does. A broker whose parts
// elect a leader needs longer.
const DefaultStandstill = time.Second

// DefaultInFlight is a window of events.
const DefaultInFlight = 10_000

// Acks is told how deliveries end; fulfilled by ack.Tracker.
type Acks interface {
	Finish(ends ...ack.End)
	Secure(deliveries []*ack.Delivery)
	Secured(subscriber int) event.Position
	Owes(subscriber int, oldest, holds *event.Position)
}

// Stream tells a lane what it must know about its surroundings.
type Stream struct {
	// Term is the number of the leadership at this moment.
	Term func() int64
	// MayBegin reports whether an attempt may begin at this moment: whether we still lead. While that is in doubt it
	// returns a channel besides, and is asked again when that is closed. nil is always.
	MayBegin func() (may bool, again <-chan struct{})
	// Passed is the position up to which the stream has handed over everything that committed.
	Passed func() event.LSN
	// Horizon is the end of the WAL when this process took the lead: what committed below it may have been
	// recorded or delivered by an earlier process.
	Horizon event.LSN
	// Confirmed is what the leader before had recorded as confirmed: what committed below it was finished by all, or owed.
	// The server, and the position of the subscriber, know of it later. 0 is nothing.
	Confirmed event.LSN
	// Refuse returns why an event is to become a dead letter without being handed over, or nil.
	Refuse func(ev *event.Event) error
	// Secured is the position from which the stream goes on for this subscriber.
	Secured event.Position
	// Crowds reports whether the lane holds so much of the window that what stands still falls into debt
	// at once.
	Crowds func() bool
	// Pressed reports whether the window is full and mainly this lane's, so that the others wait for it.
	Pressed func() bool
	// Observe is told how the events of a call fared, once a call, under the lane's lock: it must return at
	// once, and keep neither attempts nor an event. nil tells no one.
	Observe func(began time.Time, took time.Duration, attempts []Attempt)
}

// Lane hands events to one subscriber. Offer may be called before and while Run runs.
//
// Invariant: of one key at most one call is under way, and no event is handed over while an earlier
// one of its key is unfinished.
type Lane struct {
	number  int // of the subscriber, in the tracker
	sub     subscriber.Subscriber
	pipe    *pipeline // sub, where it is a Pipeline; else nil
	options Options
	acks    Acks
	ower    Ower
	stream  Stream
	log     *slog.Logger
	metrics *Metrics
	made    time.Time // from when item.offered is counted
	late    error     // why the context of a handler has ended

	mu         sync.Mutex
	stage      stage                   // guarded by mu
	deliver    context.Context         // of handlers, from the stage working on; guarded by mu
	lead       context.Context         // of handlers too, and ends when the lane is suspended; guarded by mu
	unlead     context.CancelCauseFunc // ends lead; guarded by mu
	suspended  bool                    // guarded by mu
	backlog    backlog                 // guarded by mu
	retryTurn  bool                    // a retry goes before what is ready; guarded by mu
	backAgain  bool                    // the subscriber came back: what waits in the debt is due; guarded by mu
	wake       *time.Timer             // when the next retry or probe may begin; guarded by mu
	wakeAt     time.Time               // of wake, zero when it is not set; guarded by mu
	calls      map[*call]struct{}      // under way, overdue ones included; guarded by mu
	overdue    int                     // of them; guarded by mu
	slots      slots                   // of calls under way; guarded by mu
	behind     time.Duration           // age of the last event when it was offered; guarded by mu
	pressed    time.Time               // since when the others wait for this lane, zero while they do not; guarded by mu
	open       int                     // deliveries offered and neither finished nor owed; guarded by mu
	batch      int                     // events in the next call, below Options.Batch after a batch failed; guarded by mu
	retryBatch int                     // the same for calls of keys that fail; guarded by mu
	breaker    breaker                 // guarded by mu
	scope      scope                   // guarded by mu
	tried      map[*event.Event]*item  // given back by a replay after they failed; guarded by mu
	refreshNow bool                    // a person has changed something; guarded by mu
	unwanted   error                   // why the subscriber asks to be paused, until that is written; guarded by mu
	stats      Stats                   // guarded by mu
	seen       []Attempt               // scratch of observe; guarded by mu
	ends       []ack.End               // finished and not yet acknowledged; guarded by mu
	items      slab.Of[item]           // guarded by mu
	spareCalls []*call                 // for calls to come; guarded by mu
	warned     time.Time               // when a failure was last logged; guarded by mu

	deadSaid *rate.Limiter // lets lines of the log about dead letters through

	idle       chan struct{}  // gets a token when a drain may be over
	readerWake chan struct{}  // gets a token when the debt reader has something to do
	handler    sync.WaitGroup // calls under way, overdue ones included, and what a pipeline has not reported
}

// New makes the lane of a subscriber whose deliveries carry number.
func New(number int, sub subscriber.Subscriber, options Options, acks Acks, ower Ower, stream Stream, metrics *Metrics, log *slog.Logger) *Lane {
	_, batches := sub.(subscriber.BatchSubscriber)
	pipe, reports := sub.(subscriber.Pipeline)
	if options.InFlight <= 0 {
		options.InFlight = DefaultInFlight
	}
	switch {
	case options.Batch < 1 || !batches && !reports:
		options.Batch = 1
	case reports:
		options.Batch = min(options.Batch, options.InFlight)
	}
	options.Concurrency = max(1, options.Concurrency)
	if options.Standstill <= 0 {
		options.Standstill = DefaultStandstill
	}
	if options.Ordering == Total {
		options.Concurrency = 1
	}
	l := &Lane{
		number:  number,
		sub:     sub,
		options: options,
		acks:    acks,
		ower:    ower,
		stream:  stream,
		log:     log.With("subscriber", sub.Name()),
		metrics: metrics,
		made:    time.Now(),
		late:    fmt.Errorf("the handler's deadline of %v is over", options.Timeout),
		calls:   make(map[*call]struct{}),
		batch:   options.Batch, retryBatch: options.Batch,
		breaker:    breaker{backoff: options.Backoff},
		scope:      scope{lookUp: true, unread: true, counted: make(map[uint64]int), keys: make(map[string]int), blocked: make(map[string]bool), failed: make(map[*item]struct{})},
		deadSaid:   rate.NewLimiter(5, 20),
		idle:       make(chan struct{}, 1),
		readerWake: make(chan struct{}, 1),
	}
	l.backlog = newBacklog(time.Now, l.breaker.keys.since)
	if reports {
		l.pipe = &pipeline{lane: l, sub: pipe}
	}
	return l
}

// Name is the name of the subscriber.
func (l *Lane) Name() string { return l.sub.Name() }

// Wants reports whether the subscriber wants events of a type.
func (l *Lane) Wants(eventType string) bool { return l.sub.Wants(eventType) }

// Stats are counts for people; see relay.Subscriber.
type Stats struct {
	Open                    int
	Delivered, Failed, Dead uint64
	LastError               string
	BreakerOpen, Paused     bool
	// InDebt tells that the subscriber as a whole is in debt, KeysInDebt how many keys are otherwise.
	InDebt     bool
	KeysInDebt int
	// DebtError is why the debt cannot be written or read at the moment, "" when it can.
	DebtError string
	// DeadError is why the last dead letter could not be written, "" when it could: its event stays open.
	DeadError string
	// OwesSince is the position of the oldest delivery that waits in the debt, and when its event committed.
	OwesSince   *event.Position
	OwesSinceAt time.Time
	// Overdue are the ids of events whose handler has not returned although its deadline has passed.
	Overdue []string
}

// Stats returns the lane's counts at this moment.
func (l *Lane) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Open, s.BreakerOpen = l.open, l.breaker.open()
	s.InDebt, s.KeysInDebt, s.Paused = l.scope.mode.whole(), len(l.scope.keys), l.scope.mode == debtPaused
	s.Overdue = l.inWorkLocked(func(c *call) bool { return c.overdue })
	return s
}

// inWorkLocked are the ids of events that are in certain calls.
func (l *Lane) inWorkLocked(which func(*call) bool) []string {
	var ids []string
	for c := range l.calls {
		if which(c) {
			for _, it := range c.items {
				ids = append(ids, it.ev.ID)
			}
		}
	}
	return ids
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// newItemLocked makes an item; that of an event that cannot be handed over is dead already.
func (l *Lane) newItemLocked(ev *event.Event, from origin, now time.Time) *item {
	it := l.items.New(ev.Size())
	it.ev, it.origin, it.offered = ev, from, now.Sub(l.made)
	if ev.Invalid != "" {
		it.dead, it.failing().err = true, errors.New(ev.Invalid)
	} else if err := l.stream.Refuse(ev); err != nil {
		it.dead, it.failing().err = true, err
	}
	return it
}
