package lane

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// A pipeline is handed deliveries by one call and reports on each of them later. What is sent is split into one call per
// key, which settles as any other when the last of its deliveries is reported:
//
//	splitLocked       one Send, with a call for each of its keys
//	run               the subscriber gets the deliveries; then the slot is free
//	  report            the subscriber says how one of them has ended, from a goroutine of its own
//	settleReported    calls of which everything is reported
//	markUnreported    calls of which something is not, although its time is over
//	startAbortLocked  nothing that was sent may reach the destination any more
//
// What is not reported has room in Options.InFlight and in maxFlightBytes. A delivery that is overdue keeps its room,
// because the pipeline still has it in memory although the window may not: so a pipeline that never reports ends up with
// no room, as a subscriber whose handlers never return ends up with no call. What failing keys have is at most half of
// the room.

// pipeline hands deliveries to a subscriber that is a Pipeline, and settles what it reports.
type pipeline struct {
	*core
	sub     subscriber.Pipeline // the same as core's
	warned  time.Time           // when it was last logged that deliveries are not reported; guarded by Lane.mu
	spare   []*part             // for parts to come; guarded by Lane.mu
	reports reports
}

// part is what one Send has of one key.
type part struct {
	attempt
	sending *sending // nil when it has settled
	place   int      // in sending.parts
	sent    int      // deliveries
	bytes   int      // of their events
	missing int      // of them not reported; guarded by reports.mu
	dies    bool     // a dead letter may have to be written; guarded by reports.mu until nothing is missing
}

// sending is one Send of a pipeline. It is not used again: a pipeline that reports twice must be found out.
type sending struct {
	pipe       *pipeline
	lead       context.Context // of the leadership under which it began
	slot       slot            // guarded by Lane.mu
	deliveries []subscriber.Delivery
	begun      time.Time   // when the pipeline got them; set before that
	watch      *time.Timer // nil before Send; guarded by Lane.mu

	returned bool    // Send has; guarded by Lane.mu
	open     int     // parts that have not settled; guarded by Lane.mu
	parts    []*part // one per key, nil when settled; guarded by Lane.mu
	verdict  verdict // guarded by Lane.mu

	unsent  []*part  // parts that have only dead letters; owned by run
	reports []report // of the deliveries; guarded by reports.mu
}

// report is what the pipeline says of one delivery.
type report struct {
	part  *part
	item  int // in part
	state reportState
}

type reportState uint8

const (
	unreported reportState = iota
	reported
	givenUp // by the lane: what the pipeline says later is ignored
)

// splitLocked makes a Send of the items that were chosen for a call, and a part for each of their keys.
func (pipe *pipeline) splitLocked(chosen *call) *sending {
	f := &pipe.flight
	s := &sending{pipe: pipe, lead: pipe.lead.ctx, slot: chosen.slot, verdict: verdict{known: true}}
	if pipe.calls.inTime() == 0 {
		f.moved = chosen.begun
	}
	for begin, end := 0, 0; begin < len(chosen.items); begin = end {
		for end < len(chosen.items) && chosen.items[end].queue == chosen.items[begin].queue {
			end++
		}
		s.addPartLocked(chosen, chosen.items[begin:end])
	}
	s.open, s.verdict.open = len(s.parts), len(s.parts)
	pipe.handler.Add(len(s.parts))
	f.add(len(s.deliveries), chosen.slot.retry)
	return s
}

// addPartLocked adds the items of a key to a Send.
func (s *sending) addPartLocked(chosen *call, items []*item) {
	p := s.pipe.newPartLocked(chosen.begun)
	p.items = append(p.items, items...)
	p.slot.retry, p.probe, p.verdict = chosen.slot.retry, chosen.probe, &s.verdict
	p.sending, p.place = s, len(s.parts)
	before := len(s.deliveries)
	s.deliveries = p.addressLocked(s.deliveries)
	p.sent = len(s.deliveries) - before
	p.missing = p.sent
	for i, err := range p.outcome {
		if err == nil {
			p.bytes += p.items[i].ev.Size()
			s.reports = append(s.reports, report{part: p, item: i})
		} else {
			p.dies = true
		}
	}
	s.pipe.flight.bytes += p.bytes
	s.parts = append(s.parts, p)
	if p.sent == 0 {
		s.unsent = append(s.unsent, p)
	}
	s.pipe.calls.add(&p.call)
}

