package lane

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	// overdueGrace is how long after its deadline a handler may take to notice it.
	overdueGrace = time.Second
	// maxOverdue bounds the goroutines of handlers that never return; with so many of them the lane
	// starts no further call until one does.
	maxOverdue = 64
	// warnEvery keeps a failing subscriber from filling the log.
	warnEvery = 10 * time.Second
)

// callSubscriber is one call of the subscriber. A lane uses those that have ended again, with their lists: a busy one
// makes no garbage but what its handlers make.
type call struct {
	items    []*item
	begun    time.Time
	lead     context.Context // of the leadership under which it began
	returned bool            // guarded by Lane.mu
	overdue  bool            // its slot was given to others; guarded by Lane.mu
	retry    bool            // of keys that fail
	probe    turn            // whose turn it was, while the breaker was open

	watch      *time.Timer           // marks it as overdue
	deliveries []subscriber.Delivery // of the items that are not dead
	outcome    []error               // of the items, nil for delivered
}

// newCallLocked is one without items. The caller holds mu.
func (l *Lane) newCallLocked(now time.Time) *call {
	c := &call{}
	if last := len(l.spareCalls) - 1; last >= 0 {
		c = l.spareCalls[last]
		l.spareCalls[last] = nil
		l.spareCalls = l.spareCalls[:last]
	}
	c.begun, c.lead, c.returned, c.overdue = now, l.lead, false, false
	c.retry, c.probe = false, untriedTurn
	return c
}

// recycleLocked ends the use of a call and of what it held, so that neither stays in memory: a stopped timer stays
// in the runtime's heap for a while. One that was not in time is not used again: who was told by its watch
// may still wait for mu. The caller holds mu.
func (l *Lane) recycleLocked(c *call, inTime bool) {
	clear(c.items)
	clear(c.deliveries)
	clear(c.outcome)
	c.items, c.deliveries, c.outcome, c.lead = c.items[:0], c.deliveries[:0], c.outcome[:0], nil
	if inTime && len(l.spareCalls) < l.options.Concurrency {
		l.spareCalls = append(l.spareCalls, c)
	}
}

// runCall makes one call and settles its items. It returns the call with which the goroutine goes on, whose
// stack is as large as the handler needs it.
func (l *Lane) runCall(c *call) (next *call) {
	var err error
	inTime := true
	if len(c.deliveries) > 0 {
		inTime, err = l.callSubscriber(c)
	}
	handed := 0
	for _, it := range c.items {
		if it.dead {
			c.outcome = append(c.outcome, it.past().err)
			continue
		}
		c.outcome = append(c.outcome, l.masked(errorOf(err, handed, len(c.deliveries))))
		handed++
	}
	return l.settleCall(c, inTime)
}

// callSubscriber hands the deliveries to the subscriber, and tells whether it returned before it was overdue.
func (l *Lane) callSubscriber(c *call) (inTime bool, err error) {
	ctx, cancel := context.WithTimeoutCause(c.lead, l.options.Timeout, l.late)
	defer cancel()
	if c.watch == nil {
		c.watch = time.AfterFunc(l.options.Timeout+overdueGrace, func() { l.markOverdue(c) })
	} else {
		c.watch.Reset(l.options.Timeout + overdueGrace)
	}
	begun := time.Now()
	err = errSuspended
	if l.stream.MayBegin == nil || l.stream.MayBegin() {
		err = l.protect(ctx, c.deliveries)
	}
	inTime = c.watch.Stop()
	if errors.Is(err, errSuspended) || errors.Is(err, subscriber.ErrOldTerm) {
		l.Suspend() // the keeper of the lead finds out whether it is still ours
	}
	l.metrics.handle.Observe(time.Since(begun).Seconds())
	return inTime, err // a late success is one, unless the delivery was recorded as owed meanwhile
}

// masked is an error as it may be kept: what a receiver answers can hold what was sent to it.
func (l *Lane) masked(err error) error {
	if err == nil || l.options.Mask == nil {
		return err
	}
	return l.options.Mask(err)
}

// errorOf is what the error of a call of n deliveries says of delivery i.
func errorOf(err error, i, n int) error {
	if err == nil {
		return nil
	}
	var batchErr *subscriber.BatchError
	switch known := errors.As(err, &batchErr); {
	case known && n > 1:
		return batchErr.Failed[i]
	case known && batchErr.Failed[0] != nil:
		return batchErr.Failed[0]
	case n > 1:
		return wholeBatch{err}
	}
	return err
}

// wholeBatch is the error of a call of several events that does not say which of them it means.
type wholeBatch struct{ error }

func (w wholeBatch) Unwrap() error { return w.error }

// protect makes a panic of the handler an error of its events.
func (l *Lane) protect(ctx context.Context, deliveries []subscriber.Delivery) (err error) {
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("handler panicked", "event", deliveries[0].ID, "panic", l.masked(fmt.Errorf("%v", p)), "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", p)
		}
	}()
	if len(deliveries) == 1 {
		return l.sub.Handle(ctx, deliveries[0])
	}
	return l.sub.(subscriber.BatchSubscriber).HandleBatch(ctx, deliveries)
}

