// Package relay is the corridor: it opens the rooms in order (publication, slot, stream), hands what
// package wal reads to package dispatch, records what package ack says is finished, and lets package wal
// confirm what is recorded. It holds no queue and knows no protocol. Who shows what it does is package
// ops; who builds and stops it is package app.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/lease"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/wal"
)

// Options are what a relay is made of.
type Options struct {
	// Pool is for the relay's own statements; subscribers have another one, so that they cannot starve it.
	Pool *postgres.Pool
	// ReplicationURL is a direct connection string: a pooler cannot carry replication.
	ReplicationURL    string
	Slot, Publication string
	Sources           []*outbox.Source
	Subscriptions     []Subscription
	Window            ack.Window
	// MaxEvent is the size in bytes above which an event is not kept but recorded as dead.
	MaxEvent int
	// WALBudget is how many bytes of WAL debt may hold: 0 none, Unlimited for always, Auto for what the
	// server's max_slot_wal_keep_size allows.
	WALBudget int64
	// StopOnLostSlot refuses to repair: a person decides how to go on.
	StopOnLostSlot bool
	// Settled is how long a process must live for its end to say nothing about the events that it handled; 0 is
	// 5 minutes.
	Settled time.Duration
	// Drain is how long a stop waits for what is in hand.
	Drain    time.Duration
	Registry prometheus.Registerer
	// Lease is how one of several relays leads; nil is for a relay that is the only one of its slot.
	Lease *lease.Lease
	Log   *slog.Logger
}

// Sessions is how many sessions of Options.Pool the relay holds at a time: a repair reads rows in one transaction and
// records them in another.
const Sessions = 2

// Subscription is a subscriber and what it gets.
type Subscription struct {
	Subscriber subscriber.Subscriber
	Lane       lane.Options
	// Filter says, beside the subscriber's own Wants, which events go to it.
	Filter event.Filter
	// FromBeginning lets a subscriber that is new to the slot begin with all rows that the tables have.
	FromBeginning bool
	// RenamedFrom is the name that the subscriber had before; what is recorded under it is carried over.
	RenamedFrom string
}

// Values of Options.WALBudget beside a number of bytes.
const (
	Unlimited = math.MaxInt64
	Auto      = -1
)

// wants reports whether events of a source and type go to the subscriber. No one can say whether one
// without a type is wanted: it ends as a dead letter of everybody.
func (s Subscription) wants(source, eventType string) bool {
	return s.Filter.Takes(source, eventType) && s.understands(eventType)
}

func (s Subscription) understands(eventType string) bool {
	return eventType == "" || s.Subscriber.Wants(eventType)
}

// filter is what the subscriber wants as data, to be kept.
func (s Subscription) filter() event.Filter {
	filter := s.Filter
	if typed, ok := s.Subscriber.(subscriber.TypedSubscriber); ok {
		filter.Types = typed.Types()
	}
	return filter
}

const (
	// Leave is how long a stop may take after Drain, whatever hangs.
	Leave = 5 * time.Second
	// recordLimit is the part of Leave in which what is finished or open is recorded and confirmed. Then the
	// contexts of all that is under way are cancelled. The rest is for giving the lease back, and for package app.
	recordLimit = 2800 * time.Millisecond
)

// errOutOfTime is the cause with which everything ends that a stop has waited for too long.
var errOutOfTime = errors.New("the time for the stop is over")

// withTimeForStop returns a context that ends when ctx has ended and the time for a stop is over.
func (r *Relay) withTimeForStop(ctx context.Context) (context.Context, context.CancelFunc) {
	hard, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		pause(hard, r.Drain+recordLimit)
		cancel(errOutOfTime)
	})
	return hard, func() {
		stop()
		cancel(nil)
	}
}

