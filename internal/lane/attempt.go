package lane

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// call is one attempt: one call of the subscriber, with one event or several. This file reads from its start to its
// settlement:
//
//	newCallLocked   an empty one, which nextCallLocked fills
//	run             all of it, in a goroutine of its own
//	  handOver        the subscriber gets the deliveries
//	  noteOutcomes    what that says of each item
//	  recordDead      dead letters are written (dead.go)
//	  settleLocked    what has ended is finished, the rest goes back to its key
//
// Of a pipeline a call is what one Send has of one key: it begins with the others of that Send and settles by itself,
// when the last of its deliveries is reported (pipeline.go).
//
// A lane uses calls that have ended again, with their lists: a busy one makes no garbage but what its handlers make.
type call struct {
	lane     *Lane
	items    []*item
	begun    time.Time
	lead     context.Context // of the leadership under which it began
	slot     slot            // a part of a sending has none, and only tells whether it is a retry
	probe    turn            // whose turn it was, while the breaker was open
	doubted  bool            // it waits until it is known whether we lead; guarded by Lane.mu
	unbegun  bool            // nothing was handed over, as we do not lead; owned by run, or set with the last report
	returned bool            // guarded by Lane.mu
	overdue  bool            // guarded by Lane.mu
	own      verdict         // of a call that is no part of a sending
	verdict  *verdict        // own, or that of its sending; guarded by Lane.mu

	watch      *time.Timer           // marks it as overdue
	deliveries []subscriber.Delivery // of the items that are not dead
	inTime     bool                  // it returned before it was overdue; owned by run
	outcome    []error               // of the items, nil for delivered, and before the call why one is dead; owned by run

	// Of a part of a sending:
	sending *sending // nil for a call that is none
	place   int      // in sending.parts
	sent    int      // deliveries
	bytes   int      // of their events
	missing int      // of them not reported; guarded by reports.mu
	dies    bool     // a dead letter may have to be written; guarded by reports.mu until nothing is missing
}

// verdict is what a call says of the subscriber when all of its parts have ended. It has one part, or that of a pipeline
// one per key. All of it is guarded by Lane.mu.
type verdict struct {
	open      int  // parts that have neither ended nor become overdue
	delivered bool // something
	failed    bool // something
	known     bool // all keys that failed had failed before the last success
}

// newCallLocked is a call without items.
func (l *Lane) newCallLocked(now time.Time) *call {
	c := &call{lane: l}
	if last := len(l.spareCalls) - 1; last >= 0 {
		c = l.spareCalls[last]
		l.spareCalls[last] = nil
		l.spareCalls = l.spareCalls[:last]
	}
	c.begun, c.lead, c.returned, c.overdue = now, l.lead, false, false
	c.slot, c.probe, c.inTime, c.unbegun = slot{}, untriedTurn, true, false
	c.own, c.sending, c.sent, c.bytes, c.missing, c.dies = verdict{open: 1, known: true}, nil, 0, 0, 0, false
	c.verdict = &c.own
	return c
}

// run makes the attempt, and returns another one that has begun.
func (c *call) run() runner {
	var err error
	if len(c.deliveries) > 0 {
		err = c.handOver()
	}
	c.noteOutcomes(err)
	l := c.lane
	l.recordDead(c.items, c.outcome)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slots.release(&c.slot)
	l.settleLocked(c, time.Now())
	next := l.nextCallLocked()
	l.afterSettlingLocked()
	return next
}

