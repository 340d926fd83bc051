package lane

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

// Acks is told how deliveries end; fulfilled by ack.Tracker.
type Acks interface {
	Finish(ends ...ack.End)
	Secure(deliveries []*ack.Delivery)
	Secured(subscriber int) event.Position
	Owes(subscriber int, oldest, holds *event.Position)
}

// Stream tells a lane what it must know about its surroundings.
type Stream struct {
	// Term is the number of the leadership at this moment.
	Term func() int64
	// MayBegin reports whether an attempt may begin at this moment: whether we still lead. While that is in doubt it
	// also returns a channel, and is asked again when that is closed. nil is always.
	MayBegin func() (may bool, again <-chan struct{})
	// Passed is the position up to which the stream has handed over everything that committed.
	Passed func() event.LSN
	// Horizon is the end of the WAL when this process took the lead: what committed below it may have been
	// recorded or delivered by an earlier process.
	Horizon event.LSN
	// Confirmed is what the leader before had recorded as confirmed: what committed below it was finished by all, or owed.
	// The server, and the position of the subscriber, know of it later. 0 is nothing.
	Confirmed event.LSN
	// Refuse returns why an event is to become a dead letter without being handed over, or nil.
	Refuse func(ev *event.Event) error
	// Secured is the position from which the stream goes on for this subscriber.
	Secured event.Position
	// Crowds reports whether the lane holds so much of the window that what stands still falls into debt
	// at once.
	Crowds func() bool
	// Pressed reports whether the window is full and mainly this lane's, so that the others wait for it.
	Pressed func() bool
	// Observe is told how the events of a call fared, once a call, under the lane's lock: it must return at
	// once, and keep neither attempts nor an event. nil tells no one.
	Observe func(began time.Time, took time.Duration, attempts []Attempt)
	// Exemplar returns the labels by which the time of an event leads to its trace, nil for none. nil is never.
	Exemplar func(ev *event.Event) prometheus.Labels
}

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