// markOverdue gives the slot of a call that does not return to other keys. Its own keys stay held: to
// hand an event over while an older attempt still runs would be two at a time.
func (l *Lane) markOverdue(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.returned || c.overdue { // or a stop was not willing to wait for it
		return
	}
	l.giveSlotAwayLocked(c)
	l.metrics.overdue.Set(float64(l.overdue))
	l.stats.Failed++
	l.stats.LastError = "handler does not return"
	l.log.Error("handler does not return although its deadline is over; its keys wait for it",
		"event", c.items[0].ev.ID, "events", len(c.items), "timeout", l.options.Timeout)
	l.callFailedLocked(c, time.Now())
	// What of it is in debt by now is recorded before anything newer of its key is read: from now on nothing
	// waits for the handler any more.
	l.abandonOverdueLocked()
	l.startCallsLocked()
	signal(l.idle)
	signal(l.readerWake)
}

// giveSlotAwayLocked stops counting a call that has not returned among those under way.
func (l *Lane) giveSlotAwayLocked(c *call) {
	c.overdue = true
	l.overdue++
	if c.retry {
		l.retryCalls--
	}
}

// settleCall ends a call: what is delivered or recorded as dead is finished, the rest goes back to the front
// of its key. It returns another call that has begun.
func (l *Lane) settleCall(c *call, inTime bool) (next *call) {
	outcome := c.outcome
	l.recordDead(c.items, outcome)

	l.mu.Lock()
	defer l.mu.Unlock()
	c.returned = true
	delete(l.calls, c)
	switch {
	case c.overdue:
		l.overdue--
		l.metrics.overdue.Set(float64(l.overdue))
	case c.retry:
		l.retryCalls--
	}
	now := time.Now()
	l.observeLocked(c, outcome, now)
	suspended := errors.Is(context.Cause(c.lead), errSuspended)
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
	l.recycleLocked(c, inTime)
	l.acknowledgeLocked()
	l.metrics.open.Set(float64(l.held))
	next = l.nextCallLocked()
	l.startCallsLocked()
	signal(l.idle)
	if len(l.scope.paid) >= payLimit/4 || len(l.scope.held) > 0 {
		signal(l.readerWake)
	}
	return next
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
	switch {
	case delivered:
		l.succeededLocked(now)
	case failed && !c.overdue: // an overdue call was counted when it became overdue
		l.callFailedLocked(c, now)
	}
	batch := &l.batch
	if c.retry {
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
		switch {
		case it.abandoned: // recorded as owed meanwhile; it is sent again from there
			continue
		case it.recorded != "" && err != nil && !it.finished:
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
			if it.replay == nil {
				l.failsLocked(q, err, now)
			}
		}
		if it.replay != nil {
			l.replayFailedLocked(it, wait)
			if !failed {
				wait = 0 // live events of the key need not wait for it
			}
			failed = true
			continue
		}
		failed = true
		if it.live != nil && l.inScopeLocked(it) {
			l.holdItemLocked(it) // the key fell into debt while it was in work
			continue
		}
		left = append(left, it)
	}
	if len(left) == 0 {
		l.releaseLocked(q)
		return
	}
	q.putBack(left)
	switch {
	case wait > 0 || q.fails():
		l.retryAtLocked(q, now.Add(wait))
	default: // of a batch that failed whole, and nothing says that the key does
		q.state = ready
		l.ready.pushFront(q)
	}
}

// failsLocked notes that a key fails.
func (l *Lane) failsLocked(q *keyQueue, err error, now time.Time) {
	if asked := subscriber.RetryAfterOf(err); asked > 0 {
		q.heldUntil = now.Add(min(asked, maxRetryAfter))
	}
	if q.failedAt.IsZero() {
		q.failedAt = now
	}
	if l.options.Ordering == ByKey { // without an order each key has one event, and of a total order there is one key
		l.breaker.keys.note(q.key, q.failedAt)
	}
}

// recoveredLocked notes that an event of a key was delivered.
func (l *Lane) recoveredLocked(q *keyQueue) {
	if q.failedAt.IsZero() {
		return
	}
	q.failedAt, q.heldUntil = time.Time{}, time.Time{}
	l.breaker.keys.forget(q.key)
}

// acknowledgeLocked tells the tracker what finish has ended.
func (l *Lane) acknowledgeLocked() {
	if len(l.ends) > 0 {
		l.acks.Finish(l.ends...)
		clear(l.ends)
		l.ends = l.ends[:0]
	}
}

