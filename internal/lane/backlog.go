package lane

import (
	"slices"
	"time"
)

// backlog is what a lane has to hand over, by key: which keys are well and in which order they came, and which fail and
// when their next attempt is due. It decides nothing, calls no one and starts nothing: the lane takes keys out of it
// and gives them back.
//
// Invariant: a key with something queued is in work, or in exactly one of ready and retries. All of it is guarded by
// Lane.mu.
type backlog struct {
	keys    map[string]*keyQueue // every key with something queued or in work
	ready   fifo                 // keys that are well and have something to hand over, in order of arrival
	retries retries              // keys that fail
	sample  *keyQueue            // from a random place in the debt, for the next probe; in a list as any other
	spare   []*keyQueue          // for keys to come

	now         func() time.Time
	failedSince func(key string) time.Time // since when a key fails that has nothing queued; zero for one that does not
}

// maxSpare is about as many keys as come and go between two rounds of a busy lane.
const maxSpare = 1000

func newBacklog(now func() time.Time, failedSince func(key string) time.Time) backlog {
	return backlog{keys: make(map[string]*keyQueue), now: now, failedSince: failedSince}
}

// push appends an item to its key.
func (b *backlog) push(key string, it *item) {
	q := b.keys[key]
	if q == nil {
		q = b.newQueue(key)
	}
	q.items = append(q.items, it)
	if q.state == idle {
		b.makeReady(q)
	}
}

// pushFailed is push for an item that had failed when it was recorded, of a key that has nothing queued. It is due then,
// or later.
func (b *backlog) pushFailed(key string, it *item, due time.Time) *keyQueue {
	q := b.newQueue(key)
	q.items = append(q.items, it)
	q.failedAt = it.past().first
	b.retryAt(q, due)
	return q
}

// makeReady lets the next event of a key go as soon as its turn comes.
func (b *backlog) makeReady(q *keyQueue) {
	if q.state == retrying {
		b.retries.remove(q)
	}
	if q.fails() {
		b.retryAt(q, latest(b.now(), q.heldUntil))
		return
	}
	q.state = ready
	b.ready.push(q)
}

// retryAt puts a key among those that fail. It must be in no other list.
func (b *backlog) retryAt(q *keyQueue, due time.Time) {
	q.state, q.due = retrying, due
	b.retries.add(q)
}

// nextReady pops the next key whose head has not failed, or returns nil. Queues that have become empty, because their
// events went to the debt, are released on the way.
func (b *backlog) nextReady() *keyQueue {
	for !b.ready.empty() {
		q := b.ready.pop()
		if len(q.items) > 0 {
			return q
		}
		b.release(q)
	}
	return nil
}

// release ends the work on a key: its next event may go, or the key is forgotten.
func (b *backlog) release(q *keyQueue) {
	if len(q.items) > 0 {
		b.makeReady(q)
		return
	}
	q.state = idle
	delete(b.keys, q.key)
	if q == b.sample {
		b.sample = nil
	}
	if len(b.spare) < maxSpare {
		*q = keyQueue{} // what it held is done, and must not stay in memory until a queue is needed
		b.spare = append(b.spare, q)
	}
}

// releaseEmpty releases a retrying key whose last event was moved to the debt. One in another list is released when its
// turn comes.
func (b *backlog) releaseEmpty(q *keyQueue) {
	if len(q.items) == 0 && q.state == retrying {
		b.retries.remove(q)
		b.release(q)
	}
}

// remove takes the items out of a key that go, and leaves the others in their order.
func (b *backlog) remove(q *keyQueue, goes func(it *item) bool) {
	q.items = slices.DeleteFunc(q.items, goes)
	b.releaseEmpty(q)
}

// newQueue makes the queue of a key that has none. Where every event has a key of its own that is once per event, so
// queues are used again.
func (b *backlog) newQueue(key string) *keyQueue {
	var q *keyQueue
	if last := len(b.spare) - 1; last >= 0 {
		q = b.spare[last]
		b.spare[last] = nil
		b.spare = b.spare[:last]
	} else {
		q = &keyQueue{}
	}
	q.key, q.items = key, q.first[:0]
	q.failedAt = b.failedSince(key)
	b.keys[key] = q
	return q
}
