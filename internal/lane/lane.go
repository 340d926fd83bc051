// Package lane is one subscriber's queue, workers and debt. It keeps the order within a key through
// retries, batches and debt, tells an outage from a poison event, and never lets a failing event delay
// another key. It does no I/O of its own: it calls the subscriber, and an Ower where something must be
// recorded. Who hands it events is package dispatch; whom it tells that they are finished or owed is
// package ack.
//
// The files in reading order: lane.go (what a lane is), queue.go and backlog.go (order within a key), origin.go (what
// differs between live, owed and replayed events), attempt.go (one call of the subscriber, from start to settlement)
// with outcome.go, dead.go and finish.go, pipeline.go (a call that is reported on delivery by delivery), slots.go (how
// many calls there may be), backoff.go and retries.go (when to try again), breaker.go (what a failed
// attempt means) and probe.go (which event is tried while the subscriber is away), scope.go and mode.go (which events
// stand behind debt), debt_reader.go (the goroutine that records debt), pay.go (how it is
// read and paid), changes.go (what people change meanwhile), replay.go (what is handed over again), lead.go (what
// happens while another relay may lead).
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

// Ordering says which events of a subscriber wait for each other.
type Ordering string

// The orderings that a subscriber can ask for.
const (
	ByKey Ordering = "key"   // events of one key, one at a time, in commit order
	Total Ordering = "total" // all events, one at a time, in commit order
	None  Ordering = "none"  // no event waits for another one
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

// Offer queues deliveries. It never blocks: the window of the tracker bounds what is queued.
func (l *Lane) Offer(deliveries ...*ack.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += len(deliveries)
	l.metrics.open.Set(float64(l.open))
	now := time.Now()
	for _, d := range deliveries {
		it := l.newItemLocked(d.Event, liveOrigin{d}, now)
		switch {
		case l.scope.lookUp:
			l.scope.unchecked = append(l.scope.unchecked, it)
			signal(l.readerWake)
		case l.inScopeLocked(it):
			l.keepBehindDebtLocked(it)
		default:
			l.backlog.push(l.keyOf(it.ev), it)
		}
	}
	if n := len(deliveries); n > 0 {
		l.behind = now.Sub(deliveries[n-1].Event.CommittedAt)
	}
	l.startCallsLocked()
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

// Run first learns what is owed, then delivers until ctx ends, then goes on for at most drain with what
// is held, except for what only waits for its backoff. What is still open then is recorded as owed. When
// Run returns, no handler runs any more, unless it ignores its context: such ones are named and left
// behind.
func (l *Lane) Run(ctx context.Context, drain time.Duration) error {
	// Deliveries outlive ctx: a soft stop ends reading, not handling.
	deliver, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	d := newDebtReader(l)
	if err := d.loadDebt(ctx); err != nil {
		return d.recordUnopened() // ctx ended first; nothing was handed over
	}
	l.mu.Lock()
	l.stage.begin()
	l.deliver = deliver
	l.lead, l.unlead = context.WithCancelCause(deliver)
	l.startCallsLocked()
	l.mu.Unlock()

	reading, endReading := context.WithCancel(deliver)
	defer endReading()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.runRounds(reading)
	}()

	<-ctx.Done()
	deadline := time.Now().Add(drain + closeTimeout)
	l.drain(drain, errors.Is(context.Cause(ctx), ErrYield))
	endReading()
	<-closed
	abandon(errDrained)
	err := l.awaitHandlers()
	return errors.Join(err, d.recordOpen(deadline))
}

// ErrYield lets, as the cause of the end of Run's context, nothing more be handed over: what is in a handler
// ends, and the rest is recorded as owed where that still can be.
var ErrYield = errors.New("what is in memory yields to the database")

// errDrained is the cause of a handler's context after the drain.
var errDrained = errors.New("the relay stops and its drain time is over")

// drain waits until nothing is left that could finish without a wait for a backoff, or the time is over.
func (l *Lane) drain(limit time.Duration, yield bool) {
	l.mu.Lock()
	l.stage.drain(yield)
	for _, q := range l.backlog.keys {
		l.giveUpLocked(q) // what is owed is recorded; it does not have to be sent now
	}
	l.startCallsLocked()
	l.mu.Unlock()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for !l.drained() {
		select {
		case <-l.idle:
			continue
		case <-deadline.C:
		}
		break
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stage.end()
	if l.wake != nil {
		l.wake.Stop()
	}
}

func (l *Lane) drained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	idle := l.backlog.ready.empty() && l.backlog.retries.due(time.Now()) == nil
	return len(l.calls) == l.overdue && (idle || l.breaker.open() || !l.stage.handsOver() || l.scope.mode == debtPaused)
}

// awaitHandlers gives cancelled handlers a moment to return, and a pipeline one to abort.
func (l *Lane) awaitHandlers() error {
	l.mu.Lock()
	aborted := l.pipe.abortAtStopLocked()
	l.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		l.handler.Wait()
		<-aborted
		close(ended)
	}()
	grace := time.NewTimer(overdueGrace)
	defer grace.Stop()
	select {
	case <-ended:
		return nil
	case <-grace.C:
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.pipe.abortingLocked() {
			return fmt.Errorf("subscriber %q: its Abort does not return although its context has ended: what was sent may still reach its destination", l.Name())
		}
		return fmt.Errorf("subscriber %q: calls with events %v do not end: a handler ignores that its context has, or a dead letter cannot be recorded", l.Name(), l.inWorkLocked(func(*call) bool { return true }))
	}
}

