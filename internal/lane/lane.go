// Package lane is one subscriber's queue and workers. It keeps the order within a key through retries,
// tells an outage from a poison event, and never lets a failing event delay another key. It does no I/O
// of its own: it calls the subscriber, and an Ower where something must be recorded. Who hands it events
// is package dispatch; whom it tells that they are finished is package ack.
package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Ordering says which events of a subscriber wait for each other.
type Ordering string

// The orderings of DESIGN §7.
const (
	ByKey Ordering = "key"   // events of one key, one at a time, in commit order
	Total Ordering = "total" // all events, one at a time, in commit order
	None  Ordering = "none"  // no event waits for another one
)

// Options are the settings of a subscriber.
type Options struct {
	Ordering    Ordering
	Concurrency int           // calls at the same time
	Batch       int           // events in one call, where the subscriber has HandleBatch
	Timeout     time.Duration // of one call
	Backoff     Backoff
	// MaxAttempts is after how many failed attempts an event is dead, counting only those after which
	// another event of this subscriber was delivered. 0 means never.
	MaxAttempts int
}

// Finisher is told how a delivery ended; fulfilled by ack.Tracker.
type Finisher interface {
	Finish(d *ack.Delivery, dead bool, attempts int)
}

// deadLetters is the part of an Ower that a lane needs.
type deadLetters interface {
	Dead(ctx context.Context, subscriber string, letter Owed) error
}

// Lane hands events to one subscriber. Offer may be called before and while Run runs.
//
// Invariant: of one key at most one call is under way, and no event is handed over while an earlier
// one of its key is unfinished.
type Lane struct {
	sub     subscriber.Subscriber
	options Options
	acks    Finisher
	ower    deadLetters
	log     *slog.Logger
	metrics *Metrics
	term    func() int64

	mu          sync.Mutex
	running     bool                   // between the start of Run and its soft stop; guarded by mu
	deliver     context.Context        // of handlers, while running; guarded by mu
	keys        map[string]*keyQueue   // every key with something queued or in work; guarded by mu
	ready       fifo                   // keys whose head may be handed over, in order of arrival; guarded by mu
	resting     map[*keyQueue]struct{} // keys in backoff; guarded by mu
	calls       int                    // under way and not overdue; guarded by mu
	overdue     map[*call]struct{}     // under way although their deadline has passed; guarded by mu
	held        int                    // deliveries offered and not finished; guarded by mu
	batch       int                    // events in the next call, below Options.Batch after a batch failed; guarded by mu
	breaker     breaker                // guarded by mu
	stats       Stats                  // guarded by mu
	lastSuccess time.Time              // guarded by mu
	warned      time.Time              // when a failure was last logged; guarded by mu
	idle        chan struct{}          // gets a token when a drain may be over
	handler     sync.WaitGroup         // calls under way, overdue ones included
}

// New makes a lane. term gives the number of the leadership at the moment of an attempt.
func New(sub subscriber.Subscriber, options Options, acks Finisher, ower deadLetters, term func() int64, metrics *Metrics, log *slog.Logger) *Lane {
	if _, ok := sub.(subscriber.BatchSubscriber); !ok || options.Batch < 1 {
		options.Batch = 1
	}
	options.Concurrency = max(1, options.Concurrency)
	if options.Ordering == Total {
		options.Concurrency = 1
	}
	return &Lane{
		sub:     sub,
		options: options,
		acks:    acks,
		ower:    ower,
		log:     log.With("subscriber", sub.Name()),
		metrics: metrics,
		term:    term,
		keys:    make(map[string]*keyQueue),
		resting: make(map[*keyQueue]struct{}),
		overdue: make(map[*call]struct{}),
		batch:   options.Batch,
		breaker: breaker{backoff: options.Backoff},
		idle:    make(chan struct{}, 1),
	}
}

// Name is the name of the subscriber.
func (l *Lane) Name() string { return l.sub.Name() }

// Wants reports whether the subscriber wants events of a type.
func (l *Lane) Wants(eventType string) bool { return l.sub.Wants(eventType) }