// handOver calls the subscriber with the deliveries, and notes whether it returned before it was overdue. A late success
// is one, unless the delivery was recorded as owed meanwhile.
func (c *call) handOver() error {
	l := c.lane
	if c.unbegun = !l.awaitLead(c.lead, c); c.unbegun {
		return errSuspended
	}
	ctx, cancel := context.WithTimeoutCause(c.lead, l.options.Timeout, l.late)
	defer cancel()
	if c.watch == nil {
		c.watch = time.AfterFunc(l.options.Timeout+overdueGrace, func() { l.markOverdue(c) })
	} else {
		c.watch.Reset(l.options.Timeout + overdueGrace)
	}
	begun := time.Now()
	err := l.protect(ctx, c.deliveries)
	c.inTime = c.watch.Stop()
	if errors.Is(err, subscriber.ErrOldTerm) {
		l.Suspend() // the keeper of the lead finds out whether it is still ours
	}
	l.metrics.handle.Observe(time.Since(begun).Seconds())
	return err
}

// noteOutcomes tells the items what the call says of each of them.
func (c *call) noteOutcomes(err error) {
	handed := 0
	for i, reason := range c.outcome {
		if reason != nil { // it is dead already
			continue
		}
		c.outcome[i] = c.lane.options.masked(errorOf(err, handed, len(c.deliveries)))
		handed++
	}
}

// protect makes a panic of the handler an error of its events.
func (l *Lane) protect(ctx context.Context, deliveries []subscriber.Delivery) (err error) {
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("handler panicked", "event", deliveries[0].ID, "panic", l.options.masked(fmt.Errorf("%v", p)), "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", p)
		}
	}()
	if len(deliveries) == 1 {
		return l.sub.Handle(ctx, deliveries[0])
	}
	return l.sub.(subscriber.BatchSubscriber).HandleBatch(ctx, deliveries)
}

// settleLocked ends a call: what is delivered or recorded as dead is finished, the rest goes back to the front of its
// key. afterSettlingLocked follows, perhaps after several.
func (l *Lane) settleLocked(c *call, now time.Time) {
	outcome := c.outcome
	c.returned = true
	delete(l.calls, c)
	if c.overdue {
		l.overdue--
		l.metrics.overdue.Set(float64(l.overdue))
	}
	l.observeLocked(c, outcome, now)
	suspended := c.unbegun || errors.Is(context.Cause(c.lead), errSuspended)
	if !suspended {
		l.judgeLocked(c, outcome, now)
	}
	// The last key first, so that those that go back to the front are in order again.
	for end := len(c.items); end > 0; {
		begin := end - 1
		for begin > 0 && c.items[begin-1].queue == c.items[begin].queue {
			begin--
		}
		l.settleKeyLocked(c.items[begin:end], outcome[begin:end], suspended, now)
		end = begin
	}
	l.recycleLocked(c)
}

// afterSettlingLocked acknowledges what has ended, and lets follow what waited for it.
func (l *Lane) afterSettlingLocked() {
	l.acknowledgeLocked()
	l.metrics.open.Set(float64(l.open))
	l.startCallsLocked()
	signal(l.idle)
	if len(l.scope.paid) >= payLimit/4 || len(l.scope.behindDebt) > 0 {
		signal(l.readerWake)
	}
}

// judgeLocked updates what the lane thinks of its subscriber after a call: the breaker and the batch size.
func (l *Lane) judgeLocked(c *call, outcome []error, now time.Time) {
	var delivered, failed bool
	var whole bool
	for i, err := range outcome {
		switch {
		case err == nil:
			delivered = true
		case c.items[i].dead: // says nothing about the subscriber's health
		default:
			failed = true
			whole = whole || errors.As(err, new(wholeBatch))
		}
	}
	if delivered {
		c.verdict.delivered = true
		l.succeededLocked(now)
	}
	if !c.overdue { // else that was counted when it became overdue
		l.partEndedLocked(c, failed, now)
	}
	batch := &l.batch
	if c.slot.retry {
		batch = &l.retryBatch
	}
	switch {
	case whole:
		// The bad event is among them: hand over fewer at once until it fails alone. By eights, so that
		// the steps from 500 to 1 stay below the breaker's threshold.
		*batch = max(1, len(c.items)/8)
	case delivered:
		*batch = min(l.options.Batch, *batch*2)
	}
}