// finishLocked ends a delivery: delivered, or recorded as a dead letter. Its caller acknowledges.
func (l *Lane) finishLocked(it *item, err error, now time.Time) {
	if err == nil {
		l.stats.Delivered++
		l.metrics.delivered.Inc()
	} else {
		l.stats.Dead++
		l.metrics.dead.Inc()
		if l.options.BlockKey {
			l.blockKeyLocked(l.keyOf(it.ev))
		}
	}
	if it.replay != nil {
		it.replay.finished(err)
		return // what happened long ago says nothing about the lag
	}
	l.metrics.commitToAck.Observe(max(0, now.Sub(it.ev.CommittedAt).Seconds()))
	switch {
	case it.live != nil:
		l.held--
		l.ends = append(l.ends, ack.End{Delivery: it.live, Dead: err != nil, Attempts: it.attempts()})
		if it.recorded == StateWaiting && err == nil { // what a person has added meanwhile is paid with it
			added := &item{ev: it.ev}
			l.scope.takeInHand(added)
			l.scope.paid = append(l.scope.paid, added)
		}
	case err == nil:
		l.scope.paid = append(l.scope.paid, it)
	default: // its row is dead now and waits no more
		l.scope.dropFromHand(it)
		l.scope.forget(l.keyOf(it.ev))
	}
}

// noteFailureLocked counts a failed attempt and returns how long the key has to wait.
func (l *Lane) noteFailureLocked(it *item, err error, now time.Time) time.Duration {
	l.stats.Failed++
	l.stats.LastError = err.Error()
	l.metrics.failed.Inc()
	past := it.failing()
	if it.dead { // its record was refused; the reason stays the first one
		past.refused++
		return l.options.Backoff.Wait(past.refused)
	}
	past.attempts++
	past.err, past.last = err, now
	if it.fromDebt() {
		l.scope.failed[it] = struct{}{}
	}
	if subscriber.IsPause(err) && l.unwanted == nil && !l.scope.paused {
		l.unwanted = err
		signal(l.readerWake)
	}
	if past.first.IsZero() {
		past.first = now
	} else if l.breaker.counts(past.first, err) {
		past.counted++
		it.dead = l.options.MaxAttempts > 0 && past.counted >= l.options.MaxAttempts
	}
	if l.options.GiveUpAfter > 0 && now.Sub(past.first) >= l.options.GiveUpAfter {
		it.dead = true
	}
	wait := max(l.options.Backoff.Wait(past.attempts), min(subscriber.RetryAfterOf(err), maxRetryAfter))
	past.next = now.Add(wait)
	if now.Sub(l.warned) >= warnEvery {
		l.warned = now
		l.log.Warn("delivery failed, will retry", "event", it.ev.ID, "key", it.ev.Key,
			"attempt", past.attempts, "wait", wait, "keys_waiting", len(l.retries)+1, "err", err)
	}
	return wait
}

// recordDead writes the dead letters among the outcomes. One that cannot be written stays open, and its
// key waits behind it: an event is never neither delivered nor recorded.
func (l *Lane) recordDead(items []*item, outcome []error) {
	var refused error // of one: the others would only wait for the same answer
	for i, it := range items {
		err := outcome[i]
		if err == nil || !it.dead && (!subscriber.IsPermanent(err) || errors.As(err, new(wholeBatch))) {
			continue
		}
		if !l.noteDeath(it, err) {
			continue
		}
		if refused != nil {
			outcome[i] = refused
			continue
		}
		// A stop must not keep a dead letter from being written.
		ctx, cancel := context.WithTimeout(context.Background(), l.options.Timeout)
		recordErr := l.writeDead(ctx, it)
		cancel()
		if recordErr != nil {
			l.log.Error("record dead letter, the event stays open", "event", it.ev.ID, "err", recordErr)
			refused = fmt.Errorf("record dead letter: %w", recordErr)
			outcome[i] = refused
			continue
		}
		l.sayDead(it, err)
	}
}

// sayDead names a dead letter in the log. Where many come at once it names a few a second: all of them
// stand in walpost.owed.
func (l *Lane) sayDead(it *item, err error) {
	if !l.deadSaid.AllowN(time.Now(), 1) {
		return
	}
	l.log.Error("event is a dead letter", "event", it.ev.ID, "type", it.ev.Type,
		"attempts", it.attempts(), "correlation_id", it.ev.CorrelationID(), "err", err)
}

// noteDeath notes why an item is to be a dead letter. The debt reader may read an item that is in work, or have
// recorded it as owed meanwhile: then it says no, and the item is sent again from there.
func (l *Lane) noteDeath(it *item, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.abandoned {
		return false
	}
	past := it.failing()
	if !it.dead {
		it.dead, past.err = true, err
		past.attempts++
	}
	if now := time.Now(); past.first.IsZero() {
		past.first, past.last = now, now
	}
	return true
}

// writeDead records a dead letter and shows whether that works.
func (l *Lane) writeDead(ctx context.Context, it *item) error {
	err := l.ower.Dead(ctx, l.Name(), it.owed())
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.stats.DeadError = err.Error()
		l.metrics.deadRefused.Inc()
		return err
	}
	l.stats.DeadError = ""
	it.finished = true
	return nil
}