// Relay delivers the events of one slot. Run may be called once; Health and Progress at any time.
type Relay struct {
	Options
	fence    *store.Fence
	owed     *debt.Store
	wal      *wal.Metrics
	vectors  *lane.Vectors
	dispatch *dispatch.Metrics
	metrics  *metrics
	attempts *Attempts
	routing  *routing

	mu       sync.Mutex
	state    State            // guarded by mu
	ending   bool             // a stop has begun, so state is Stopping or Stopped; guarded by mu
	problem  string           // why it does not stream; guarded by mu
	stuckAt  event.LSN        // where the stream is stuck, 0 while it is not; guarded by mu
	trouble  string           // what watch has found of the publication; guarded by mu
	held     string           // and that the server holds the stream back; guarded by mu
	awaited  string           // what a creation or repair waits for; guarded by mu
	silent   string           // and that it sends nothing and shows no sign of work; guarded by mu
	lanes    []*lane.Lane     // guarded by mu
	leavers  []*leaver        // guarded by mu
	tracker  *ack.Tracker     // nil before the first session; guarded by mu
	recorder *recorder        // the same
	moved    movement         // guarded by mu
	lost     map[string]int64 // events that no one can send any more, by subscriber; guarded by mu

	saidGone  sync.Map // sources whose log says that rows are gone
	reach     *reach
	strangers []store.Stranger    // at the relay's advisory locks; guarded by mu
	waits     []postgres.LockWait // statements of ours; guarded by mu
}

// New makes a relay and registers its metrics.
func New(o Options) *Relay {
	r := &Relay{
		Options:  o,
		fence:    store.NewFence(o.Slot),
		wal:      wal.NewMetrics(o.Registry),
		vectors:  lane.NewVectors(o.Registry),
		attempts: NewAttempts(remembered, time.Now()),
		routing:  newRouting(o.Subscriptions, o.Log),
		dispatch: dispatch.NewMetrics(o.Registry),
		metrics:  newMetrics(o.Registry),
		state:    Starting,
		reach:    newReach(o.Pool),
	}
	r.owed = debt.NewStore(o.Pool, o.Slot).Within(r.fence).Limit(o.MaxEvent)
	for _, source := range o.Sources {
		r.metrics.gone.WithLabelValues(source.Name) // there before the first one
	}
	r.registerMetrics()
	if o.Lease != nil {
		o.Lease.Notified, o.Lease.Check, o.Lease.Works = r.notified, r.checkLease, r.reach.works
	}
	return r
}

// Run streams until ctx ends and everything in hand is finished or the drain is over. It comes back from
// every loss of Postgres by itself; it returns an error when a person must act.
func (r *Relay) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	keep, end := context.WithCancel(context.WithoutCancel(ctx))
	defer keeping.Wait()
	defer end()
	keeping.Go(func() { r.watchStrangers(keep) })
	keeping.Go(func() { r.watchSlot(keep) })
	keeping.Go(func() { r.watchWaits(keep) })
	if r.Lease != nil {
		keeping.Go(func() { r.watchReach(keep) })
		keeping.Go(func() { r.Lease.Run(keep) })
	}
	ended := r.announceStop(ctx)
	err := r.run(ctx)
	r.setState(Stopped, err)
	ended(err)
	return err
}

// run lives as long as the slot and the database are what they were, then builds everything again: memory
// yields to the database.
func (r *Relay) run(ctx context.Context) error {
	hard, cancel := r.withTimeForStop(ctx)
	defer cancel()
	var living sync.WaitGroup
	defer living.Wait()
	alive, end := context.WithCancel(ctx)
	defer end()
	var (
		why      *changed
		safeMode bool
		found    *quarantined
		short    int // lives in a row that ended soon
	)
	for first := true; ; first = false {
		s, err := r.openUntilReady(ctx, func(ctx context.Context) (*session, error) {
			s, err := r.open(ctx, why)
			if c := asChanged(err); c != nil { // under our hands; there is nothing in memory yet that would not fit
				err = fmt.Errorf("%w: %s", errChangedMeanwhile, c.reason)
			}
			return s, err
		})
		if err != nil || s == nil {
			if first { // nothing was ever handed over, so nothing is under way
				r.release()
			}
			return err
		}
		if first {
			var unclean int
			if unclean, found, err = r.countStart(ctx); err != nil {
				s.conn.Close()
				return err
			}
			safeMode = unclean >= uncleanLimit
			if !safeMode {
				living.Go(func() { r.forgetStarts(alive) })
			}
		}
		begun := time.Now()
		if why, err = r.live(ctx, s, safeMode, found); why == nil {
			last, cancel := context.WithTimeout(hard, lastRecord)
			defer cancel()
			r.endClean(last) // with an error, too: this was no crash
			if err == nil {
				r.release()
			}
			return err
		}
		if why == errSafeModeDone {
			r.Log.Info("what can have been in hand when the process ended is handed over; safe mode is over")
			safeMode, found = false, nil
			r.endClean(ctx)
			continue
		}
		if why.writersEnded {
			continue
		}
		r.Log.Warn("what is in memory does not fit the database any more; everything is read again", "reason", why.reason)
		if short++; time.Since(begun) > steady {
			short = 0
		}
		if short > 1 { // it may be the same again
			pause(ctx, rebuild.Wait(short-1))
		}
	}
}