// newPartLocked uses a part that has settled again.
func (pipe *pipeline) newPartLocked(now time.Time) *part {
	var p *part
	if last := len(pipe.spare) - 1; last >= 0 {
		p = pipe.spare[last]
		pipe.spare[last] = nil
		pipe.spare = pipe.spare[:last]
	} else {
		p = &part{}
	}
	p.beginLocked(pipe.core, now)
	p.sent, p.bytes, p.missing, p.dies = 0, 0, 0, false
	return p
}

// recycleLocked ends the use of a part.
func (pipe *pipeline) recycleLocked(p *part) {
	p.sending = nil
	if p.clearLocked() && len(pipe.spare) < maxSpare { // a part for each key in flight
		pipe.spare = append(pipe.spare, p)
	}
}

// run hands the deliveries over.
func (s *sending) run() {
	pipe := s.pipe
	pipe.reports.end(pipe, s.unsent)
	s.unsent = nil
	switch {
	case len(s.deliveries) == 0:
	case !pipe.awaitLead(s.lead, s):
		s.giveUp(errSuspended, true)
	default:
		s.watchReports()
		if err := s.send(); err != nil {
			<-pipe.abortNow()
			s.giveUp(err, false)
		}
	}
}

// endLocked is called when Send has returned: the slot is free, and what is not reported stays open.
func (s *sending) endLocked() {
	s.returned = true
	s.pipe.calls.slots.release(&s.slot)
	s.forgetLocked()
}

func (s *sending) setDoubtedLocked(doubted bool) {
	f := &s.pipe.flight
	f.moved = time.Now()
	if doubted {
		f.doubted++
	} else {
		f.doubted--
	}
}

// watchReports begins the time that the reports may take.
func (s *sending) watchReports() {
	pipe := s.pipe
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	s.watch = time.AfterFunc(pipe.options.Timeout+overdueGrace, s.markUnreported)
}

// send makes a panic an error: that of the deliveries that nothing is said about.
func (s *sending) send() (err error) {
	pipe := s.pipe
	defer func() {
		if p := recover(); p != nil {
			pipe.log.Error("pipeline panicked", "event", s.deliveries[0].ID, "correlation_id", s.deliveries[0].CorrelationID(),
				"panic", pipe.options.masked(fmt.Errorf("%v", p)), "stack", string(debug.Stack()))
			err = fmt.Errorf("pipeline panicked: %v", p)
		}
	}()
	s.begun = time.Now()
	pipe.sub.Send(s.lead, s.deliveries, s.report)
	return nil
}

// forgetLocked lets go of what is needed as long as something is to be reported.
func (s *sending) forgetLocked() {
	if s.returned && s.open == 0 {
		if s.watch != nil {
			s.watch.Stop()
		}
		s.deliveries, s.parts = nil, nil
	}
}

// report is the done of Send. It must be quick, and takes no lock that is held for long. A second report of a delivery
// is refused with a panic: one of the two is not true, and the lane has acted on the first.
func (s *sending) report(i int, err error) {
	pipe, reports := s.pipe, &s.pipe.reports
	reports.mu.Lock()
	defer reports.mu.Unlock()
	if i < 0 || i >= len(s.reports) {
		panic(fmt.Sprintf("subscriber %q reports delivery %d (%v) of a Send of %d", pipe.Name(), i, err, len(s.reports)))
	}
	switch r := &s.reports[i]; r.state {
	case unreported:
		r.state = reported
		pipe.metrics.handle.Observe(time.Since(s.begun).Seconds())
		reports.noteLocked(pipe, r, err)
	case reported:
		panic(fmt.Sprintf("subscriber %q reports delivery %d of a Send of %d twice, the second time as %v", pipe.Name(), i, len(s.reports), err))
	case givenUp:
	}
}

// giveUp reports what the pipeline has not. unbegun tells that nothing was handed over, so that it says nothing about the
// events.
func (s *sending) giveUp(err error, unbegun bool) {
	reports := &s.pipe.reports
	reports.mu.Lock()
	defer reports.mu.Unlock()
	for i := range s.reports {
		if r := &s.reports[i]; r.state == unreported {
			r.state, r.part.unbegun = givenUp, unbegun
			reports.noteLocked(s.pipe, r, err)
		}
	}
}

// reports are the calls of which everything is reported. They are settled by goroutines that are started when there is
// something to do: one for those that need nothing but the lane's lock, and up to Options.Concurrency for those with
// dead letters to write.
type reports struct {
	mu       sync.Mutex
	ended    []*part // guarded by mu
	dying    []*part // guarded by mu
	settling bool    // guarded by mu
	writing  int     // guarded by mu
}

