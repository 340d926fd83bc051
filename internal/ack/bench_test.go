package ack_test

import (
	"testing"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

// BenchmarkTracker is the cost of an event for four subscribers, one event a transaction.
func BenchmarkTracker(b *testing.B) {
	for _, test := range []struct {
		name string
		held bool
	}{
		{"all finish", false},
		{"behind one that stays open", true},
	} {
		b.Run(test.name, func(b *testing.B) {
			tracker := ack.New(ack.Window{Events: 1 << 30, Bytes: 1 << 40}, 4, 0)
			ev := &event.Event{ID: "01K0WALP0ST000000000000000", Payload: make([]byte, 200)}
			everyone := []int{0, 1, 2, 3}
			at := event.LSN(8)
			if test.held {
				tracker.Begin(at)
				tracker.Add(ev, everyone, false)
				tracker.Commit(at + 8)
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				at += 16
				tracker.Begin(at)
				entry := tracker.Add(ev, everyone, false)
				tracker.Commit(at + 8)
				for i := range entry.Deliveries() {
					tracker.Finish(ack.End{Delivery: &entry.Deliveries()[i]})
				}
				if n%1000 == 0 {
					settled := tracker.TakeSettled()
					tracker.Recorded(settled, settled.Finished)
				}
			}
		})
	}
}