// live runs the rooms until ctx ends or a person must act; or until something has changed, and says what.
func (r *Relay) live(ctx context.Context, first *session, safeMode bool, found *quarantined) (*changed, error) {
	// What ends the run for any reason ends it softly: what is in hand is finished and recorded.
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	hard, cancel := r.withTimeForStop(run)
	defer cancel()
	parts := r.build(first, safeMode, found, stop)
	ended := parts.start(run, hard, r, func(ctx context.Context) {
		var watching sync.WaitGroup
		if safeMode {
			watching.Go(func() { r.endSafeMode(ctx, first, parts, stop) })
		}
		watching.Go(func() { r.awaitSecondPass(ctx, first, stop) })
		r.watch(ctx, first, parts, stop)
		watching.Wait()
	}, stop)

	err := r.stream(run, hard, first, parts)
	why := asChanged(err)
	if ctx.Err() == nil && why == nil {
		why = asChanged(context.Cause(run)) // what watch or the recorder has found
	}
	if why != nil && ctx.Err() == nil {
		r.setState(Repairing, why)
		stop(why)
		if err := <-ended; err != nil {
			r.Log.Error("not everything has ended; it is left behind", "err", err)
		}
		return why, nil
	}
	if why != nil {
		err = nil // the next start finds it
	}
	r.setState(Stopping, err)
	stop(nil)
	if setup := (*wal.SetupError)(nil); err == nil && errors.As(context.Cause(run), &setup) {
		err = context.Cause(run)
	}
	return nil, errors.Join(err, <-ended)
}

// parts are the rooms between reception and confirmation. They outlive connections.
type parts struct {
	tracker  *ack.Tracker
	dispatch *dispatch.Dispatcher
	lanes    []*lane.Lane
	leavers  []*leaver
	recorder *recorder
	ledger   *tableLedger
	guard    *guard
	drained  chan struct{} // closed when nothing will be confirmed any more
}

// build makes the rooms for the slot as it was found. After several unclean ends of the process one event
// at a time is handed over, and found is the one that was in hand at the last of them.
//
// What must end the run is told to stop.
func (r *Relay) build(s *session, safeMode bool, found *quarantined, stop context.CancelCauseFunc) *parts {
	r.wal.Restart(s.confirmed)
	if safeMode {
		var facts []any
		if found != nil {
			facts = append(facts, "quarantined", found)
		}
		r.Log.Warn("the process ended several times soon after its start; safe mode: one event at a time, until what can have been in hand is handed over", facts...)
	}
	guard := newGuard(r.Pool, r.Slot, found)
	p := &parts{guard: guard, drained: make(chan struct{})}
	tracker := ack.New(r.Window, len(s.members), s.confirmed)
	p.tracker = tracker
	routes := make([]dispatch.Route, len(s.members))
	for i, sub := range r.Subscriptions {
		tracker.AwaitOwes(i) // until the lane has looked, anything may be owed
		options := sub.Lane
		target := sub.Subscriber
		if safeMode {
			target = guarded{target, guard}
		}
		name := sub.Subscriber.Name()
		l := lane.New(i, target, options, tracker, r.owed, lane.Stream{
			Term:     r.fence.Term,
			MayBegin: r.leads,
			Passed:   r.wal.HandedOver, // received alone may still be gathered
			Horizon:  s.horizon,
			Crowds:   func() bool { return tracker.Crowds(i) },
			Pressed:  func() bool { return tracker.Pressed(i) },
			Secured:  s.members[i].after,
			Observe: func(began time.Time, took time.Duration, attempts []lane.Attempt) {
				r.attempts.Record(name, began, took, attempts)
			},
			Refuse: func(ev *event.Event) error {
				if found.is(name, ev) {
					return errors.New("the process ended several times while this event was handled")
				}
				return nil
			},
		}, r.vectors.For(name), r.Log)
		p.lanes = append(p.lanes, l)
		routes[i] = dispatch.Route{Lane: l, Wants: sub.wants, Earlier: s.members[i].wants.earlier(s.epoch, sub.understands), After: s.members[i].after}
	}
	for i, m := range s.members {
		if m.left {
			l := r.newLeaver(s, i, tracker)
			p.leavers = append(p.leavers, l)
			routes[i] = dispatch.Route{Lane: l, Wants: nothing, Earlier: m.wants.earlier(s.epoch, anything), After: m.after}
		}
	}
	p.dispatch = dispatch.New(s.tables, r.messageSources(), routes, tracker, s.epoch, r.MaxEvent, r.dispatch, r.Log)
	p.dispatch.PassOver(s.former())
	p.dispatch.OnType(r.routing.note)
	p.ledger = &tableLedger{pool: r.Pool, slot: r.Slot, fence: r.fence, debt: r.owed}
	p.ledger.use(s.tables)
	p.recorder = &recorder{
		ledger: p.ledger, tracker: tracker, log: r.Log, metrics: r.metrics, stop: stop,
		names: r.names(), budget: s.budget, received: r.wal.Received, recorded: s.confirmed,
		epoch: s.epoch,
	}
	r.mu.Lock()
	r.tracker, r.lanes, r.leavers, r.recorder = tracker, p.lanes, p.leavers, p.recorder
	r.mu.Unlock()
	return p
}