// noteLocked notes a report. With the last one of a call the call has ended.
func (r *reports) noteLocked(pipe *pipeline, of *report, err error) {
	p := of.part
	p.outcome[of.item] = err
	p.dies = p.dies || subscriber.IsPermanent(err)
	if p.missing--; p.missing == 0 {
		r.endLocked(pipe, p)
	}
}

// end ends calls in which nothing is to be handed over.
func (r *reports) end(pipe *pipeline, unsent []*part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range unsent {
		r.endLocked(pipe, p)
	}
}

func (r *reports) endLocked(pipe *pipeline, p *part) {
	switch {
	case !p.dies:
		r.ended = append(r.ended, p)
		if !r.settling {
			r.settling = true
			go pipe.settleReported()
		}
	default:
		r.dying = append(r.dying, p)
		if r.writing < pipe.options.Concurrency {
			r.writing++
			go pipe.settleDying()
		}
	}
}

// takeEnded returns the calls that have ended, in the memory of its caller's last ones; none ends the caller's work.
func (r *reports) takeEnded(last []*part) []*part {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := r.ended
	r.ended = last[:0]
	r.settling = len(ended) > 0
	return ended
}

// takeDying returns a call with dead letters; nil ends the caller's work.
func (r *reports) takeDying() *part {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.dying) == 0 {
		r.writing--
		r.dying = nil
		return nil
	}
	p := r.dying[0]
	r.dying = r.dying[1:]
	return p
}

// settledAtOnce bounds how long the lane's lock is held for what was reported.
const settledAtOnce = 500

// settleReported settles calls without dead letters until there are none.
func (pipe *pipeline) settleReported() {
	var ended []*part
	for {
		ended = pipe.reports.takeEnded(ended)
		if len(ended) == 0 {
			return
		}
		for _, p := range ended {
			pipe.readReports(p)
		}
		for some := range slices.Chunk(ended, settledAtOnce) {
			pipe.settleParts(some)
		}
		clear(ended)
	}
}

// settleDying settles calls with dead letters until there are none.
func (pipe *pipeline) settleDying() {
	for p := pipe.reports.takeDying(); p != nil; p = pipe.reports.takeDying() {
		pipe.readReports(p)
		pipe.recordDead(p.items, p.outcome)
		pipe.settleParts([]*part{p})
	}
}

// readReports masks what was reported of a call. That another relay has led says nothing about the events.
func (pipe *pipeline) readReports(p *part) {
	for i, err := range p.outcome {
		if err == nil {
			continue
		}
		if errors.Is(err, subscriber.ErrOldTerm) {
			pipe.Suspend()
		}
		p.outcome[i] = pipe.options.masked(err)
	}
}

// settleParts settles calls of which everything is reported.
func (pipe *pipeline) settleParts(parts []*part) {
	f := &pipe.flight
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	now := time.Now()
	for _, p := range parts {
		s := p.sending
		if s == nil {
			panic(fmt.Sprintf("subscriber %q: a call of a pipeline settles twice", pipe.Name()))
		}
		s.open--
		s.parts[p.place] = nil
		f.remove(p.sent, p.bytes, p.slot.retry)
		pipe.settleLocked(p.lead, &p.call, p.outcome, p.unbegun, now)
		pipe.recycleLocked(p)
		s.forgetLocked()
		pipe.handler.Done()
	}
	f.moved = now
	pipe.afterSettlingLocked()
}

// markUnreported gives the slot of a Send that does not return to others, and lets nothing but its keys wait for what is
// not reported.
func (s *sending) markUnreported() {
	pipe := s.pipe
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if !s.returned && !s.slot.lost {
		pipe.calls.slots.lose(&s.slot)
	}
	now := time.Now()
	events, first := 0, (*event.Event)(nil)
	for _, p := range pipe.reports.missing(s.parts) {
		if p.overdue { // a stop was not willing to wait for it
			continue
		}
		if events == 0 {
			first = p.items[0].ev
		}
		events += len(p.items)
		pipe.noteOverdue(&p.call)
		pipe.endPartLocked(&p.call, true, now)
	}
	if events > 0 {
		pipe.stats.Failed++
		pipe.stats.LastError = "a delivery is not reported"
		if now.Sub(pipe.warned) >= warnEvery {
			pipe.warned = now
			pipe.log.Error("deliveries are not reported although their time is over; their keys wait for them",
				"event", first.ID, "correlation_id", first.CorrelationID(), "events", events, "timeout", pipe.options.Timeout)
		}
	}
	pipe.afterOverdueLocked()
}

// missing are those of the calls of which something is not reported.
func (r *reports) missing(parts []*part) (missing []*part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		if p != nil && p.missing > 0 {
			missing = append(missing, p)
		}
	}
	return missing
}
