package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

// item is a delivery in the lane.
type item struct {
	*ack.Delivery
	queue *keyQueue // while in work

	attempts     int // failed ones
	refused      int // times that its dead letter could not be recorded
	counted      int // failed ones after which the subscriber was proved to be well
	firstFailure time.Time
	lastErr      error
	// dead: no more attempts, lastErr is the reason; finished: and that is recorded.
	dead, finished bool
}

// keyState is what a key's head is doing.
type keyState int

const (
	idle    keyState = iota // nothing queued
	ready                   // in Lane.ready
	inWork                  // its first events are in a call
	backoff                 // waits for its timer
)

// keyQueue keeps the events of one key in commit order. All of it is guarded by Lane.mu.
//
// Invariant: what is in work is older than everything in items.
type keyQueue struct {
	key   string
	state keyState
	items []*item
	timer *time.Timer // in backoff
}

// queueOf finds or makes the queue that an event belongs to.
func (l *Lane) queueOf(ev *event.Event) *keyQueue {
	var key string
	switch l.options.Ordering {
	case None:
		return &keyQueue{} // waits for nothing, so nobody needs to find it
	case ByKey:
		key = ev.Key
	case Total:
	}
	q := l.keys[key]
	if q == nil {
		q = &keyQueue{key: key}
		l.keys[key] = q
	}
	return q
}

func (l *Lane) makeReady(q *keyQueue) {
	if q.state == backoff {
		q.timer.Stop()
		delete(l.resting, q)
	}
	q.state = ready
	l.ready.push(q)
}

// release ends the work on a key: its next event may go, or it is forgotten.
func (l *Lane) release(q *keyQueue) {
	if len(q.items) > 0 {
		l.makeReady(q)
		return
	}
	q.state = idle
	if l.keys[q.key] == q {
		delete(l.keys, q.key)
	}
}

// putBack returns deliveries of one key that are not finished to the front of their queue.
func (q *keyQueue) putBack(items []*item) {
	q.items = append(items[:len(items):len(items)], q.items...)
}

// backOff lets a key wait.
func (l *Lane) backOff(q *keyQueue, wait time.Duration) {
	q.state = backoff
	l.resting[q] = struct{}{}
	q.timer = time.AfterFunc(wait, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if q.state == backoff && l.running {
			l.makeReady(q)
			l.pump()
		}
	})
}

// fifo is a queue of keys. The zero value is empty.
type fifo struct {
	head, tail []*keyQueue // popped from the end of head, pushed to the end of tail
}

func (f *fifo) empty() bool { return len(f.head) == 0 && len(f.tail) == 0 }

func (f *fifo) push(q *keyQueue) { f.tail = append(f.tail, q) }

// pushFront returns a queue to the place that pop took it from.
func (f *fifo) pushFront(q *keyQueue) { f.head = append(f.head, q) }

func (f *fifo) pop() *keyQueue {
	if len(f.head) == 0 {
		f.head, f.tail = f.tail, f.head[:0]
		for i, j := 0, len(f.head)-1; i < j; i, j = i+1, j-1 {
			f.head[i], f.head[j] = f.head[j], f.head[i]
		}
	}
	last := len(f.head) - 1
	q := f.head[last]
	f.head[last] = nil
	f.head = f.head[:last]
	return q
}
