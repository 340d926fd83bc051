package lane_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// attentive is a debt that is not read once its context has ended, as a database is. A slow one is still being read when
// the first context that it is read in ends.
type attentive struct {
	*debt
	slow *atomic.Bool
}

func (a attentive) Load(ctx context.Context, subscriber string, secured event.Position, limit lane.Limit) (lane.Debt, error) {
	if a.slow.Swap(false) {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return lane.Debt{}, ctx.Err()
	}
	return a.debt.Load(ctx, subscriber, secured, limit)
}

// S-135: a stop comes before the lane has learnt what it owes, or looked up what the stream has brought. Nothing was
// handed over by then, and what was offered is recorded as owed, so that nothing is left open.
func TestLane_recordsWhatAStopInItsFirstMomentsFinds(t *testing.T) {
	for name, stop := range map[string]func(r *rig, slow *atomic.Bool){
		"before it knows its debt": func(r *rig, slow *atomic.Bool) {
			slow.Store(true)
			r.offer("A/0", "B/0", "A/1")
			r.start(time.Minute)
			r.cancel()
		},
		"before it has looked up": func(r *rig, _ *atomic.Bool) {
			r.start(time.Minute)
			synctest.Wait()
			r.offer("A/0", "B/0", "A/1")
			r.cancel()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := subscribertest.Recording()
				var slow atomic.Bool
				r := newRig(t, sub, settings())
				r.Lane = newLaneIn(lane.Stream{Horizon: 1 << 20, Confirmed: 1 << 20, Passed: func() event.LSN { return 0 }},
					sub, settings(), acks{r.tracker, r}, attentive{r.debt, &slow}, func() bool { return false })
				stop(r, &slow)
				if err := r.stop(); err != nil {
					t.Errorf("it ends with %v", err)
				}
				if open := r.tracker.OpenDeliveries(); open != 0 {
					t.Errorf("%d deliveries are open, want all owed", open)
				}
				if got := r.debt.waiting(); len(got) != 3 {
					t.Errorf("%v are owed, want all three", got)
				}
				if calls := sub.Calls(); len(calls) != 0 {
					t.Errorf("%d calls", len(calls))
				}
			})
		})
	}
}