// startCallsLocked starts calls while there is something to do and a free slot. Every change of state ends with it.
func (l *Lane) startCallsLocked() {
	for c := l.nextCallLocked(); c != nil; c = l.nextCallLocked() {
		l.handler.Go(func() {
			for c := c; c != nil; c = c.run() {
			}
		})
	}
	l.scheduleWakeLocked(time.Now())
}

// mayCallLocked reports whether a call may begin at all at this moment.
func (l *Lane) mayCallLocked() bool {
	return l.stage.handsOver() && !l.suspended && !l.pipe.abortingLocked() && l.scope.mode != debtPaused
}

// A runner is a call of the subscriber that has begun: a call, or a sending of a pipeline. run makes it, and returns
// another one that has begun, or nil. So a goroutine goes on whose stack is as large as the handler needs it.
type runner interface{ run() runner }

// nextCallLocked begins a call, or returns nil while there is nothing to do, or no slot or no room is free.
func (l *Lane) nextCallLocked() runner {
	for l.mayCallLocked() && l.slots.free(l.options.Concurrency) && l.pipe.roomLocked() > 0 {
		if l.backlog.ready.empty() && len(l.backlog.retries) == 0 {
			return nil
		}
		now := time.Now()
		c := l.newCallLocked(now)
		if l.breaker.open() {
			l.chooseProbeLocked(c, now)
		} else {
			l.chooseLocked(c, now)
		}
		if len(c.items) > 0 {
			l.slots.occupy(&c.slot)
			if l.pipe != nil {
				return l.pipe.splitLocked(c)
			}
			c.deliveries = l.addressLocked(c, c.deliveries)
			l.calls[c] = struct{}{}
			return c
		}
		l.recycleLocked(c)
		if l.breaker.open() || l.backlog.ready.empty() {
			return nil // the timer comes back for what is not due
		}
	}
	return nil
}

// chooseLocked takes what goes into a call: keys that are well, or keys that fail. These ride apart and have
// at most half of the slots, and of the room in a pipeline, so that a receiver that lets them wait delays no other key.
func (l *Lane) chooseLocked(c *call, now time.Time) {
	size := min(l.retryBatch, l.pipe.retryRoomLocked())
	retry := size > 0 && l.slots.retries < max(1, l.options.Concurrency/2) && l.backlog.retries.due(now) != nil
	if retry && (l.retryTurn || l.backlog.ready.empty()) {
		l.retryTurn, c.slot.retry = false, true
		for len(c.items) < size && l.backlog.retries.due(now) != nil {
			l.takeFromLocked(c, l.backlog.retries.pop(), size)
		}
		return
	}
	l.retryTurn = true
	size = min(l.batch, l.pipe.roomLocked())
	for len(c.items) < size {
		q := l.backlog.nextReady()
		if q == nil {
			return
		}
		l.takeFromLocked(c, q, size)
	}
}

// takeFromLocked moves deliveries of a key that is in no list any more to a call of up to size.
func (l *Lane) takeFromLocked(c *call, q *keyQueue, size int) {
	if q == l.backlog.sample {
		l.backlog.sample = nil
	}
	n := min(size-len(c.items), len(q.items))
	if n == 0 { // its events were moved to the debt
		l.backlog.release(q)
		return
	}
	for i, it := range q.items[:n] {
		it.queue = q
		if it.dead || l.options.BlockKey { // what is behind it may have to wait for a person
			n = i + 1
			break
		}
	}
	c.items = append(c.items, q.items[:n]...)
	q.items = q.items[n:]
	q.state = inWork
}

// addressLocked appends the deliveries of a call. What already is to be a dead letter needs no subscriber, only the
// record: its outcome is known.
func (l *Lane) addressLocked(c *call, deliveries []subscriber.Delivery) []subscriber.Delivery {
	term := l.stream.Term()
	for _, it := range c.items {
		if it.dead {
			c.outcome = append(c.outcome, it.past().err)
			continue
		}
		c.outcome = append(c.outcome, nil)
		deliveries = append(deliveries, subscriber.Delivery{Event: it.ev, Attempt: it.attempts() + 1, Term: term})
		it.origin.labelLocked(&deliveries[len(deliveries)-1]) // in its place: a variable would be allocated
	}
	return deliveries
}

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
