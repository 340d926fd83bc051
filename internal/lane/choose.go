package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// A runner is a call of the subscriber that has begun: a call, or a sending of a pipeline. run makes it, and returns
// another one that has begun, or nil. So a goroutine goes on whose stack is as large as the handler needs it.
type runner interface{ run() runner }

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