// settleKeyLocked settles the items of one key, in commit order. That a call ended because the lane was suspended
// says nothing about its events.
func (l *Lane) settleKeyLocked(items []*item, outcome []error, suspended bool, now time.Time) {
	q := items[0].queue
	var left []*item
	var wait time.Duration
	failed := false
	for i, it := range items {
		it.queue = nil
		err := outcome[i]
		_, replayed := it.replay()
		switch {
		case it.abandoned: // recorded as owed meanwhile; it is sent again from there
			continue
		case it.recorded != notRecorded && err != nil && !it.finished:
			l.endRecordedLocked(it, it.recorded)
			failed = true
			continue
		case err == nil || it.finished:
			if err == nil {
				l.recoveredLocked(q)
			}
			l.finishLocked(it, err, now)
			continue
		case suspended:
		case errors.Is(err, subscriber.ErrHeld): // says nothing about the event
			wait = max(wait, l.options.Backoff.Initial)
		case !failed && !errors.As(err, new(wholeBatch)):
			wait = l.noteFailureLocked(it, err, now)
			if !replayed {
				l.failsLocked(q, err, now)
			}
		}
		if replayed {
			l.replayFailedLocked(it, wait)
			if !failed {
				wait = 0 // live events of the key need not wait for it
			}
			failed = true
			continue
		}
		failed = true
		switch {
		case it.isLive() && l.inScopeLocked(it):
			l.keepBehindDebtLocked(it) // the key fell into debt while it was in work
		case l.scope.mode == debtPaused && !it.origin.giveUpLocked(l, it): // it stays in the debt until a person resumes
		default:
			left = append(left, it)
		}
	}
	if len(left) == 0 {
		l.backlog.release(q)
		return
	}
	q.putBack(left)
	switch {
	case wait > 0 || q.fails():
		l.backlog.retryAt(q, now.Add(wait))
	default: // of a batch that failed whole, and nothing says that the key does
		q.state = ready
		l.backlog.ready.pushFront(q)
	}
}

// recycleLocked ends the use of a call and of what it held, so that neither stays in memory: a stopped timer stays in
// the runtime's heap for a while. An overdue call is not used again: its timer's function may still wait for mu.
func (l *Lane) recycleLocked(c *call) {
	clear(c.items)
	clear(c.deliveries)
	clear(c.outcome)
	c.items, c.deliveries, c.outcome, c.lead = c.items[:0], c.deliveries[:0], c.outcome[:0], nil
	c.verdict, c.sending = nil, nil
	spare := l.options.Concurrency
	if l.pipe != nil {
		spare = maxSpare // a call for each key in flight
	}
	if c.inTime && len(l.spareCalls) < spare {
		l.spareCalls = append(l.spareCalls, c)
	}
}

// markOverdue gives the slot of a call that does not return to other keys. Its own keys stay held: to
// hand an event over while an older attempt still runs would be two at a time.
func (l *Lane) markOverdue(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.returned || c.overdue { // or a stop was not willing to wait for it
		return
	}
	l.slots.lose(&c.slot)
	l.waitNoLongerLocked(c)
	l.stats.Failed++
	l.stats.LastError = "handler does not return"
	l.log.Error("handler does not return although its deadline is over; its keys wait for it",
		"event", c.items[0].ev.ID, "events", len(c.items), "timeout", l.options.Timeout)
	l.partEndedLocked(c, true, time.Now())
	l.afterOverdueLocked()
}

// waitNoLongerLocked marks a call as overdue: its keys wait for it, and nothing else does.
func (l *Lane) waitNoLongerLocked(c *call) {
	c.overdue = true
	l.overdue++
	l.metrics.overdue.Set(float64(l.overdue))
}

// afterOverdueLocked lets follow what waited for calls that have become overdue. What of them is in debt by now is
// recorded before anything newer of its key is read.
func (l *Lane) afterOverdueLocked() {
	l.abandonOverdueLocked()
	l.startCallsLocked()
	signal(l.idle)
	signal(l.readerWake)
}
