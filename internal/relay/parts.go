package relay

import (
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/lane"
)

// parts is everything between reception and confirmation. It outlives connections.
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

// subscribers tells how each subscriber of the configuration stands. lost are events of theirs that no one can send any
// more.
func (p *parts) subscribers(lost map[string]int64) []Subscriber {
	subs := make([]Subscriber, len(p.lanes))
	for i, l := range p.lanes {
		stats := l.Stats()
		open, oldest := p.tracker.OpenOf(i)
		subs[i] = Subscriber{
			Name: l.Name(), Open: open,
			Delivered: stats.Delivered, Failed: stats.Failed, Dead: stats.Dead, Lost: lost[l.Name()],
			LastError: stats.LastError, Overdue: stats.Overdue,
			Away: stats.BreakerOpen, Paused: stats.Paused, InDebt: stats.InDebt, KeysInDebt: stats.KeysInDebt,
			HoldingWALBytes: p.holding(i),
		}
		if oldest != nil {
			subs[i].OldestOpen, subs[i].OldestSince = oldest.ID, oldest.CommittedAt
		}
	}
	return subs
}

// holding is how much WAL is kept for a subscriber alone: from its oldest event that is open or owed to
// the end, unless the WAL budget has let that go.
func (p *parts) holding(subscriber int) int64 {
	oldest := p.tracker.HoldsSince(subscriber)
	if _, open := p.tracker.OpenOf(subscriber); open != nil && (oldest == nil || open.Position.Compare(*oldest) < 0) {
		oldest = &open.Position
	}
	received := p.recorder.received()
	if oldest == nil || oldest.Commit < p.tracker.Confirmed() || oldest.Commit > received {
		return 0
	}
	return int64(received - oldest.Commit)
}

// lag is the age of a subscriber's oldest open or waiting event. Clocks of two machines differ: never below 0.
func (p *parts) lag(subscriber int) time.Duration {
	since := p.lanes[subscriber].Stats().OwesSinceAt
	if _, oldest := p.tracker.OpenOf(subscriber); oldest != nil && (since.IsZero() || oldest.CommittedAt.Before(since)) {
		since = oldest.CommittedAt
	}
	if since.IsZero() {
		return 0
	}
	return max(0, time.Since(since))
}
