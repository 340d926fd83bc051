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
	l.mu.Lock()
	l.enqueueReplayLocked(r, events)
	r.endOne() // the one that kept it open until all were queued
	l.startCallsLocked()
	l.mu.Unlock()

	select {
	case <-r.ended:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeBackReplayLocked(r)
	result := Replayed{Delivered: r.delivered, Dead: r.dead, Wait: r.wait}
	slices.SortFunc(r.left, func(a, b leftItem) int { return cmp.Compare(a.number, b.number) })
	for _, left := range r.left {
		result.Left = append(result.Left, left.ev)
	}
	return result
}

// enqueueReplayLocked queues the events of a replay, but for those of keys that cannot be handed over now.
func (l *Lane) enqueueReplayLocked(r *replay, events []*event.Event) {
	now := time.Now()
	tried := l.tried
	l.tried = nil
	refused := make(map[string]bool) // keys
	for i, ev := range events {
		it := tried[ev]
		if it == nil {
			it = l.newItem(ev, nil, now)
		}
		it.origin, it.number, it.queue = replayOrigin{r}, int32(i), nil
		key := l.keyOf(it)
		if refused[key] || l.stage != working || l.scope.unread || l.inScopeLocked(it) {
			refused[key] = true
			l.giveBackLocked(replayOrigin{r}, it)
			continue
		}
		l.backlog.push(key, it)
	}
}

// takeBackReplayLocked takes back what is left of a replay. What is in a handler is given back too: whatever the handler
// says of it, no one is interested any more.
func (l *Lane) takeBackReplayLocked(r *replay) {
	for _, q := range l.backlog.keys {
		l.dropReplaysLocked(q)
	}
	for c := range l.calls.all {
		for _, it := range c.items {
			if of, _ := it.replay(); of == r {
				it.origin = replayOrigin{&replay{}}
				r.left = append(r.left, leftItem{it.number, it.ev})
			}
		}
	}
}