// Offer queues a delivery. It never blocks: the window of the tracker bounds what is queued.
func (l *Lane) Offer(d *ack.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held++
	l.metrics.open.Set(float64(l.held))
	q := l.queueOf(d.Event)
	it := &item{Delivery: d}
	if d.Event.Invalid != "" {
		it.dead, it.lastErr = true, errors.New(d.Event.Invalid)
	}
	q.items = append(q.items, it)
	if q.state == idle {
		l.makeReady(q)
	}
	l.pump()
}

// Run delivers until ctx ends, then goes on for at most drain with what is held, except for what only
// waits for its backoff. When it returns, no handler runs any more, unless it ignores its context: such
// ones are logged and left behind. What is still open stays open.
func (l *Lane) Run(ctx context.Context, drain time.Duration) error {
	// Deliveries outlive ctx: a soft stop ends reading, not handling.
	deliver, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	l.mu.Lock()
	l.running, l.deliver = true, deliver
	l.pump()
	l.mu.Unlock()

	<-ctx.Done()
	deadline := time.NewTimer(drain)
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
	l.running = false
	l.breaker.stop()
	for q := range l.resting {
		q.timer.Stop()
	}
	left := l.held
	l.mu.Unlock()
	if left > 0 {
		l.log.Warn("stopped with open deliveries, they come again", "open", left)
	}
	abandon(errDrained)
	return l.awaitHandlers()
}

// errDrained is the cause of a handler's context after the drain.
var errDrained = errors.New("the relay stops and its drain time is over")

func (l *Lane) signalIdle() {
	select {
	case l.idle <- struct{}{}:
	default:
	}
}

// drained reports whether nothing is left that could finish without a wait for a backoff.
func (l *Lane) drained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls == 0 && (l.ready.empty() || l.breaker.open)
}

// awaitHandlers gives cancelled handlers a moment to return.
func (l *Lane) awaitHandlers() error {
	ended := make(chan struct{})
	go func() {
		l.handler.Wait()
		close(ended)
	}()
	grace := time.NewTimer(overdueGrace)
	defer grace.Stop()
	select {
	case <-ended:
		return nil
	case <-grace.C:
		return fmt.Errorf("subscriber %q: handler of event %v ignores that its context ended", l.Name(), l.Stats().Overdue)
	}
}

// pump starts calls while there is something to do and somebody to do it. Every change of state ends
// with it. The caller holds mu.
func (l *Lane) pump() {
	for l.running && l.calls < l.options.Concurrency && len(l.overdue) < maxOverdue && !l.ready.empty() {
		size := l.batch
		if l.breaker.open {
			// One probe at a time; its result or the breaker's timer pumps again.
			if l.calls > 0 || !l.breaker.mayProbe(time.Now()) {
				l.breaker.scheduleProbe(l.probe)
				return
			}
			size = 1
		}
		l.start(l.take(size))
	}
}

// probe is called by the breaker's timer.
func (l *Lane) probe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pump()
}

// take removes up to size deliveries from the ready keys, in order of arrival.
func (l *Lane) take(size int) []*item {
	batch := make([]*item, 0, min(size, 16))
	for len(batch) < size && !l.ready.empty() {
		q := l.ready.pop()
		n := min(size-len(batch), len(q.items))
		batch = append(batch, q.items[:n]...)
		for _, it := range q.items[:n] {
			it.queue = q
		}
		q.items = q.items[n:]
		q.state = inWork
	}
	return batch
}

// Stats are counts for people; see relay.Subscriber.
type Stats struct {
	Open                    int
	Delivered, Failed, Dead uint64
	LastError               string
	BreakerOpen             bool
	// Overdue are the ids of events whose handler has not returned although its deadline has passed.
	Overdue []string
}

// Stats returns the lane's counts at this moment.
func (l *Lane) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Open, s.BreakerOpen = l.held, l.breaker.open
	for c := range l.overdue {
		for _, it := range c.items {
			s.Overdue = append(s.Overdue, it.Event.ID)
		}
	}
	return s
}
