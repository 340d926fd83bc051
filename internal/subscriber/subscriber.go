// Package subscriber holds the contract between a lane and a subscriber. A subscriber knows neither the others nor where
// events come from. Package lane calls it; package lessons and the packages in sink implement it. It must not do I/O; the inbox
// by which a subscriber in the same database has its effect once is package subscriber/inbox.
package subscriber

import (
	"context"
	"errors"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// ErrOldTerm means that deliveries were given out under a leadership that is over: their effect was rolled
// back, and the relay that leads now gives them out itself. It says nothing about the events.
var ErrOldTerm = errors.New("another relay has led the slot since this was given out")

// A Delivery is one event for one subscriber.
type Delivery struct {
	*event.Event
	// Attempt counts from 1.
	Attempt int
	// Term is the number of the leadership under which the attempt began. A receiver can refuse a
	// delivery whose term is lower than one it has seen.
	Term int64
	// Owed marks a delivery that is sent from walpost.owed.
	Owed bool
	// Replay marks a delivery that a person asked for again.
	Replay bool
	// Again is set in a replay whose effects are wanted once more: those recorded before this moment, by
	// the server's clock, do not count as done. Zero otherwise.
	Again time.Time
}

// A Subscriber reacts to events.
//
// Handle is called for events of one key one at a time and in commit order, for different keys at the
// same time. The same event can come again, always with the same id, key and payload bytes, so its
// effect must be idempotent. Handle must return when its context ends. A returned error means that the
// event comes again, unless it is marked Permanent: then it becomes a dead letter.
type Subscriber interface {
	// Name is the subscriber's identity in tables, metrics and logs. It does not change over time.
	Name() string
	// Wants says by the type alone whether an event is for this subscriber. It is asked once for a type of a source; the
	// answer is kept as long as the process lives.
	Wants(eventType string) bool
	Handle(ctx context.Context, delivery Delivery) error
}

// A TypedSubscriber says which types it Wants as data: patterns in which * is any run of characters. They are kept
// with its position, so that when it has left the configuration it is owed what it wanted of what committed before,
// and no more. Of a subscriber without Types, all types that the configuration asks for count.
type TypedSubscriber interface {
	Subscriber
	Types() []string
}

// A BatchSubscriber takes several events in one call, in commit order per key. It returns nil when all
// are done, a *BatchError when it knows which ones are not, and any other error when none is. The slice is
// the lane's: after the return it holds other deliveries.
type BatchSubscriber interface {
	Subscriber
	HandleBatch(ctx context.Context, deliveries []Delivery) error
}

// A Pipeline takes deliveries and reports on each of them later, as brokers do that acknowledge records and not calls.
//
// The lane has at most one call under way per key, until the last delivery of that key in it is reported: a pipeline may
// report in any order. An event of the key that failed is followed in the same call by later ones: a pipeline that cannot
// keep them from being stored reports them as they ended, and one that has not sent them reports ErrHeld.
//
// A lane calls Send and Abort, and never Handle. Calls of Send overlap; at most in_flight deliveries are unreported at a
// time. A delivery that is not reported within the subscriber's timeout is named, its key waits for the report, and it
// keeps its room: a pipeline that can tell that it will not know soon reports Away.
type Pipeline interface {
	Subscriber
	// Send hands over deliveries, in commit order per key, and returns when there is room for more. It calls done
	// exactly once for each of them, by its index, from any goroutine, also before Send returns and also when ctx has
	// ended: then it hands nothing over. done is quick and never calls back; a second report of a delivery, or one of an
	// index that there is not, is a panic. ctx lives as long as the leadership under which the deliveries go out; it has
	// no deadline of a call. The slice belongs to the pipeline until the last delivery is reported.
	Send(ctx context.Context, deliveries []Delivery, done func(i int, err error))
	// Abort returns once nothing that was sent can reach the destination any more, or when ctx ends. What it gives up is
	// reported with an error. It is called when the context of what was sent has ended, also while a Send runs, or after
	// a panic of Send. Send may be called again afterwards, and is not before.
	Abort(ctx context.Context) error
}

// A Rememberer keeps in mind what it has delivered, so that nothing reaches its destination twice although a process was
// killed. It forgets that when the database has it too.
type Rememberer interface {
	Subscriber
	// Recorded tells that the stream brings nothing up to secured to the subscriber again, under whatever leadership, and that
	// nothing up to finished is owed to it either. It is called a few times a second while deliveries end, by one goroutine,
	// and must be quick.
	Recorded(secured, finished event.Position)
}

// A Prober can tell whether its destination would take events, without sending one: reachable, there, with rights. It is
// asked by people, through walpost doctor, and by no delivery. A subscriber that keeps connections or files is an
// io.Closer as well: it is made once in a process, outlives each rebuild of the pipeline, and is closed when the lanes have
// ended. That its destination is away is no reason not to start.
type Prober interface {
	Probe(ctx context.Context) error
}

// BatchError says which deliveries of a batch failed. What it does not name is done. After an event
// that failed the later ones of its key must not be done either: they are named too, with ErrHeld or any
// other error.
type BatchError struct {
	// Failed has an error for each index into the batch that is not done.
	Failed map[int]error
}

func (e *BatchError) Error() string {
	errs := make([]error, 0, len(e.Failed))
	for _, err := range e.Failed {
		errs = append(errs, err)
	}
	return errors.Join(errs...).Error()
}

// HandleOne makes a Handle of a HandleBatch.
func HandleOne(ctx context.Context, s BatchSubscriber, delivery Delivery) error {
	err := s.HandleBatch(ctx, []Delivery{delivery})
	var partial *BatchError
	if errors.As(err, &partial) {
		return partial.Failed[0]
	}
	return err
}

// FailedOf is the error of a HandleBatch: nil when nothing failed, so that no nil *BatchError becomes an error.
func FailedOf(failed map[int]error) error {
	if len(failed) == 0 {
		return nil
	}
	return &BatchError{Failed: failed}
}

// ErrHeld is the error of a delivery that a batch did not try, because an earlier event of its key failed
// and overtaking it would break the order. It says nothing about the delivery itself.
var ErrHeld = errors.New("not tried: an earlier event of its key failed")

type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent marks an error that no later attempt can fix: the event becomes a dead letter at once.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

// IsPermanent reports whether err, or one that it wraps, was marked with Permanent.
func IsPermanent(err error) bool {
	var p permanent
	return errors.As(err, &p)
}

type away struct{ error }

func (a away) Unwrap() error { return a.error }

// Away marks an error that says that the destination, or the part of it that this event goes to, is absent:
// a partition without a leader, a full stream. The event waits for as long as that takes: the attempt never
// counts towards max_attempts, whatever is delivered elsewhere meanwhile.
func Away(err error) error {
	if err == nil {
		return nil
	}
	return away{err}
}

// IsAway reports whether err, or one that it wraps, was marked with Away.
func IsAway(err error) bool {
	var a away
	return errors.As(err, &a)
}

type risk struct{ error }

func (r risk) Unwrap() error { return r.error }

// Risk marks an error of a Probe that says that the destination takes events, and may lose one that it has taken, or keep one
// twice.
func Risk(err error) error {
	if err == nil {
		return nil
	}
	return risk{err}
}

// IsRisk reports whether err, or one that it wraps, was marked with Risk.
func IsRisk(err error) bool {
	var r risk
	return errors.As(err, &r)
}

type unwanted struct{ error }

func (u unwanted) Unwrap() error { return u.error }

// Pause marks an error with which the receiver says that it wants nothing any more. The subscriber is
// paused until a person resumes it, and the event is owed to it like those that follow.
func Pause(err error) error {
	if err == nil {
		return nil
	}
	return unwanted{err}
}

// IsPause reports whether err, or one that it wraps, was marked with Pause.
func IsPause(err error) bool {
	var u unwanted
	return errors.As(err, &u)
}

type retryAfter struct {
	error
	wait time.Duration
}

func (r retryAfter) Unwrap() error { return r.error }

// RetryAfter marks an error with the time that the receiver asked to be left alone.
func RetryAfter(err error, wait time.Duration) error { return retryAfter{err, wait} }

// RetryAfterOf returns the wait that was attached with RetryAfter, or 0.
func RetryAfterOf(err error) time.Duration {
	var r retryAfter
	if errors.As(err, &r) {
		return r.wait
	}
	return 0
}
