package lane

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// Replayed is what became of the events of one call of Replay.
type Replayed struct {
	Delivered, Dead int
	// Left are the events that were given back, in the order in which they came: offer them again before
	// anything newer.
	Left []*event.Event
	// Wait is how long to leave them alone, because one of them failed; 0 where none did.
	Wait time.Duration
}

// replay is one call of Replay. All of it is guarded by Lane.mu.
type replay struct {
	again  time.Time
	open   int           // items neither finished nor given back, and one while they are queued
	ended  chan struct{} // closed when none is open
	result Replayed
	left   []*item
}

// replayLimit bounds ReplayPage.
const replayLimit = 500

// ReplayPage is how many events one call of Replay should take: what the workers can have in hand at
// once, so that a live event waits for no more than one call.
func (l *Lane) ReplayPage() int { return min(l.options.Concurrency*l.options.Batch, replayLimit) }

// Replay hands events over again, next to what is live, and returns when each is delivered, a dead letter,
// or given back. An event that fails is given back together with the later ones of its key, so that live
// events of the key do not wait for its backoff; its attempts are remembered when it is offered again.
// Given back are also events whose key is in debt, blocked or paused, and all of them while the lane does
// not run yet, or stops. When ctx ends, what is still in a handler counts as given back.
//
// Only one goroutine may call it at a time. again is what subscriber.Delivery.Again says.
func (l *Lane) Replay(ctx context.Context, events []*event.Event, again time.Time) Replayed {
	r := &replay{again: again, ended: make(chan struct{}), open: len(events) + 1}
	now := time.Now()
	l.mu.Lock()
	tried := l.tried
	l.tried = nil
	refused := make(map[string]bool) // keys
	for i, ev := range events {
		it := tried[ev]
		if it == nil {
			it = l.newItemLocked(ev, nil, now)
		}
		it.origin, it.number, it.queue = replayOrigin{r}, int32(i), nil
		key := l.options.Ordering.keyOf(ev)
		if refused[key] || l.stage != working || l.scope.unread || l.inScopeLocked(it) {
			refused[key] = true
			l.giveBackLocked(it)
			continue
		}
		l.backlog.push(l.options.Ordering.keyOf(it.ev), it)
	}
	r.settled() // the one that kept it open until all were queued
	l.startCallsLocked()
	l.mu.Unlock()

	select {
	case <-r.ended:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.backlog.keys {
		l.dropReplaysLocked(q)
	}
	for c := range l.calls {
		for _, it := range c.items {
			if of, _ := it.replay(); of == r {
				it.origin = replayOrigin{&replay{}} // whatever the handler says, no one is interested any more
				r.left = append(r.left, it)
			}
		}
	}
	slices.SortFunc(r.left, func(a, b *item) int { return cmp.Compare(a.number, b.number) })
	for _, it := range r.left {
		r.result.Left = append(r.result.Left, it.ev)
	}
	return r.result
}

// giveBackLocked returns an item of a replay to its caller.
func (l *Lane) giveBackLocked(it *item) {
	if it.attempts() > 0 {
		if l.tried == nil {
			l.tried = make(map[*event.Event]*item)
		}
		l.tried[it.ev] = it
	}
	r, _ := it.replay()
	r.left = append(r.left, it)
	r.settled()
}

// replayFailedLocked gives back an item that failed, and the later ones of its key.
func (l *Lane) replayFailedLocked(it *item, wait time.Duration) {
	r, _ := it.replay()
	r.result.Wait = max(r.result.Wait, wait)
	l.giveBackLocked(it)
	if q := l.backlog.keys[l.options.Ordering.keyOf(it.ev)]; q != nil {
		l.dropReplaysLocked(q)
	}
}

// dropReplaysLocked gives back what is queued of a key and not in work.
func (l *Lane) dropReplaysLocked(q *keyQueue) {
	q.items = slices.DeleteFunc(q.items, func(it *item) bool {
		if _, replayed := it.replay(); !replayed {
			return false
		}
		l.giveBackLocked(it)
		return true
	})
}

// finished counts an item that was delivered or recorded as dead.
func (r *replay) finished(err error) {
	if err == nil {
		r.result.Delivered++
	} else {
		r.result.Dead++
	}
	r.settled()
}

func (r *replay) settled() {
	if r.open--; r.open == 0 {
		close(r.ended)
	}
}
