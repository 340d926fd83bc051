package lane

import "time"

// chooseLocked takes what goes into a call: keys that are well, or keys that fail. These ride apart and have
// at most half of the slots, and of the room in a pipeline, so that a receiver that lets them wait delays no other key.
func (c *core) chooseLocked(into *call, now time.Time) {
	b := &c.backlog
	size := min(c.sizes.retryBatch, c.flight.retryRoom())
	retry := size > 0 && c.calls.slots.retries < max(1, c.options.Concurrency/2) && b.retries.due(now) != nil
	if retry && (c.sizes.retryTurn || b.ready.empty()) {
		c.sizes.retryTurn, into.slot.retry = false, true
		for len(into.items) < size && b.retries.due(now) != nil {
			c.takeFromLocked(into, b.retries.pop(), size)
		}
		return
	}
	c.sizes.retryTurn = true
	size = min(c.sizes.batch, c.flight.room())
	for len(into.items) < size {
		q := b.nextReady()
		if q == nil {
			return
		}
		c.takeFromLocked(into, q, size)
	}
}

// takeFromLocked moves deliveries of a key that is in no list any more to a call of up to size. Of the room in a pipeline a
// key gets a part, so that a few that are never reported leave room for the others.
func (c *core) takeFromLocked(into *call, q *keyQueue, size int) {
	if q == c.backlog.sample {
		c.backlog.sample = nil
	}
	n := min(size-len(into.items), len(q.items))
	if c.options.Ordering != Total {
		n = min(n, c.flight.roomOfKey(len(into.items), q.items[:n]))
	}
	if n == 0 { // its events were moved to the debt
		c.backlog.release(q)
		return
	}
	for i, it := range q.items[:n] {
		it.queue = q
		if it.dead || c.options.BlockKey { // what is behind it may have to wait for a person
			n = i + 1
			break
		}
	}
	into.items = append(into.items, q.items[:n]...)
	q.items = q.items[n:]
	q.state = inWork
}
