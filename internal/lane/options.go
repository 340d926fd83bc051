package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// Options are the settings of a subscriber.
type Options struct {
	Ordering    Ordering
	Concurrency int           // calls at the same time
	Batch       int           // events in one call, where the subscriber has HandleBatch or Send
	Timeout     time.Duration // of one call
	Backoff     Backoff
	// MaxAttempts is after how many failed attempts an event is dead, counting only those that show that the
	// event fails and not the subscriber; see breaker.counts. 0 means never.
	MaxAttempts int
	// StallAfter is how long a key may stand still before it falls into debt.
	StallAfter time.Duration
	// Standstill is how long all calls may be under way while the lane holds a full share of the window,
	// before the subscriber falls into debt. 0 is DefaultStandstill.
	Standstill time.Duration
	// InFlight is how many events a Pipeline may have that it has not reported. 0 is DefaultInFlight.
	InFlight int
	// GiveUpAfter is how long an event may fail before it is dead, even if the subscriber is away; 0 is
	// for ever.
	GiveUpAfter time.Duration
	// BlockKey keeps the later events of a key behind a dead one until a person has dealt with it.
	BlockKey bool
	// Mask takes secrets out of an error before anything of it is kept; nil changes nothing.
	Mask func(error) error
}

// masked is an error as it may be kept: what a receiver answers can hold what was sent to it.
func (o *Options) masked(err error) error {
	if err == nil || o.Mask == nil {
		return err
	}
	return o.Mask(err)
}

const (
	// overdueGrace is how long after its deadline a handler may take to notice it.
	overdueGrace = time.Second
	// warnEvery keeps a failing subscriber from filling the log.
	warnEvery = 10 * time.Second
)

// DefaultStandstill suits a destination that works or does not, as one address does. A broker whose parts
// elect a leader needs longer.
const DefaultStandstill = time.Second

// DefaultInFlight is a window of events.
const DefaultInFlight = 10_000

// fitTo fills in what is left open, and takes back what a subscriber cannot do.
func (o *Options) fitTo(sub subscriber.Subscriber) {
	_, batches := sub.(subscriber.BatchSubscriber)
	_, reports := sub.(subscriber.Pipeline)
	if o.InFlight <= 0 {
		o.InFlight = DefaultInFlight
	}
	switch {
	case o.Batch < 1 || !batches && !reports:
		o.Batch = 1
	case reports:
		o.Batch = min(o.Batch, o.InFlight)
	}
	o.Concurrency = max(1, o.Concurrency)
	if o.Standstill <= 0 {
		o.Standstill = DefaultStandstill
	}
	if o.Ordering == Total {
		o.Concurrency = 1
	}
}
