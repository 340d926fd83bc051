package relay

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/printable"
)

// stallAfter is how long open events may stand still before the relay says that it is not well.
const stallAfter = 30 * time.Second

// view is what a relay shows of itself.
type view struct {
	*base
	reach    *reach
	routing  *routing
	attempts *Attempts
	current  atomic.Pointer[parts] // nil before the first session

	mu    sync.Mutex
	moved movement // guarded by mu
}

// movement is what had been delivered and confirmed when something last moved.
type movement struct {
	delivered uint64 // deliveries finished
	received  event.Position
	confirmed event.LSN
	at        time.Time
}

// addProblem adds a problem that keeps the relay from nothing.
func (h *Health) addProblem(format string, args ...any) {
	h.Problems = append(h.Problems, fmt.Sprintf(format, args...))
}

// fail adds a problem because of which the relay is not ready.
func (h *Health) fail(format string, args ...any) {
	h.Ready = false
	h.addProblem(format, args...)
}

// Health reports whether the relay makes progress, and if not, which subscriber holds it up.
func (v *view) Health() Health {
	now := v.condition.report()
	h := Health{State: now.state, Ready: now.state == Streaming || now.state == Waiting}
	if now.problem != "" {
		h.addProblem("%s", now.problem)
	}
	if now.awaited != "" { // while a second pass waits, the stream goes on
		h.addProblem("%s", now.awaited)
	}
	for _, s := range now.strangers {
		h.addProblem("%v: it stops nothing, but it is no relay; find out whose session pid %d is (pg_stat_activity), and let it be ended", s, s.PID)
	}
	for _, wait := range now.waits { // it may end in a moment
		h.addProblem("%s", wait)
	}
	if silent, why := v.reach.silence(); silent > reachInterval+reachLimit {
		h.fail("the relay's own connections have not reached Postgres for %v: %v; look at what lies between, such as a pooler", silent.Round(time.Second), why)
	}
	for _, problem := range now.found {
		h.fail("%s", problem)
	}
	if p := v.current.Load(); p != nil && now.state != Waiting { // what a standby had in hand when it led says nothing any more
		p.addWriteErrors(&h)
		subscribers := p.subscribers(now.lost)
		addLost(&h, subscribers)
		addAway(&h, subscribers)
		v.addSlot(&h, p)
		if still, open := v.standsStill(p); open > 0 && still > stallAfter {
			h.fail("%s open and nothing has moved for %v", printable.Count(int64(open), "event", "is"), still.Round(time.Second))
			p.addHolders(&h, subscribers)
		}
	}
	return h
}

// addWriteErrors adds what cannot be written to Postgres.
func (p *parts) addWriteErrors(h *Health) {
	if err := p.recorder.failing(); err != nil {
		h.fail("nothing can be confirmed: %v", err)
	}
	for _, l := range p.leavers {
		if err := l.failing(); err != nil {
			h.fail("what is owed to subscriber %q, which has left the configuration, cannot be recorded: %v", l.name, err)
		}
	}
	locker, err := p.recorder.marker.unmarked()
	if err != nil {
		h.fail("rows of what was paid or discarded cannot be marked: %v", err)
	}
	if locker != "" { // delivery and confirm go on
		h.addProblem("%s", locker)
	}
	for _, l := range p.lanes {
		stats := l.Stats()
		if stats.DebtError != "" {
			h.fail("the debt of subscriber %q cannot be kept: %s", l.Name(), stats.DebtError)
		}
		if stats.DeadError != "" {
			h.fail("a dead letter of subscriber %q cannot be written, so its event stays open: %s", l.Name(), stats.DeadError)
		}
	}
}

// addLost names the events that no one can send any more, until a person has seen them.
func addLost(h *Health, subscribers []Subscriber) {
	for _, s := range subscribers {
		if s.Lost > 0 {
			h.addProblem("%s lost for subscriber %q: an outbox row was deleted while the event was owed; "+
				"look at them with `walpost owed list`, then discard them, and keep rows until published_at is set", printable.Count(s.Lost, "event", "is"), s.Name)
		}
	}
}

