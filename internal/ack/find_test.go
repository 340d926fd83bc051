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
	first := tracker.Add(&event.Event{ID: "e1", Position: event.Position{Commit: 8}}, []int{0, 1, 2}, false)
	tracker.Add(&event.Event{ID: "e2", Position: event.Position{Commit: 8, Ordinal: 1}}, []int{1}, false)
	tracker.Commit(16)
	tracker.Finish(ack.End{Delivery: &first.Deliveries()[1]})
	for id, want := range map[string][]int{"e1": {0, 2}, "e2": {1}, "e3": nil} {
		if got := tracker.OpenFor(id); !slices.Equal(got, want) {
			t.Errorf("%s is open for %v, want %v", id, got, want)
		}
	}
}
