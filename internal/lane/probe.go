package lane

import "time"

// chooseProbeLocked takes the event of the next probe, if one may go out now. See breaker.
func (c *core) chooseProbeLocked(into *call, now time.Time) {
	b := &c.breaker
	if c.calls.inTime() > 0 || now.Before(b.next) {
		return // one at a time; its end, or the timer, comes back here
	}
	for range turns {
		into.probe = b.turn
		b.turn = b.turn.next()
		if q := c.probeOfLocked(into.probe, now); q != nil {
			c.takeFromLocked(into, q, 1)
			return
		}
	}
}

// probeOfLocked returns the key whose turn it is and removes it from its list, or returns nil.
func (c *core) probeOfLocked(t turn, now time.Time) *keyQueue {
	b := &c.breaker
	switch t {
	case untriedTurn:
		if q := c.backlog.nextReady(); q != nil {
			return q
		}
		if q := c.backlog.retries.due(now); q != nil && !b.failedSince(q.lastFailure()) {
			return c.backlog.retries.pop()
		}
	case oldestTurn:
		if c.backlog.retries.due(now) != nil && !now.Before(b.nextOther) {
			return c.backlog.retries.pop()
		}
	case randomTurn:
		q := c.backlog.sample
		if q == nil || now.Before(b.nextOther) || q.due.After(now) {
			return nil
		}
		if q.state == retrying {
			c.backlog.retries.remove(q)
		} else {
			c.backlog.ready.remove(q)
		}
		return q
	}
	return nil
}

// nextProbeAtLocked is when a probe can go out without another event from outside; zero for never.
func (c *core) nextProbeAtLocked() time.Time {
	b := &c.breaker
	switch {
	case c.calls.inTime() > 0:
		return time.Time{}
	case !c.backlog.ready.empty():
		return b.next
	}
	var at time.Time
	if q := c.backlog.retries.first(); q != nil {
		at = latest(q.due, b.next)
		if b.failedSince(q.lastFailure()) {
			at = latest(at, b.nextOther)
		}
	}
	if c.backlog.sample != nil {
		if of := latest(c.backlog.sample.due, b.next, b.nextOther); at.IsZero() || of.Before(at) {
			at = of
		}
	}
	return at
}