// addHolders names who has open events.
func (p *parts) addHolders(h *Health, subscribers []Subscriber) {
	for _, s := range subscribers {
		if s.Open > 0 {
			h.addProblem("subscriber %q holds %d, the oldest is event %q since %s; last error: %s",
				s.Name, s.Open, s.OldestOpen, s.OldestSince.Format(time.RFC3339), orNone(s.LastError))
		}
	}
	for _, l := range p.leavers {
		if n, oldest := p.tracker.OpenOf(l.number); oldest != nil {
			h.addProblem("%s to be recorded as owed to subscriber %q, which has left the configuration; the oldest is event %q", printable.Count(int64(n), "event", "is"), l.name, oldest.ID)
		}
	}
}

// addAway names who takes nothing at the moment: its events are owed to it, and it holds WAL meanwhile.
func addAway(h *Health, subscribers []Subscriber) {
	for _, s := range subscribers {
		if s.Away {
			h.addProblem("subscriber %q is away, and is tried with one event at a time; it holds %s of WAL; last error: %s", s.Name, printable.Size(s.HoldingWALBytes), orNone(s.LastError))
		}
	}
}

const (
	// soonLost is how long before the loss of the slot it is said.
	soonLost = time.Hour
	// alwaysKept is how much WAL a server may keep for a slot that nothing holds, in bytes: it lets go only from
	// checkpoint to checkpoint. The alert WalpostWALOverBudget has the same number.
	alwaysKept = 100e6
)

// addSlot says that the server will give the slot up, or keeps more for it than debt may hold.
func (v *view) addSlot(h *Health, p *parts) {
	kept, safe, left := v.slotMetrics.Kept()
	if safe >= 0 && left < soonLost {
		h.addProblem("the server gives slot %q up when it has written %s more WAL, in %v if it goes on as now: raise max_slot_wal_keep_size, or end what writes so much",
			v.Slot, printable.Size(safe), left.Round(time.Second))
	}
	if kept > max(p.recorder.budget, alwaysKept) {
		h.addProblem("the server keeps %s of WAL for slot %q, more than wal_budget (%s): what no subscriber holds is held by an old transaction (pg_stat_activity, the oldest backend_xmin or xact_start)",
			printable.Size(kept), v.Slot, printable.Size(p.recorder.budget))
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// standsStill returns for how long nothing has moved, and how many events are open.
func (v *view) standsStill(p *parts) (time.Duration, int) {
	open, _ := p.tracker.Open()
	now := movement{received: p.tracker.Received(), confirmed: p.tracker.Confirmed(), at: time.Now()}
	for _, l := range p.lanes {
		stats := l.Stats()
		now.delivered += stats.Delivered + stats.Dead
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	last := v.moved
	if open == 0 || last.at.IsZero() || now.delivered != last.delivered || now.confirmed != last.confirmed {
		v.moved = now
	}
	still := now.at.Sub(v.moved.at)
	for i := range p.lanes {
		if _, oldest := p.tracker.OpenOf(i); oldest != nil {
			return min(still, now.at.Sub(oldest.CommittedAt)), open
		}
	}
	return still, open
}

// Progress is a snapshot of where the relay stands.
func (v *view) Progress() Progress {
	now := v.condition.report()
	at := Progress{Slot: v.Slot, Holder: v.holder(), Term: v.fence.Term(), State: now.state, Received: v.progress.Received()}
	if p := v.current.Load(); p != nil {
		at.Confirmed = p.tracker.Confirmed()
		at.OpenEvents, at.OpenBytes = p.tracker.Open()
		at.Subscribers = p.subscribers(now.lost)
		var idle map[string][]string
		at.UntakenTypes, idle = v.routing.state()
		for i := range at.Subscribers {
			at.Subscribers[i].IdlePatterns = idle[at.Subscribers[i].Name]
			at.Subscribers[i].AbsentSources = now.absent[at.Subscribers[i].Name]
		}
	}
	at.ReceivedLSN, at.ConfirmedLSN = at.Received.String(), at.Confirmed.String()
	return at
}

// Attempts are the last attempts of all subscribers.
func (v *view) Attempts() *Attempts { return v.attempts }

// OpenFor returns the open deliveries of the events with an id. It looks at the whole window.
func (v *view) OpenFor(eventID string) []OpenDelivery {
	p := v.current.Load()
	if p == nil {
		return nil
	}
	var open []OpenDelivery
	for _, o := range p.tracker.OpenFor(eventID) {
		open = append(open, OpenDelivery{v.Subscriptions[o.Subscriber].Subscriber.Name(), o.Event.Source, o.Event.Occurrence})
	}
	return open
}
