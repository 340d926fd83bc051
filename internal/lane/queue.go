package lane

import (
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

// item is a delivery in the lane.
//
// Invariant: All of it is guarded by Lane.mu but for ev, for the one that has the item in hand as for all others: the debt
// reader looks at items that are in a call, and a call that is overdue goes on with items that the debt reader has. What
// is needed without the lock, to write it to a database or into the log, is copied under it; see owedLocked.
type item struct {
	ev      *event.Event // never changes
	origin  origin
	number  int32         // of a replayed one, in its call of Replay
	offered time.Duration // when the lane got it, from when the lane was made
	queue   *keyQueue     // while in work
	failure *failure      // nil for one that has not failed, as nearly all; see past and failing
	// dead: no more attempts, and failure has the reason; finished: and that is recorded.
	dead, finished bool
	// other: of its dead letter, another row with the same identity stands recorded.
	other bool
	// abandoned: recorded as owed while its handler did not return; what the handler says is ignored.
	abandoned bool
	// recorded: the debt had the live delivery already when that was looked up, while it was in its handler. If the
	// handler fails the debt goes on with it, or it is dead.
	recorded recordedAs
}

// recordedAs is a State in one byte: a window full of items is to be small.
type recordedAs uint8

const (
	notRecorded recordedAs = iota // so nearly all
	recordedWaiting
	recordedEnded // dead or paid
)

func recordedIn(state State) recordedAs {
	switch state {
	case "":
		return notRecorded
	case StateWaiting:
		return recordedWaiting
	case StateDead, StatePaid:
	}
	return recordedEnded
}

// failure is how an item has failed. Most never do, and a window full of items is to be small.
type failure struct {
	attempts    int // failed ones
	counted     int // failed ones that count towards Options.MaxAttempts; see breaker.counts
	refused     int // times that its dead letter could not be recorded
	first, last time.Time
	next        time.Time // when the next one is due
	err         error     // of the last one
}

// past is how the item has failed so far, to be read.
func (it *item) past() failure {
	if it.failure == nil {
		return failure{}
	}
	return *it.failure
}

// failing is how the item fails, to be written.
func (it *item) failing() *failure {
	if it.failure == nil {
		it.failure = &failure{}
	}
	return it.failure
}

// attempts is the number of failed ones.
func (it *item) attempts() int {
	if it.failure == nil {
		return 0
	}
	return it.failure.attempts
}

// owedLocked is what is recorded of an item: a copy, to be used without the lock.
func (it *item) owedLocked() Owed {
	past := it.past()
	o := Owed{Event: it.ev, Attempts: past.attempts, FirstFailure: past.first, LastFailure: past.last, NextAttempt: past.next}
	if past.err != nil {
		o.Err = past.err.Error()
	}
	return o
}

// isLive reports whether the stream brought the item.
func (it *item) isLive() bool {
	_, is := it.origin.(liveOrigin)
	return is
}

// fromDebt reports whether the item was read from the debt.
func (it *item) fromDebt() bool {
	_, is := it.origin.(owedOrigin)
	return is
}

// replay returns the replay that hands the item over, and whether one does.
func (it *item) replay() (*replay, bool) {
	o, is := it.origin.(replayOrigin)
	return o.replay, is
}

// delivery is that of a live item in the tracker.
func (it *item) delivery() *ack.Delivery { return it.origin.(liveOrigin).Delivery }

// keyState is what a key's head is doing.
type keyState int

const (
	idle     keyState = iota // nothing queued
	ready                    // in backlog.ready: its head has not failed
	inWork                   // its first events are in a call
	retrying                 // in backlog.retries: the key fails
)

// keyQueue keeps the events of one key in commit order. All of it is guarded by Lane.mu.
//
// Invariant: what is in work is older than everything in items.
type keyQueue struct {
	key   string
	state keyState
	items []*item
	first [1]*item // room for the only event that most keys have

	failedAt  time.Time // since when the key fails without a delivery between; zero while it does not
	heldUntil time.Time // no attempt before: the receiver has asked for it
	due       time.Time // of the next attempt, while retrying
	place     int       // in backlog.retries, while retrying
}

// fails reports whether the key's next call is a retry: those ride apart from the keys that are well.
func (q *keyQueue) fails() bool {
	return !q.failedAt.IsZero() || len(q.items) > 0 && q.items[0].attempts() > 0
}

// lastFailure is when the head failed last, zero for one that has not failed.
func (q *keyQueue) lastFailure() time.Time {
	if len(q.items) == 0 {
		return time.Time{}
	}
	return q.items[0].past().last
}

// stoodSince is since when the head stands still: since it failed first, or was offered. made is when the
// lane was made.
func (q *keyQueue) stoodSince(made time.Time) time.Time {
	head := q.items[0]
	if first := head.past().first; !first.IsZero() {
		return first
	}
	return made.Add(head.offered)
}

// rest is what is left of a list without its first n items. With nothing left it lets go of them.
func rest(items []*item, n int) []*item {
	if n == len(items) {
		return nil
	}
	return items[n:]
}

// putBack returns deliveries of one key that are not finished to the front of their queue.
func (q *keyQueue) putBack(items []*item) {
	q.items = append(items[:len(items):len(items)], q.items...)
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

// remove takes a queue out of its place in the middle.
func (f *fifo) remove(q *keyQueue) {
	is := func(other *keyQueue) bool { return other == q }
	f.head = slices.DeleteFunc(f.head, is)
	f.tail = slices.DeleteFunc(f.tail, is)
}
