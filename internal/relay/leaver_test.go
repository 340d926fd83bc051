package relay

import (
	"context"
	"log/slog"
	"testing"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

// S-182: a repair has recorded a later event of the key, and the stream brings an earlier one again that the subscriber
// had before it left: to owe it that one would put it behind the later one.
func TestLeaver_owesNothingThatIsMarked(t *testing.T) {
	debts := debttest.NewMemory()
	debts.EveryEventHasARow(func(event.Identity) {})
	tracker := ack.New(ack.Window{Events: 10, Bytes: 1 << 20}, 1, 0)
	l := newLeaver("gone", 0, tracker, debts, slog.New(slog.DiscardHandler))
	l.passed = func() bool { return true }
	l.depart = func(context.Context) error { return nil }
	var deliveries []*ack.Delivery
	for n, id := range []string{"had", "lacks"} {
		at := event.LSN(8 * (n + 1))
		tracker.Begin(at)
		ev := &event.Event{ID: id, Key: "k", Position: event.Position{Epoch: 1, Commit: at}}
		if id == "had" {
			debts.Mark(ev, 0)
		}
		deliveries = append(deliveries, &tracker.Add(ev, []int{0}, false).Deliveries()[0])
		tracker.Commit(at + 8)
	}
	l.Offer(deliveries...)
	if err := l.run(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	owed := debts.Owed("gone", lane.StateWaiting)
	if len(owed) != 1 || owed[0].Event.ID != "lacks" {
		t.Errorf("it is owed %v, want the event that has no mark", owed)
	}
	if got := tracker.OpenDeliveries(); got != 0 {
		t.Errorf("%d deliveries are open, want none", got)
	}
}
