package lane

import (
	"slices"
	"time"
)

// chooseProbeLocked takes the event of the next probe, if one may go out now. See breaker.
func (l *Lane) chooseProbeLocked(c *call, now time.Time) {
	b := &l.breaker
	if len(l.calls) > l.overdue || now.Before(b.next) {
		return // one at a time; its end, or the timer, comes back here
	}
	for range turns {
		c.probe = b.turn
		b.turn = b.turn.next()
		if q := l.probeOfLocked(c.probe, now); q != nil {
			l.takeFromLocked(c, q, 1)
			return
		}
	}
}

// probeOfLocked returns the key whose turn it is and removes it from its list, or returns nil.
func (l *Lane) probeOfLocked(t turn, now time.Time) *keyQueue {
	b := &l.breaker
	switch t {
	case untriedTurn:
		if q := l.backlog.nextReady(); q != nil {
			return q
		}
		if q := l.backlog.retries.due(now); q != nil && !b.failedSince(q.lastFailure()) {
			return l.backlog.retries.pop()
		}
	case oldestTurn:
		if l.backlog.retries.due(now) != nil && !now.Before(b.nextOther) {
			return l.backlog.retries.pop()
		}
	case randomTurn:
		q := l.backlog.sample
		if q == nil || now.Before(b.nextOther) || q.due.After(now) {
			return nil
		}
		if q.state == retrying {
			l.backlog.retries.remove(q)
		} else {
			l.backlog.ready.remove(q)
		}
		return q
	}
	return nil
}

// nextProbeAtLocked is when a probe can go out without another event from outside; zero for never.
func (l *Lane) nextProbeAtLocked() time.Time {
	b := &l.breaker
	switch {
	case len(l.calls) > l.overdue:
		return time.Time{}
	case !l.backlog.ready.empty():
		return b.next
	}
	var at time.Time
	if q := l.backlog.retries.first(); q != nil {
		at = latest(q.due, b.next)
		if b.failedSince(q.lastFailure()) {
			at = latest(at, b.nextOther)
		}
	}
	if l.backlog.sample != nil {
		if of := latest(l.backlog.sample.due, b.next, b.nextOther); at.IsZero() || of.Before(at) {
			at = of
		}
	}
	return at
}

// scheduleWakeLocked sets the timer that calls startCallsLocked when the next retry or probe may begin.
func (l *Lane) scheduleWakeLocked(now time.Time) {
	if !l.mayCallLocked() || !l.slots.free(l.options.Concurrency) || l.pipe.roomLocked() == 0 {
		return // the end of a call comes back here
	}
	var at time.Time
	if l.breaker.open() {
		at = l.nextProbeAtLocked()
	} else if q := l.backlog.retries.first(); q != nil && q.due.After(now) {
		at = q.due // what is due already waits for a call to end
	}
	if at.IsZero() || at.Equal(l.wakeAt) {
		return
	}
	l.wakeAt = at
	wait := max(at.Sub(now), 0)
	if l.wake == nil {
		l.wake = time.AfterFunc(wait, l.wakeUp)
		return
	}
	l.wake.Reset(wait)
}

func (l *Lane) wakeUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeAt = time.Time{}
	if l.stage.handsOver() {
		l.startCallsLocked()
	}
}

// partEndedLocked notes that a part of a call has ended, or is overdue. With the last one it tells the breaker of a call
// in which nothing was delivered.
func (l *Lane) partEndedLocked(c *call, failed bool, now time.Time) {
	v := c.verdict
	v.open--
	if failed {
		v.failed = true
		v.known = v.known && !slices.ContainsFunc(c.items, func(it *item) bool { return !it.dead && !l.breaker.knows(it.queue.failedAt) })
	}
	if v.open > 0 || v.delivered || !v.failed || !l.breaker.fail(now, v.known, c.probe) {
		return
	}
	l.metrics.breakerOpen.Set(1)
	l.log.Warn("subscriber is away, trying one event at a time", "event", c.items[0].ev.ID, "failures", l.breaker.streak)
	signal(l.readerWake)
}

// succeededLocked notes a delivery. If the subscriber was away nothing has to wait any longer, except for
// keys whose receiver has asked for it.
func (l *Lane) succeededLocked(now time.Time) {
	if !l.breaker.succeed(now) {
		return
	}
	l.backlog.sample = nil
	l.metrics.breakerOpen.Set(0)
	l.log.Info("subscriber is back", "keys_waiting", len(l.backlog.retries))
	for _, q := range l.backlog.retries {
		q.due = latest(now, q.heldUntil)
	}
	l.backlog.retries.sort()
	l.backAgain = true
	signal(l.readerWake)
}
