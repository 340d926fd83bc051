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
	"github.com/backendstart/walpost/internal/subscriber"
)

// builder makes the parts between reception and confirmation, and starts them.
type builder struct {
	*base
	lead     *leadership
	members  *membership
	vectors  *lane.Vectors
	dispatch *dispatch.Metrics
	attempts *Attempts
	routing  *routing
}

// build makes the parts for the slot as the session found it. In safe mode they hand over one event at a time, and found
// is the event that was in hand when the process last crashed. A part that must end the run calls stop.
func (b *builder) build(s *session, safeMode bool, found *quarantined, stop context.CancelCauseFunc) *parts {
	b.progress.Restart(s.confirmed)
	if safeMode {
		var facts []any
		if found != nil {
			facts = append(facts, "quarantined", found)
		}
		b.Log.Warn("the process ended several times soon after its start; safe mode: one event at a time, until what can have been in hand is handed over", facts...)
	}
	p := &parts{guard: newGuard(b.base, found), drained: make(chan struct{})}
	p.tracker = ack.New(b.Window, len(s.members), s.confirmed)
	var routes []dispatch.Route
	var told []func(secured, finished event.Position)
	for number, m := range s.members {
		if m.left {
			l := b.buildLeaver(s, number, p.tracker)
			p.leavers = append(p.leavers, l)
			routes = append(routes, dispatch.Route{Lane: l, Wants: nothing, Earlier: m.wants.earlier(s.epoch, anything), After: m.after})
			continue
		}
		l := b.buildLane(s, number, p, safeMode, found)
		p.lanes = append(p.lanes, l)
		told = append(told, recordedOf(m.subscription.Subscriber))
		routes = append(routes, dispatch.Route{Lane: l, Wants: m.subscription.wants, Earlier: m.wants.earlier(s.epoch, m.subscription.understands), After: m.after})
	}
	p.dispatch = dispatch.New(s.tables, b.messageSources(), routes, p.tracker, s.epoch, b.MaxEvent, b.dispatch, b.Log)
	p.dispatch.PassOver(s.former())
	p.dispatch.OnType(b.routing.noteTakers)
	p.ledger = &tableLedger{pool: b.Pool, slot: b.Slot, fence: b.fence, debt: b.owed}
	p.ledger.use(s.tables)
	p.recorder = newRecorder(recorderOptions{
		ledger: p.ledger, tracker: p.tracker, tracer: b.Tracer, log: b.Log, metrics: b.metrics, stop: stop,
		names: b.names(), told: told, budget: s.budget, received: b.progress.Received, recorded: s.confirmed,
		epoch: s.epoch, horizon: s.horizon,
	})
	return p
}

// recordedOf is what tells a subscriber up to where its events are recorded; nil where it has no use for that.
func recordedOf(sub subscriber.Subscriber) func(secured, finished event.Position) {
	if remembers, ok := sub.(subscriber.Rememberer); ok {
		return remembers.Recorded
	}
	return nil
}

// buildLane makes the lane of a member that is configured. In safe mode the guard notes what it is about to hand over.
func (b *builder) buildLane(s *session, number int, p *parts, safeMode bool, found *quarantined) *lane.Lane {
	m, tracker := s.members[number], p.tracker
	tracker.AwaitOwes(number) // until the lane has looked, anything may be owed
	options := m.subscription.Lane
	target := b.Tracer.Wrap(m.subscription.Subscriber, options.Mask)
	if safeMode {
		target, options = p.guard.guarding(target, options)
	}
	return lane.New(number, target, options, tracker, b.owed, lane.Stream{
		Term:      b.fence.Term,
		MayBegin:  b.lead.mayBegin,
		Passed:    b.progress.HandedOver, // received alone may still be gathered
		Horizon:   s.horizon,
		Confirmed: s.recorded,
		Crowds:    func() bool { return tracker.Crowds(number) },
		Pressed:   func() bool { return tracker.Pressed(number) },
		Secured:   m.after,
		Exemplar:  b.Tracer.Exemplars(),
		Observe: func(began time.Time, took time.Duration, attempts []lane.Attempt) {
			b.attempts.Record(m.name, began, took, attempts)
		},
		Refuse: func(ev *event.Event) error {
			if found.is(m.name, ev) {
				return errors.New("the process ended several times while this event was handled")
			}
			return nil
		},
	}, b.vectors.For(m.name), b.Log)
}

// buildLeaver makes the leaver that stands in for the lane of a member that has left.
func (b *builder) buildLeaver(s *session, number int, tracker *ack.Tracker) *leaver {
	m := s.members[number]
	l := newLeaver(m.name, number, tracker, b.owed, b.Log)
	l.passed = func() bool { return b.progress.HandedOver() >= s.horizon }
	l.depart = func(ctx context.Context) error {
		if err := b.members.depart(ctx, m.name, m.wants.end(s.epoch)); err != nil {
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

// start runs everything but the stream. When ctx ends, the lanes drain; then the recorder writes for the last time; then
// drained is closed and the channel gets the errors. Whatever still waits when hard ends is cancelled.
func (b *builder) start(ctx, hard context.Context, p *parts, watch func(context.Context), stop context.CancelCauseFunc) <-chan error {
	ended := make(chan error, 1)
	errs := make([]error, len(p.lanes)+len(p.leavers))
	var lanes, others sync.WaitGroup
	for i, l := range p.lanes {
		lanes.Go(func() { errs[i] = l.Run(ctx, b.Drain) })
	}
	for i, l := range p.leavers {
		lanes.Go(func() { errs[len(p.lanes)+i] = l.run(ctx, hard) })
	}
	recording, recorded := context.WithCancel(hard)
	others.Go(func() { p.recorder.run(recording, hard) })
	others.Go(func() { watch(ctx) })
	others.Go(func() { b.lead.keepLead(ctx, p.lanes, stop) })
	others.Go(func() { (&cleaner{b.base}).run(ctx, p) })
	others.Go(func() { newReplayer(b.base, p).run(ctx, recording) })
	go func() {
		lanes.Wait()
		recorded()
		others.Wait()
		close(p.drained)
		ended <- errors.Join(append(errs, p.recorder.unrecorded)...)
	}()
	return ended
}
