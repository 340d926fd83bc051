package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

// builder makes the rooms between reception and confirmation.
type builder struct {
	*base
	lead     *leadership
	members  *membership
	vectors  *lane.Vectors
	dispatch *dispatch.Metrics
	attempts *Attempts
	routing  *routing
}

// build makes the rooms for the slot as it was found. After several unclean ends of the process one event
// at a time is handed over, and found is the one that was in hand at the last of them.
//
// What must end the run is told to stop.
func (r *builder) build(s *session, safeMode bool, found *quarantined, stop context.CancelCauseFunc) *parts {
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
			MayBegin: r.lead.leads,
			Passed:   r.wal.HandedOver, // received alone may still be gathered
			Horizon:  s.horizon,
			Recorded: s.recorded,
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
			l := r.buildLeaver(s, i, tracker)
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
		epoch: s.epoch, horizon: s.horizon,
	}
	return p
}

// buildLeaver makes what takes the place of the lane of a member that has left.
func (r *builder) buildLeaver(s *session, number int, tracker *ack.Tracker) *leaver {
	m := s.members[number]
	l := newLeaver(m.name, number, tracker, r.owed, r.Log)
	l.passed = func() bool { return r.wal.HandedOver() >= s.horizon }
	l.depart = func(ctx context.Context) error {
		if err := r.members.depart(ctx, m.name, m.wants.end(s.epoch)); err != nil {
			return err
		}
		if l.owed > 0 {
			l.log.Warn("events that committed before the subscriber left are recorded as owed to it until it is forgotten", "events", l.owed, "first", l.first, "last", l.last)
		}
		l.log.Info("everything that committed before the subscriber left is delivered or owed; it holds nothing any more")
		return nil
	}
	return l
}

// start runs everything but the stream. When ctx ends, the lanes drain, then the recorder records for
// the last time, then drained is closed and the channel gets the first error. What still waits for something
// at the end of hard ends then.
func (r *builder) start(ctx, hard context.Context, p *parts, watch func(context.Context), stop context.CancelCauseFunc) <-chan error {
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
	others.Go(func() { r.lead.keepLead(ctx, p.lanes, stop) })
	others.Go(func() { (&cleaner{r.base}).run(ctx, p.ledger) })
	others.Go(func() { newReplayer(r.base, p).run(ctx, recording) })
	go func() {
		lanes.Wait()
		recorded()
		others.Wait()
		close(p.drained)
		ended <- errors.Join(append(errs, p.recorder.unrecorded)...)
	}()
	return ended
}
