package lane

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

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

// maxFlightBytes bounds what a pipeline has in memory. It is more than what the default window and a debt can have in
// hand, so it is reached by what was recorded as owed while it was not reported.
const maxFlightBytes = 64 << 20

// pipeline is a subscriber that is a Pipeline, and what it has in hand. A nil one is of a subscriber that is none.
type pipeline struct {
	lane    *Lane
	sub     subscriber.Pipeline
	flight  flight    // guarded by Lane.mu
	warned  time.Time // when it was last logged that deliveries are not reported; guarded by Lane.mu
	reports reports
}

// flight is what a pipeline has in hand. All of it is guarded by Lane.mu.
type flight struct {
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

// abortingLocked reports whether nothing may be sent because an Abort is under way.
func (pipe *pipeline) abortingLocked() bool { return pipe != nil && pipe.flight.abort != nil }

// roomLocked is how many deliveries may be handed over at this moment.
func (pipe *pipeline) roomLocked() int {
	switch {
	case pipe == nil:
		return math.MaxInt
	case pipe.flight.bytes >= maxFlightBytes:
		return 0
	}
	return pipe.lane.options.InFlight - pipe.flight.open
}

// retryRoomLocked is how many of them may be of keys that fail.
func (pipe *pipeline) retryRoomLocked() int {
	if pipe == nil {
		return math.MaxInt
	}
	return min(pipe.roomLocked(), max(1, pipe.lane.options.InFlight/2)-pipe.flight.retries)
}

// standsStillLocked reports whether nothing was reported for a while.
func (pipe *pipeline) standsStillLocked(now time.Time) bool {
	return pipe.flight.doubted == 0 && now.Sub(pipe.flight.moved) >= pipe.lane.options.Standstill
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
	parts    []*call // one per key, nil when settled; guarded by Lane.mu
	verdict  verdict // guarded by Lane.mu

	unsent  []*call  // parts that have only dead letters; owned by run
	reports []report // of the deliveries; guarded by reports.mu
}

// report is what the pipeline says of one delivery.
type report struct {
	part  *call
	item  int // in part
	state reportState
}

type reportState uint8

const (
	unreported reportState = iota
	reported
	givenUp // by the lane: what the pipeline says later is ignored
)

// splitLocked makes a Send of the items of a call, and a call for each of its keys.
func (pipe *pipeline) splitLocked(c *call) *sending {
	l, f := pipe.lane, &pipe.flight
	s := &sending{pipe: pipe, lead: c.lead, slot: c.slot, verdict: verdict{known: true}}
	if len(l.calls) == l.overdue {
		f.moved = c.begun
	}
	for begin, end := 0, 0; begin < len(c.items); begin = end {
		for end < len(c.items) && c.items[end].queue == c.items[begin].queue {
			end++
		}
		p := l.newCallLocked(c.begun)
		p.items = append(p.items, c.items[begin:end]...)
		p.slot.retry, p.probe, p.verdict = c.slot.retry, c.probe, &s.verdict
		p.sending, p.place = s, len(s.parts)
		before := len(s.deliveries)
		s.deliveries = l.addressLocked(p, s.deliveries)
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
		f.bytes += p.bytes
		s.parts = append(s.parts, p)
		if p.sent == 0 {
			s.unsent = append(s.unsent, p)
		}
		l.calls[p] = struct{}{}
	}
	s.open, s.verdict.open = len(s.parts), len(s.parts)
	l.handler.Add(len(s.parts))
	f.open += len(s.deliveries)
	if c.slot.retry {
		f.retries += len(s.deliveries)
	}
	f.sent = f.sent || len(s.deliveries) > 0
	l.recycleLocked(c)
	return s
}

// run hands the deliveries over, and returns another call that has begun.
func (s *sending) run() runner {
	l := s.pipe.lane
	s.pipe.reports.end(s.pipe, s.unsent)
	s.unsent = nil
	switch {
	case len(s.deliveries) == 0:
	case !l.awaitLead(s.lead, s):
		s.giveUp(errSuspended, true)
	default:
		s.watchReports()
		if err := s.send(); err != nil {
			<-s.pipe.abortNow()
			s.giveUp(err, false)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.returned = true
	l.slots.release(&s.slot)
	s.endLocked()
	next := l.nextCallLocked()
	l.startCallsLocked()
	signal(l.idle)
	return next
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
	l := s.pipe.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	s.watch = time.AfterFunc(l.options.Timeout+overdueGrace, s.markUnreported)
}

// send makes a panic an error: that of the deliveries that nothing is said about.
func (s *sending) send() (err error) {
	l := s.pipe.lane
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("pipeline panicked", "event", s.deliveries[0].ID, "panic", l.options.masked(fmt.Errorf("%v", p)), "stack", string(debug.Stack()))
			err = fmt.Errorf("pipeline panicked: %v", p)
		}
	}()
	s.begun = time.Now()
	s.pipe.sub.Send(s.lead, s.deliveries, s.report)
	return nil
}

// endLocked lets go of what is needed as long as something is to be reported.
func (s *sending) endLocked() {
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
	l, reports := s.pipe.lane, &s.pipe.reports
	reports.mu.Lock()
	defer reports.mu.Unlock()
	if i < 0 || i >= len(s.reports) {
		panic(fmt.Sprintf("subscriber %q reports delivery %d (%v) of a Send of %d", l.Name(), i, err, len(s.reports)))
	}
	switch r := &s.reports[i]; r.state {
	case unreported:
		r.state = reported
		l.metrics.handle.Observe(time.Since(s.begun).Seconds())
		reports.noteLocked(s.pipe, r, err)
	case reported:
		panic(fmt.Sprintf("subscriber %q reports delivery %d of a Send of %d twice, the second time as %v", l.Name(), i, len(s.reports), err))
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
	ended    []*call // guarded by mu
	dying    []*call // guarded by mu
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
func (r *reports) end(pipe *pipeline, unsent []*call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range unsent {
		r.endLocked(pipe, p)
	}
}

func (r *reports) endLocked(pipe *pipeline, p *call) {
	switch {
	case !p.dies:
		r.ended = append(r.ended, p)
		if !r.settling {
			r.settling = true
			go pipe.settleReported()
		}
	default:
		r.dying = append(r.dying, p)
		if r.writing < pipe.lane.options.Concurrency {
			r.writing++
			go pipe.settleDying()
		}
	}
}

// takeEnded returns the calls that have ended, in the memory of its caller's last ones; none ends the caller's work.
func (r *reports) takeEnded(last []*call) []*call {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := r.ended
	r.ended = last[:0]
	r.settling = len(ended) > 0
	return ended
}

// takeDying returns a call with dead letters; nil ends the caller's work.
func (r *reports) takeDying() *call {
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
	var ended []*call
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
		pipe.lane.recordDead(p.items, p.outcome)
		pipe.settleParts([]*call{p})
	}
}

// readReports masks what was reported of a call. That another relay has led says nothing about the events.
func (pipe *pipeline) readReports(p *call) {
	l := pipe.lane
	for i, err := range p.outcome {
		if err == nil {
			continue
		}
		if errors.Is(err, subscriber.ErrOldTerm) {
			l.Suspend()
		}
		p.outcome[i] = l.options.masked(err)
	}
}

// settleParts settles calls of which everything is reported.
func (pipe *pipeline) settleParts(parts []*call) {
	l, f := pipe.lane, &pipe.flight
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, p := range parts {
		s := p.sending
		if s == nil {
			panic(fmt.Sprintf("subscriber %q: a call of a pipeline settles twice", l.Name()))
		}
		s.open--
		s.parts[p.place] = nil
		f.open -= p.sent
		f.bytes -= p.bytes
		if p.slot.retry {
			f.retries -= p.sent
		}
		l.settleLocked(p, now) // p is another call's from here on
		s.endLocked()
		l.handler.Done()
	}
	f.moved = now
	l.afterSettlingLocked()
}

// markUnreported gives the slot of a Send that does not return to others, and lets nothing but its keys wait for what is
// not reported.
func (s *sending) markUnreported() {
	l := s.pipe.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.returned && !s.slot.lost {
		l.slots.lose(&s.slot)
	}
	now := time.Now()
	events, first := 0, ""
	for _, p := range s.pipe.reports.missing(s.parts) {
		if p.overdue { // a stop was not willing to wait for it
			continue
		}
		if events == 0 {
			first = p.items[0].ev.ID
		}
		events += len(p.items)
		l.waitNoLongerLocked(p)
		l.partEndedLocked(p, true, now)
	}
	if events > 0 {
		l.stats.Failed++
		l.stats.LastError = "a delivery is not reported"
		if now.Sub(s.pipe.warned) >= warnEvery {
			s.pipe.warned = now
			l.log.Error("deliveries are not reported although their time is over; their keys wait for them",
				"event", first, "events", events, "timeout", l.options.Timeout)
		}
	}
	l.afterOverdueLocked()
}

// missing are those of the calls of which something is not reported.
func (r *reports) missing(parts []*call) (missing []*call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		if p != nil && p.missing > 0 {
			missing = append(missing, p)
		}
	}
	return missing
}

// startAbortLocked tells the pipeline to abort, if something was handed over. Nothing is before that has ended, or limit
// is over: the leadership that sends next must not be overtaken by what an earlier one has sent.
func (pipe *pipeline) startAbortLocked(limit time.Duration) {
	if pipe == nil || !pipe.flight.sent || pipe.abortingLocked() {
		return
	}
	l, f := pipe.lane, &pipe.flight
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	ended := make(chan struct{})
	f.sent, f.abort, f.cutShort = false, ended, cancel
	go func() {
		defer close(ended)
		err := pipe.abort(ctx)
		cancel()
		if err != nil {
			l.log.Error("the pipeline does not abort: what was sent may still reach its destination", "limit", limit, "err", l.options.masked(err))
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		f.sent = f.sent || err != nil
		f.abort, f.cutShort = nil, nil
		l.startCallsLocked()
	}()
}

// abort makes a panic an error.
func (pipe *pipeline) abort(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("pipeline panicked: %v", p)
		}
	}()
	return pipe.sub.Abort(ctx)
}

// abortNow starts an Abort, if none is under way, and returns a channel that is closed when none is.
func (pipe *pipeline) abortNow() <-chan struct{} {
	pipe.lane.mu.Lock()
	defer pipe.lane.mu.Unlock()
	pipe.startAbortLocked(pipe.lane.options.Timeout)
	return pipe.abortedLocked()
}

// abortGrace is how long an Abort may take at a stop: a little less than cancelled handlers have, so that the lane
// hears of it.
const abortGrace = overdueGrace * 3 / 4

// abortAtStopLocked starts an Abort that has abortGrace, and returns a channel that is closed when none is under way.
func (pipe *pipeline) abortAtStopLocked() <-chan struct{} {
	pipe.startAbortLocked(abortGrace)
	if pipe.abortingLocked() { // perhaps one that has begun before, with more time
		time.AfterFunc(abortGrace, pipe.flight.cutShort)
	}
	return pipe.abortedLocked()
}

// abortedLocked is closed when no Abort is under way.
func (pipe *pipeline) abortedLocked() <-chan struct{} {
	if pipe.abortingLocked() {
		return pipe.flight.abort
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}
