package relay

import (
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/wal"
)

// stallAfter is how long open events may stand still before the relay says that it is not well.
const stallAfter = 30 * time.Second

// movement remembers what was last seen to move.
type movement struct {
	delivered uint64 // deliveries finished
	received  event.Position
	confirmed event.LSN
	at        time.Time
}

func (r *Relay) setState(state State, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending && state != Stopping && state != Stopped {
		return // what the drain meets is no news for the one who waits for the end
	}
	r.state, r.problem, r.stuckAt = state, "", 0
	if err != nil {
		r.problem = err.Error()
	}
}

// whileStopping keeps an error of the connection from making a failure of a stop that was asked for: what
// was not confirmed comes again.
func (r *Relay) whileStopping(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, wal.ErrConnection) || errors.Is(err, wal.ErrShutdown) {
		r.Log.Warn("stopped without the server's answer to the last confirmed position; some events may come again", "err", err)
		return nil
	}
	return err
}

// Health tells whether the relay moves, and if not, who holds it.
func (r *Relay) Health() Health {
	r.mu.Lock()
	r.leaveStuckLocked()
	state, problem, found, tracker, recorder := r.state, r.problem, []string{r.trouble, r.held, r.silent}, r.tracker, r.recorder
	strangers, awaited, waits := r.strangers, r.awaited, r.waits
	r.mu.Unlock()
	h := Health{State: state, Ready: state == Streaming || state == Waiting}
	if problem != "" {
		h.Problems = append(h.Problems, problem)
	}
	if awaited != "" { // while a second pass waits, the stream goes on
		h.Problems = append(h.Problems, awaited)
	}
	for _, s := range strangers { // it keeps the relay from nothing
		h.Problems = append(h.Problems, fmt.Sprintf("%v: it stops nothing, but it is no relay; find out whose session pid %d is (pg_stat_activity), and let it be ended", s, s.PID))
	}
	for _, wait := range waits { // it may end in a moment
		h.Problems = append(h.Problems, wait.String())
	}
	if silent, why := r.reach.silence(); silent > reachInterval+reachLimit {
		h.Ready = false
		h.Problems = append(h.Problems, fmt.Sprintf("the relay's own connections have not reached Postgres for %v: %v; look at what lies between, such as a pooler",
			silent.Round(time.Second), why))
	}
	for _, trouble := range found {
		if trouble != "" {
			h.Ready = false
			h.Problems = append(h.Problems, trouble)
		}
	}
	if tracker == nil || state == Waiting { // what it had in hand when it led says nothing any more
		return h
	}
	if err := recorder.failing(); err != nil {
		h.Ready = false
		h.Problems = append(h.Problems, "nothing can be confirmed: "+err.Error())
	}
	for _, l := range r.currentLeavers() {
		if err := l.failing(); err != nil {
			h.Ready = false
			h.Problems = append(h.Problems, fmt.Sprintf("what is owed to subscriber %q, which has left the configuration, cannot be recorded: %s", l.name, err))
		}
	}
	locker, err := recorder.unmarked()
	if err != nil {
		h.Ready = false
		h.Problems = append(h.Problems, "rows of what was paid or discarded cannot be marked: "+err.Error())
	}
	if locker != "" { // delivery and confirm go on
		h.Problems = append(h.Problems, locker)
	}
	for _, l := range r.currentLanes() {
		stats := l.Stats()
		if stats.DebtError != "" {
			h.Ready = false
			h.Problems = append(h.Problems, fmt.Sprintf("the debt of subscriber %q cannot be kept: %s", l.Name(), stats.DebtError))
		}
		if stats.DeadError != "" {
			h.Ready = false
			h.Problems = append(h.Problems, fmt.Sprintf("a dead letter of subscriber %q cannot be written, so its event stays open: %s", l.Name(), stats.DeadError))
		}
	}
	for _, s := range r.subscribers(tracker) {
		if s.Lost > 0 { // what is lost is told until a person has seen it; it is no reason to take the relay out
			h.Problems = append(h.Problems, fmt.Sprintf("%s lost for subscriber %q: an outbox row was deleted while the event was owed; "+
				"look at them with `walpost owed list`, then discard them, and keep rows until published_at is set", printable.Count(s.Lost, "event", "is"), s.Name))
		}
	}
	if since, open := r.standsStill(tracker); open > 0 && since > stallAfter {
		h.Ready = false
		h.Problems = append(h.Problems, fmt.Sprintf("%s open and nothing has moved for %v", printable.Count(int64(open), "event", "is"), since.Round(time.Second)))
		for _, s := range r.subscribers(tracker) {
			if s.Open > 0 {
				h.Problems = append(h.Problems, fmt.Sprintf("subscriber %q holds %d, the oldest is event %q since %s; last error: %s",
					s.Name, s.Open, s.OldestOpen, s.OldestSince.Format(time.RFC3339), orNone(s.LastError)))
			}
		}
		for _, l := range r.currentLeavers() {
			if n, oldest := tracker.OpenOf(l.number); oldest != nil {
				h.Problems = append(h.Problems, fmt.Sprintf("%s to be recorded as owed to subscriber %q, which has left the configuration; the oldest is event %q", printable.Count(int64(n), "event", "is"), l.name, oldest.ID))
			}
		}
	}
	return h
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// standsStill tells since when nothing has moved, and how many events are open.
func (r *Relay) standsStill(tracker *ack.Tracker) (time.Duration, int) {
	open, _ := tracker.Open()
	now := movement{received: tracker.Received(), confirmed: tracker.Confirmed(), at: time.Now()}
	for _, s := range r.subscribers(tracker) {
		now.delivered += s.Delivered + s.Dead
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.moved
	if open == 0 || last.at.IsZero() || now.delivered != last.delivered || now.confirmed != last.confirmed {
		r.moved = now
	}
	still := now.at.Sub(r.moved.at)
	for i := range r.Subscriptions {
		if _, oldest := tracker.OpenOf(i); oldest != nil {
			return min(still, now.at.Sub(oldest.CommittedAt)), open
		}
	}
	return still, open
}

// Progress is a snapshot of where the relay stands.
func (r *Relay) Progress() Progress {
	r.mu.Lock()
	r.leaveStuckLocked()
	p := Progress{Slot: r.Slot, Holder: r.holder(), Term: r.fence.Term(), State: r.state, Received: r.wal.Received()}
	tracker := r.tracker
	r.mu.Unlock()
	if tracker != nil {
		p.Confirmed = tracker.Confirmed()
		p.OpenEvents, p.OpenBytes = tracker.Open()
		p.Subscribers = r.subscribers(tracker)
		var idle map[string][]string
		p.UntakenTypes, idle = r.routing.state()
		for i := range p.Subscribers {
			p.Subscribers[i].IdlePatterns = idle[p.Subscribers[i].Name]
		}
	}
	p.ReceivedLSN, p.ConfirmedLSN = p.Received.String(), p.Confirmed.String()
	return p
}

func (r *Relay) currentLanes() []*lane.Lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lanes
}

func (r *Relay) currentLeavers() []*leaver {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leavers
}

func (r *Relay) subscribers(tracker *ack.Tracker) []Subscriber {
	r.mu.Lock()
	lanes, lost := r.lanes, r.lost
	r.mu.Unlock()
	subs := make([]Subscriber, len(lanes))
	for i, l := range lanes {
		stats := l.Stats()
		open, oldest := tracker.OpenOf(i)
		subs[i] = Subscriber{
			Name: l.Name(), Open: open,
			Delivered: stats.Delivered, Failed: stats.Failed, Dead: stats.Dead, Lost: lost[l.Name()],
			LastError: stats.LastError, Overdue: stats.Overdue,
			Away: stats.BreakerOpen, Paused: stats.Paused, InDebt: stats.InDebt, KeysInDebt: stats.KeysInDebt,
			HoldingWALBytes: r.holding(tracker, i),
		}
		if oldest != nil {
			subs[i].OldestOpen, subs[i].OldestSince = oldest.ID, oldest.CommittedAt
		}
	}
	return subs
}

// holding is how much WAL is kept for a subscriber alone: from its oldest event that is open or owed to
// the end, unless the WAL budget has let that go.
func (r *Relay) holding(tracker *ack.Tracker, subscriber int) int64 {
	oldest := tracker.HoldsSince(subscriber)
	if _, open := tracker.OpenOf(subscriber); open != nil && (oldest == nil || open.Position.Compare(*oldest) < 0) {
		oldest = &open.Position
	}
	received := r.wal.Received()
	if oldest == nil || oldest.Commit < tracker.Confirmed() || oldest.Commit > received {
		return 0
	}
	return int64(received - oldest.Commit)
}
