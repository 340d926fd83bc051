package lane

import (
	"context"
	"math"
	"time"
)

// maxFlightBytes bounds what a pipeline has in memory. It is more than what the default window and a debt can have in
// hand, so it is reached by what was recorded as owed while it was not reported.
const maxFlightBytes = 64 << 20

// flight is what a pipeline has in hand; that of another subscriber has no limit. All of it is guarded by Lane.mu.
type flight struct {
	limit   int       // Options.InFlight; all there are for a subscriber that is no Pipeline; never changes
	open    int       // deliveries of calls that have not settled
	bytes   int       // of them
	retries int       // of them: of keys that fail
	moved   time.Time // when a call settled last, or one began while no other was under way
	doubted int       // calls of Send that wait until it is known whether we lead
	sent    bool      // something was handed over since the last Abort
	abort   chan struct{}
	// abort is closed when the Abort that is under way has ended, and nil while there is none; cutShort ends its time.
	cutShort context.CancelFunc
}

// room is how many deliveries may be handed over at this moment.
func (f *flight) room() int {
	if f.bytes >= maxFlightBytes {
		return 0
	}
	return f.limit - f.open
}

// keyShare is which part of the room that is left one key may take. A destination can keep what is on its way to a part of
// it that hangs, and report nothing of it for as long as that lasts. So about sixty such keys fill a pipeline of the default
// size, however much waits of each, and one key alone is as fast as before while there is room.
const keyShare = 8

// roomOfKey is how many of the items of a key may be handed over, at least one, behind taken others of the same call.
func (f *flight) roomOfKey(taken int, items []*item) int {
	if f.limit == math.MaxInt { // no pipeline
		return len(items)
	}
	n := min(len(items), max(1, (f.room()-taken)/keyShare))
	bytes := (maxFlightBytes - f.bytes) / keyShare
	for i, it := range items[:n] {
		if bytes -= it.ev.Size(); bytes < 0 && i > 0 {
			return i
		}
	}
	return n
}

// retryRoom is how many of them may be of keys that fail.
func (f *flight) retryRoom() int {
	return min(f.room(), max(1, f.limit/2)-f.retries)
}

// add counts deliveries that are handed over.
func (f *flight) add(deliveries int, retry bool) {
	f.open += deliveries
	if retry {
		f.retries += deliveries
	}
	f.sent = f.sent || deliveries > 0
}

// remove ends the count of deliveries that have settled.
func (f *flight) remove(deliveries, bytes int, retry bool) {
	f.open -= deliveries
	f.bytes -= bytes
	if retry {
		f.retries -= deliveries
	}
}

// standsStill reports whether nothing was reported for so long.
func (f *flight) standsStill(now time.Time, limit time.Duration) bool {
	return f.doubted == 0 && now.Sub(f.moved) >= limit
}

// aborting reports whether nothing may be sent because an Abort is under way.
func (f *flight) aborting() bool { return f.abort != nil }

// aborted is closed when no Abort is under way.
func (f *flight) aborted() <-chan struct{} {
	if f.aborting() {
		return f.abort
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}