// start runs everything but the stream. When ctx ends, the lanes drain, then the recorder records for
// the last time, then drained is closed and the channel gets the first error. What still waits for something
// at the end of hard ends then.
func (p *parts) start(ctx, hard context.Context, r *Relay, watch func(context.Context), stop context.CancelCauseFunc) <-chan error {
	ended := make(chan error, 1)
	errs := make([]error, len(p.lanes)+len(p.leavers))
	var lanes, others sync.WaitGroup
	for i, l := range p.lanes {
		lanes.Go(func() { errs[i] = l.Run(ctx, r.Drain) })
	}
	for i, l := range p.leavers {
		lanes.Go(func() { errs[len(p.lanes)+i] = l.run(ctx, hard) })
	}
	recording, recorded := context.WithCancel(hard)
	others.Go(func() { p.recorder.run(recording, hard) })
	others.Go(func() { watch(ctx) })
	others.Go(func() { r.keepLead(ctx, p.lanes, stop) })
	others.Go(func() { r.clean(ctx, p.ledger) })
	others.Go(func() { r.newReplayer(p).run(ctx, recording) })
	go func() {
		lanes.Wait()
		recorded()
		others.Wait()
		close(p.drained)
		ended <- errors.Join(append(errs, p.recorder.unrecorded)...)
	}()
	return ended
}

// stream reads the slot, and again after every loss of the connection, until ctx ends or a person must
// act. At the end of hard it waits for nothing more.
func (r *Relay) stream(ctx, hard context.Context, s *session, p *parts) error {
	var before serverError
	for short := 0; ; {
		begun, from := time.Now(), p.tracker.Received()
		if !r.isStuck() {
			r.setState(Streaming, nil)
		}
		r.Log.Info("streaming", "slot", r.Slot, "publication", r.Publication, "confirmed", s.confirmed)
		err := s.conn.Stream(ctx, wal.StreamOptions{
			Slot: r.Slot, Publication: r.Publication, Confirmed: s.confirmed,
			Receiver: p.dispatch, Confirmer: p.tracker,
			Drained: p.drained, OutOfTime: hard.Done(), Alive: r.alive, Log: r.Log, Metrics: r.wal,
		})
		s.conn.Close()
		if ctx.Err() != nil {
			return r.whileStopping(err)
		}
		if errors.Is(err, wal.ErrMissing) {
			return &changed{reason: err.Error(), unreadable: true}
		}
		if final(err) != nil {
			return r.restartIfReadableAgain(ctx, err)
		}
		if short++; time.Since(begun) > steady || p.tracker.Received() != from { // it has delivered
			short = 0
		}
		said := serverErrorOf(err, r.wal.Received())
		if said != (serverError{}) && said == before {
			r.setStuck(said)
		} else {
			r.setState(Reconnecting, err)
		}
		before = said
		wait := reconnect.Wait(short)
		r.Log.Warn("the stream broke, will open it again", "wait", wait, "err", err)
		pause(ctx, wait)
		last := s
		if s, err = r.openUntilReady(ctx, func(ctx context.Context) (*session, error) { return r.reopen(ctx, last) }); err != nil || s == nil {
			return err
		}
		p.dispatch.Connected(s.tables)
		p.ledger.use(s.tables)
		r.wal.Reconnects.Inc()
	}
}
