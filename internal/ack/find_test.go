package ack_test

import (
	"slices"
	"testing"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

func TestTracker_namesTheSubscribersForWhichAnEventIsOpen(t *testing.T) {
	tracker := ack.New(ack.Window{Events: 10, Bytes: 1 << 20}, 3, 0)
	tracker.Begin(8)
	first := tracker.Add(&event.Event{ID: "e1", Occurrence: "then", Position: event.Position{Commit: 8}}, []int{0, 1, 2}, false)
	tracker.Add(&event.Event{ID: "e2", Position: event.Position{Commit: 8, Ordinal: 1}}, []int{1}, false)
	tracker.Add(&event.Event{ID: "e1", Occurrence: "now", Position: event.Position{Commit: 8, Ordinal: 2}}, []int{2}, false)
	tracker.Commit(16)
	tracker.Finish(ack.End{Delivery: &first.Deliveries()[1]})
	then, now := event.Identity{ID: "e1", Occurrence: "then"}, event.Identity{ID: "e1", Occurrence: "now"}
	for id, want := range map[string][]ack.Open{"e1": {{0, then}, {2, then}, {2, now}}, "e2": {{1, event.Identity{ID: "e2"}}}, "e3": nil} {
		if got := tracker.OpenFor(id); !slices.Equal(got, want) {
			t.Errorf("%s is open for %v, want %v", id, got, want)
		}
	}
}
