package lane_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

func TestLane_beginsNothingWhileSuspendedAndCountsNothingAgainstWhatItEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("slow", func(ctx context.Context, d subscriber.Delivery) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return errors.New("cut off")
			}
		})
		o := settings()
		o.Concurrency = 2
		r := runs(t, sub, o)
		r.offer("K/1", "K/2", "L/1")
		time.Sleep(500 * time.Millisecond)
		r.Suspend()
		synctest.Wait()
		r.offer("M/1")
		time.Sleep(time.Hour)
		if got, want := slices.Sorted(slices.Values(attempted(sub.Calls()))), []string{"K/1", "L/1"}; !slices.Equal(got, want) {
			t.Errorf("attempts while suspended: %v, want only those of before, %v", got, want)
		}
		if s := r.Stats(); s.Failed != 0 || s.BreakerOpen || s.Open != 4 {
			t.Errorf("stats %+v, want nothing failed and four open", s)
		}
		r.Resume()
		for _, e := range r.await(4) {
			if e.dead || e.attempts != 0 {
				t.Errorf("%+v, want delivered without a failure", e)
			}
		}
		var ofK []string
		for _, id := range attempted(sub.Calls()) {
			if id[0] == 'K' {
				ofK = append(ofK, id)
			}
		}
		if want := []string{"K/1", "K/1", "K/2"}; !slices.Equal(ofK, want) {
			t.Errorf("attempts of K: %v, want %v", ofK, want)
		}
	})
}

func TestLane_asksBeforeEachAttemptWhetherItMayBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		leads := true
		sub := subscribertest.Recording()
		r := newRig(t, sub, settings())
		r.Lane = newLaneIn(lane.Stream{MayBegin: func() (bool, <-chan struct{}) {
			mu.Lock()
			defer mu.Unlock()
			return leads, nil
		}}, sub, settings(), acks{r.tracker, r}, r.debt, func() bool { return false })
		r.start(time.Minute)
		synctest.Wait()
		r.offer("K/1")
		r.await(1)
		mu.Lock()
		leads = false
		mu.Unlock()
		r.offer("K/2")
		time.Sleep(time.Hour)
		if got := len(sub.Calls()); got != 1 {
			t.Errorf("%d attempts, want none after the lead was lost", got)
		}
		mu.Lock()
		leads = true
		mu.Unlock()
		r.Resume()
		if got := r.await(2)[1]; got.id != "K/2" || got.attempts != 0 {
			t.Errorf("got %+v, want K/2 without a failure", got)
		}
	})
}

// A process that froze can find out by its subscriber's transaction, before its lease does, that another has led.
func TestLane_suspendsItselfWhenASubscriberMeetsALaterTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		old := true
		sub := subscribertest.Handling("same-database", func(context.Context, subscriber.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if old {
				return fmt.Errorf("write: %w", subscriber.ErrOldTerm)
			}
			return nil
		})
		r := runs(t, sub, settings())
		r.offer("K/1")
		r.offer("K/2")
		time.Sleep(time.Hour)
		if got := len(sub.Calls()); got != 1 || !r.Suspended() {
			t.Errorf("%d attempts, suspended %v; want one and suspended", got, r.Suspended())
		}
		mu.Lock()
		old = false
		mu.Unlock()
		r.Resume()
		for _, e := range r.await(2) {
			if e.dead || e.attempts != 0 {
				t.Errorf("%+v, want delivered without a failure", e)
			}
		}
	})
}

// S-290: while it is in doubt whether the relay leads, what is in hand goes on and nothing begins. The wait is none of the
// handler's, and nothing is held against an event or the subscriber.
func TestLane_beginsNothingWhileTheLeadIsInDoubt(t *testing.T) {
	for _, how := range []string{"it leads", "it leads no more", "it is told to stop"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				leads, doubt := true, chan struct{}(nil)
				release := make(chan struct{})
				sub := subscribertest.Handling("one", func(ctx context.Context, d subscriber.Delivery) error {
					if deadline, _ := ctx.Deadline(); time.Until(deadline) != settings().Timeout {
						t.Errorf("%s has %v, want all of its %v", d.ID, time.Until(deadline), settings().Timeout)
					}
					if d.ID == "A/1" {
						<-release
					}
					return nil
				})
				r := newRig(t, sub, settings())
				r.Lane = newLaneIn(lane.Stream{MayBegin: func() (bool, <-chan struct{}) {
					mu.Lock()
					defer mu.Unlock()
					return leads && doubt == nil, doubt
				}}, sub, settings(), acks{r.tracker, r}, r.debt, func() bool { return true }) // it holds a full share of the window
				r.start(time.Minute)
				synctest.Wait()
				r.offer("A/1")
				synctest.Wait()
				set := func(l bool, d chan struct{}) {
					mu.Lock()
					defer mu.Unlock()
					if doubt != nil {
						close(doubt)
					}
					leads, doubt = l, d
				}
				set(true, make(chan struct{}))
				for n := range 20 {
					r.offer(fmt.Sprintf("K%d/1", n))
				}
				close(release)
				time.Sleep(2 * time.Second)
				if got := len(r.await(1)); got != 1 {
					t.Fatalf("%d attempts while the lead was in doubt, want the one that had begun", got)
				}
				switch how {
				case "it leads no more":
					set(false, nil)
					time.Sleep(time.Hour)
					if got := len(sub.Calls()); got != 1 {
						t.Errorf("%d attempts, want none after the lead was lost", got-1)
					}
					set(true, nil)
					r.Resume()
				case "it is told to stop":
					r.cancel()
					time.Sleep(time.Second)
					fallthrough
				default:
					set(true, nil)
				}
				for _, got := range r.await(21) {
					if got.attempts != 0 {
						t.Errorf("%+v, want no failure", got)
					}
				}
				if s := r.Stats(); s.InDebt && how != "it is told to stop" || s.Failed > 0 || s.BreakerOpen {
					t.Errorf("%+v, want nothing held against the subscriber", s)
				}
			})
		})
	}
}

// S-281: the lead is got again before a handler has noticed that it was lost, and what it says then is of the leadership
// before.
func TestLane_staysResumedWhenAHandlerEndsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("late", func(ctx context.Context, d subscriber.Delivery) error {
			if d.ID != "K/1" || d.Attempt > 1 {
				return nil
			}
			<-ctx.Done()
			time.Sleep(time.Second)
			return context.Cause(ctx)
		})
		r := runs(t, sub, settings())
		r.offer("K/1")
		synctest.Wait()
		r.Suspend()
		r.Resume()
		time.Sleep(2 * time.Second)
		if r.Suspended() {
			t.Error("suspended by what a handler of the leadership before has returned")
		}
	})
}
