package lane_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// A lane that has nothing to do holds nothing: not the last window, for the queues or lists that come next.
func TestLane_letsGoOfWhatIsDone(t *testing.T) {
	for name, options := range map[string]func(*lane.Options){
		"by key":        func(*lane.Options) {},
		"one key":       func(o *lane.Options) { o.Ordering = lane.Total },
		"no order":      func(o *lane.Options) { o.Ordering = lane.None },
		"after a check": func(*lane.Options) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
					<-gate
					return nil
				})
				o := settings()
				options(&o)
				r := newRig(t, sub, o)
				const events = 200
				var seen []weak.Pointer[event.Event]
				offer := func() {
					for n := range events {
						ev := &event.Event{Source: "lessons", ID: fmt.Sprint(n), Key: fmt.Sprint(n % 150), Type: "lesson.completed", Payload: make([]byte, 2000)}
						seen = append(seen, weak.Make(ev))
						r.offerEvent(ev)
					}
				}
				if name == "after a check" { // what comes before the lane knows what is owed
					offer()
				}
				r.start(never)
				synctest.Wait()
				if name != "after a check" {
					offer()
				}
				close(gate)
				r.await(events)
				r.tracker.Recorded(r.tracker.TakeSettled(), 0)
				synctest.Wait()
				runtime.GC()
				kept := 0
				for _, p := range seen {
					if p.Value() != nil {
						kept++
					}
				}
				if kept > 10 { // those that a worker's stack may still hold
					t.Errorf("%d of %d events are still in memory", kept, events)
				}
				runtime.KeepAlive(r)
			})
		})
	}
}
