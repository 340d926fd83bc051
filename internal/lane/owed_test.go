package lane_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// F-34: after an outage one key goes on failing. It is the first in the debt, alone or with more deliveries
// than may be in hand, and holds back nothing but itself.
func TestLane_aFailingKeyHoldsBackNoOtherInTheDebt(t *testing.T) {
	for _, failing := range []int{10, 1200} {
		synctest.Test(t, func(t *testing.T) {
			var back atomic.Bool
			sub := subscribertest.Handling("sub", func(_ context.Context, d subscriber.Delivery) error {
				if d.Key == "K" || !back.Load() {
					return errors.New("not now")
				}
				return nil
			})
			o := settings()
			o.StallAfter = time.Second
			r := run(t, sub, o)
			r.offer(series("K", failing)...)
			time.Sleep(15 * time.Second)
			r.offer(series("L", 20)...)
			r.offer(series("M", 20)...)
			time.Sleep(15 * time.Second)
			if got, want := len(r.debt.waiting()), failing+40; got != want {
				t.Fatalf("%d deliveries are owed, want all %d", got, want)
			}
			back.Store(true)
			begin := time.Now()
			for _, id := range append(series("L", 20), series("M", 20)...) {
				r.awaitEnd(id)
			}
			if took, most := time.Since(begin), 2*time.Minute; took > most {
				t.Errorf("with %d of the failing key the others took %v, want at most %v", failing, took, most)
			}
			r.offer("L/20")
			begin = time.Now()
			r.awaitEnd("L/20")
			if took, most := time.Since(begin), 5*time.Second; took > most {
				t.Errorf("a later event of another key took %v, want at most %v", took, most)
			}
			if got, want := r.debt.waiting(), series("K", failing); !slices.Equal(got, want) {
				t.Errorf("%d deliveries are owed, want the %d of the failing key", len(got), len(want))
			}
		})
	}
}

// A handler that says late that its event is unreadable is not heard: the event is recorded as owed by then
// and sent again, and ends once.
func TestLane_whatALateHandlerSaysOfAnOwedEventIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
			<-free
			return subscriber.Permanent(errors.New("unreadable"))
		})
		o := settings()
		o.StallAfter = time.Minute
		r := run(t, sub, o)
		r.offer("K/0")
		time.Sleep(5 * time.Minute)
		if got, want := r.debt.waiting(), []string{"K/0"}; !slices.Equal(got, want) {
			t.Fatalf("owed %v, want %v", got, want)
		}
		if got := r.Stats(); !slices.Equal(got.Overdue, []string{"K/0"}) || got.KeysInDebt != 1 {
			t.Errorf("stats %+v, want the event named and its key in debt", got)
		}
		close(free)
		r.await(1)
		if letters, _ := r.debt.dead(); len(letters) != 1 || len(sub.Calls()) != 2 {
			t.Errorf("%d dead letters after %d calls, want 1 after 2", len(letters), len(sub.Calls()))
		}
	})
}

// After a crash the stream brings again what was not recorded, and that can be older than what was recorded of
// its key. The debt does not overtake it.
func TestLane_whatComesAgainAfterACrashIsHandedOverBeforeTheDebtBehindIt(t *testing.T) {
	for _, ordering := range []lane.Ordering{lane.ByKey, lane.Total} {
		synctest.Test(t, func(t *testing.T) {
			sub := subscribertest.Recording()
			o := settings()
			o.Ordering = ordering
			r := newRig(t, sub, o)
			owed := &event.Event{Source: "lessons", ID: "K/3", Key: "K", Type: "lesson.completed", Position: event.Position{Commit: 4 * 8}}
			if _, err := r.debt.Record(t.Context(), "", []lane.Owed{{Event: owed}}); err != nil {
				t.Fatal(err)
			}
			r.offer(series("K", 6)...)
			r.start(time.Minute)
			if got, want := sub.AwaitDelivered(t, 6), series("K", 6); !slices.Equal(got, want) {
				t.Errorf("ordering %s: delivered %v, want %v", ordering, got, want)
			}
		})
	}
}
