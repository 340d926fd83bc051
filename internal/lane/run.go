package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/subscriber"
)

// New makes the lane of a subscriber whose deliveries carry number.
func New(number int, sub subscriber.Subscriber, options Options, acks Acks, ower Ower, stream Stream, metrics *Metrics, log *slog.Logger) *Lane {
	options.fitTo(sub)
	l := &Lane{core: core{
		holdings: holdings{
			setup: &setup{number: number, sub: sub, options: options, acks: acks, ower: ower, stream: stream, metrics: metrics,
				log: log.With("subscriber", sub.Name()), made: time.Now()},
			calls:      calls{all: make(map[*call]struct{})},
			breaker:    breaker{backoff: options.Backoff},
			scope:      newScope(),
			readerWake: make(chan struct{}, 1),
		},
		sizes:    sizes{batch: options.Batch, retryBatch: options.Batch},
		late:     fmt.Errorf("the handler's deadline of %v is over", options.Timeout),
		deadSaid: rate.NewLimiter(5, 20),
		idle:     make(chan struct{}, 1),
	}}
	l.backlog = newBacklog(time.Now, l.breaker.keys.since)
	l.startCalls = l.startCallsLocked
	l.flight.limit = math.MaxInt
	if sub, reports := sub.(subscriber.Pipeline); reports {
		l.flight.limit = options.InFlight
		l.pipe = &pipeline{core: &l.core, sub: sub}
	}
	return l
}

// Stats returns the lane's counts at this moment.
func (l *Lane) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count()
}

// Offer queues deliveries. It never blocks: the window of the tracker bounds what is queued.
func (l *Lane) Offer(deliveries ...*ack.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += len(deliveries)
	l.metrics.open.Set(float64(l.open))
	now := time.Now()
	for _, d := range deliveries {
		it := l.newItem(d.Event, liveOrigin{d}, now)
		switch {
		case l.scope.lookUp:
			l.scope.unchecked = append(l.scope.unchecked, it)
			signal(l.readerWake)
		case l.inScopeLocked(it):
			l.keepBehindDebtLocked(it)
		default:
			l.backlog.push(l.options.Ordering.keyOf(it.ev), it)
		}
	}
	if n := len(deliveries); n > 0 {
		l.behind = now.Sub(deliveries[n-1].Event.CommittedAt)
	}
	l.startCallsLocked()
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
	l.lead.deliver = deliver
	l.lead.begin()
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
	return l.calls.inTime() == 0 && (idle || l.breaker.open() || !l.stage.handsOver() || l.scope.mode == debtPaused)
}

// awaitHandlers gives cancelled handlers a moment to return, and a pipeline one to abort.
func (l *Lane) awaitHandlers() error {
	l.mu.Lock()
	aborted := l.abortAtStopLocked()
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
		if l.flight.aborting() {
			return fmt.Errorf("subscriber %q: its Abort does not return although its context has ended: what was sent may still reach its destination", l.Name())
		}
		return fmt.Errorf("subscriber %q: calls with events %v do not end: a handler ignores that its context has, or a dead letter cannot be recorded", l.Name(), l.calls.ids(func(*call) bool { return true }))
	}
}
