package lane

import (
	"errors"
	"log/slog"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/slab"
	"github.com/backendstart/walpost/internal/subscriber"
)

// setup is what a lane is made with. Nothing of it changes.
type setup struct {
	number  int // of the subscriber, in the tracker
	sub     subscriber.Subscriber
	options Options
	acks    Acks
	ower    Ower
	stream  Stream
	metrics *Metrics
	log     *slog.Logger
	made    time.Time // from when item.offered is counted
}

// Name is the name of the subscriber.
func (s *setup) Name() string { return s.sub.Name() }

// Wants reports whether the subscriber wants events of a type.
func (s *setup) Wants(eventType string) bool { return s.sub.Wants(eventType) }

// holdings are the deliveries that a lane has: queued (backlog), under way (calls), behind debt or read from it (scope);
// and what their failures say of the subscriber. They move between these places. What begins calls, waits or does I/O
// stands above. All of it is guarded by Lane.mu.
type holdings struct {
	*setup                            // never changes
	open       int                    // deliveries offered and neither finished nor owed
	backlog    backlog                // what is queued
	calls      calls                  // what is under way
	scope      scope                  // what is in debt
	breaker    breaker                // how the subscriber fares
	ends       []ack.End              // finished and not yet acknowledged
	tried      map[*event.Event]*item // given back by a replay after they failed
	items      slab.Of[item]
	stats      Stats
	others     map[typeOf]bool // told by noteOtherLocked
	readerWake chan struct{}   // gets a token when the debt reader has something to do; never changes
}

// typeOf is what a second row of an identity is told once of.
type typeOf struct{ source, event string }

// Stats are counts for people; see relay.Subscriber.
type Stats struct {
	Open                    int
	Delivered, Failed, Dead uint64
	LastError               string
	BreakerOpen, Paused     bool
	// InDebt tells that the subscriber as a whole is in debt, KeysInDebt how many keys are otherwise.
	InDebt     bool
	KeysInDebt int
	// DebtError is why the debt cannot be written or read at the moment, "" when it can.
	DebtError string
	// DeadError is why the last dead letter could not be written, "" when it could: its event stays open.
	DeadError string
	// OwesSince is the position of the oldest delivery that waits in the debt, and when its event committed.
	OwesSince   *event.Position
	OwesSinceAt time.Time
	// Overdue are the ids of events whose handler has not returned although its deadline has passed.
	Overdue []string
}

// newItem makes an item; that of an event that cannot be handed over is dead already.
func (h *holdings) newItem(ev *event.Event, from origin, now time.Time) *item {
	it := h.items.New(ev.Size())
	it.ev, it.origin, it.offered = ev, from, now.Sub(h.made)
	if ev.Invalid != "" {
		it.dead, it.failing().err = true, errors.New(ev.Invalid)
	} else if err := h.stream.Refuse(ev); err != nil {
		it.dead, it.failing().err = true, err
	}
	return it
}

// keyOf is what order is kept within.
func (h *holdings) keyOf(it *item) string { return h.options.Ordering.keyOf(it.ev) }

// count returns the statistics at this moment.
func (h *holdings) count() Stats {
	s := h.stats
	s.Open, s.BreakerOpen = h.open, h.breaker.open()
	s.InDebt, s.KeysInDebt, s.Paused = h.scope.mode.whole(), len(h.scope.keys), h.scope.mode == debtPaused
	s.Overdue = h.calls.ids(func(c *call) bool { return c.overdue })
	return s
}

// noteOverdue lets nothing but its keys wait for a call.
func (h *holdings) noteOverdue(c *call) {
	h.calls.markOverdue(c)
	h.metrics.overdue.Set(float64(h.calls.overdue))
}

// signal gives a channel its token.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
