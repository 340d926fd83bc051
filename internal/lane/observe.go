package lane

import (
	"errors"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// Outcome is how an attempt ended.
type Outcome string

// The outcomes of an attempt.
const (
	Delivered Outcome = "delivered"
	Failed    Outcome = "failed" // will be tried again, or is owed
	Dead      Outcome = "dead"   // became a dead letter, at this attempt or without another one
)

// Attempt is how one event fared in a call of the subscriber.
type Attempt struct {
	Event *event.Event
	// Number counts from 1; 0 is an event that was never handed over, because it can be delivered to no one.
	Number  int
	Outcome Outcome
	Err     error // nil for Delivered
	Replay  bool  // a person asked for it again
}

// observeLocked tells Stream.Observe how a call ended, before anything is settled.
func (l *Lane) observeLocked(c *call, outcome []error, now time.Time) {
	if l.stream.Observe == nil {
		return
	}
	var stopped *keyQueue // the key of the last failure: what is behind it was not tried
	for i, it := range c.items {
		err := outcome[i]
		_, replayed := it.replay()
		a := Attempt{Event: it.ev, Number: it.attempts() + 1, Outcome: Failed, Err: err, Replay: replayed}
		switch {
		case it.dead: // counted when that was found
			a.Number = it.attempts()
			if it.finished {
				a.Outcome = Dead
			}
		case err == nil:
			a.Outcome = Delivered
		case errors.As(err, new(wholeBatch)):
		case stopped == it.queue:
			continue
		default:
			stopped = it.queue
		}
		l.seen = append(l.seen, a)
	}
	if len(l.seen) > 0 {
		l.stream.Observe(c.begun, now.Sub(c.begun), l.seen)
	}
	clear(l.seen) // or the last large batch would stay in memory
	l.seen = l.seen[:0]
}
