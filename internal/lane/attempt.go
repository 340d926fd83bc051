package lane

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// attempt is one call of the subscriber, with one event or several. This file reads from its start to its settlement:
//
//	beginLocked     an empty one, which Lane.nextCallLocked fills (choose.go, probe.go)
//	addressLocked   what the subscriber gets for its items
//	run             all of it, in a goroutine of its own
//	  handOver        the subscriber gets the deliveries
//	  noteOutcomes    what that says of each item
//	  recordDead      dead letters are written (dead.go)
//	endLocked       what has ended is finished, the rest goes back to its key (settle.go)
//
// Of a pipeline an attempt is what one Send has of one key: it begins with the others of that Send and settles by itself,
// when the last of its deliveries is reported (pipeline.go).
type attempt struct {
	call
	core    *core
	lead    context.Context // of the leadership under which it began
	unbegun bool            // nothing was handed over, as we do not lead; owned by run, or set with the last report
	own     verdict         // of one that is no part of a sending

	watch      *time.Timer           // marks it as overdue
	deliveries []subscriber.Delivery // of the items that are not dead
	inTime     bool                  // it returned before it was overdue; owned by run
	outcome    []error               // of the items, nil for delivered, and before the call why one is dead; owned by run
}

// beginLocked makes an attempt, perhaps one that has ended, an empty one.
func (a *attempt) beginLocked(c *core, now time.Time) {
	a.core, a.lead, a.inTime, a.unbegun = c, c.lead.ctx, true, false
	a.begun, a.returned, a.overdue, a.slot, a.probe = now, false, false, slot{}, untriedTurn
	a.own = verdict{open: 1, known: true}
	a.verdict = &a.own
}

// addressLocked appends the deliveries of the items. What already is to be a dead letter needs no subscriber, only the
// record: its outcome is known.
func (a *attempt) addressLocked(deliveries []subscriber.Delivery) []subscriber.Delivery {
	term := a.core.stream.Term()
	for _, it := range a.items {
		if it.dead {
			a.outcome = append(a.outcome, it.past().err)
			continue
		}
		a.outcome = append(a.outcome, nil)
		deliveries = append(deliveries, subscriber.Delivery{Event: it.ev, Attempt: it.attempts() + 1, Term: term})
		it.origin.labelLocked(&deliveries[len(deliveries)-1]) // in its place: a variable would be allocated
	}
	return deliveries
}

func (a *attempt) run() {
	var err error
	if len(a.deliveries) > 0 {
		err = a.handOver()
	}
	a.noteOutcomes(err)
	a.core.recordDead(a.items, a.outcome)
}

// handOver calls the subscriber with the deliveries, and notes whether it returned before it was overdue. A late success
// is one, unless the delivery was recorded as owed meanwhile.
func (a *attempt) handOver() error {
	c := a.core
	if a.unbegun = !c.awaitLead(a.lead, a); a.unbegun {
		return errSuspended
	}
	ctx, cancel := context.WithTimeoutCause(a.lead, c.options.Timeout, c.late)
	defer cancel()
	if a.watch == nil {
		a.watch = time.AfterFunc(c.options.Timeout+overdueGrace, a.markOverdue)
	} else {
		a.watch.Reset(c.options.Timeout + overdueGrace)
	}
	begun := time.Now()
	err := a.protect(ctx)
	a.inTime = a.watch.Stop()
	if errors.Is(err, subscriber.ErrOldTerm) {
		c.Suspend() // the keeper of the lead finds out whether it is still ours
	}
	c.metrics.handle.Observe(time.Since(begun).Seconds())
	return err
}

// protect makes a panic of the handler an error of its events.
func (a *attempt) protect(ctx context.Context) (err error) {
	c := a.core
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("handler panicked", "event", a.deliveries[0].ID, "correlation_id", a.deliveries[0].CorrelationID(),
				"panic", c.options.masked(fmt.Errorf("%v", p)), "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", p)
		}
	}()
	if len(a.deliveries) == 1 {
		return c.sub.Handle(ctx, a.deliveries[0])
	}
	return c.sub.(subscriber.BatchSubscriber).HandleBatch(ctx, a.deliveries)
}

// noteOutcomes tells the items what the call says of each of them.
func (a *attempt) noteOutcomes(err error) {
	handed := 0
	for i, reason := range a.outcome {
		if reason != nil { // it is dead already
			continue
		}
		a.outcome[i] = a.core.options.masked(errorOf(err, handed, len(a.deliveries)))
		handed++
	}
}

// endLocked settles the attempt.
func (a *attempt) endLocked() {
	a.core.calls.slots.release(&a.slot)
	a.core.settleLocked(a.lead, &a.call, a.outcome, a.unbegun, time.Now())
}

// clearLocked lets go of what an attempt that has ended held, so that it does not stay in memory: a stopped timer stays in
// the runtime's heap for a while. It reports whether the attempt can be used again: the timer's function of an overdue one
// may still wait for the lock.
func (a *attempt) clearLocked() (usable bool) {
	clear(a.items)
	clear(a.deliveries)
	clear(a.outcome)
	a.items, a.deliveries, a.outcome, a.lead, a.verdict = a.items[:0], a.deliveries[:0], a.outcome[:0], nil, nil
	return a.inTime
}

// markOverdue gives the slot of a call that does not return to other keys. Its own keys stay held: to
// hand an event over while an older attempt still runs would be two at a time.
func (a *attempt) markOverdue() {
	c := a.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.returned || a.overdue { // or a stop was not willing to wait for it
		return
	}
	c.calls.slots.lose(&a.slot)
	c.noteOverdue(&a.call)
	c.stats.Failed++
	c.stats.LastError = "handler does not return"
	c.log.Error("handler does not return although its deadline is over; its keys wait for it",
		"event", a.items[0].ev.ID, "correlation_id", a.items[0].ev.CorrelationID(), "events", len(a.items), "timeout", c.options.Timeout)
	c.endPartLocked(&a.call, true, time.Now())
	c.afterOverdueLocked()
}
