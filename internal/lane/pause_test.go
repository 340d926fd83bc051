package lane_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

func TestLane_pausesASubscriberThatWantsNothingAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		gone := true
		sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if gone {
				return subscriber.Pause(errors.New("410 Gone"))
			}
			return nil
		})
		r := run(t, sub, settings())
		r.offer("K/1", "K/2")
		time.Sleep(time.Minute)
		if n := len(sub.Calls()); n > 2 || !r.Stats().Paused {
			t.Errorf("%d attempts, paused %v; want no more after it was paused", n, r.Stats().Paused)
		}
		if got, want := r.debt.waiting(), []string{"K/1", "K/2"}; !slices.Equal(got, want) {
			t.Errorf("owed %v, want %v", got, want)
		}
		mu.Lock()
		gone = false
		mu.Unlock()
		r.debt.pause("") // a person resumes it
		if got, want := []string{r.await(2)[0].id, r.await(2)[1].id}, []string{"K/1", "K/2"}; !slices.Equal(got, want) {
			t.Errorf("delivered %v, want %v", got, want)
		}
	})
}

// S-77: a subscriber that says that it wants nothing any more is not called again, however long it takes to write that down:
// only the writing is tried again. What it has not had is owed.
func TestLane_callsNoOneWhoWantsNothingWhileItsPauseIsNotWritten(t *testing.T) {
	for _, ordering := range orderings {
		for _, owed := range []bool{false, true} { // all of it was read from the debt
			synctest.Test(t, func(t *testing.T) {
				var gone atomic.Bool
				gone.Store(true)
				sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
					time.Sleep(10 * time.Millisecond)
					if gone.Load() {
						return subscriber.Pause(errors.New("410 Gone"))
					}
					return nil
				})
				o := settings()
				o.Ordering, o.Concurrency = ordering, 2
				r := newRig(t, sub, o)
				r.debt.refusePause(true)
				want := slices.Concat(series("K", 3), series("L", 3), series("M", 3))
				if owed {
					for _, id := range want {
						r.debt.add(id, lane.StateWaiting, 0)
					}
				} else {
					r.offer(want...)
				}
				r.start(time.Minute)
				time.Sleep(time.Hour)
				if n := len(sub.Calls()); n > 2 {
					t.Errorf("ordering %s, owed %v: %d calls in an hour, want those that were under way at the first answer", ordering, owed, n)
				}
				if got := r.Stats(); !got.Paused || got.DebtError == "" || got.Open != 0 {
					t.Errorf("ordering %s, owed %v: stats %+v, want it paused, with the error, and nothing open", ordering, owed, got)
				}
				if got := r.debt.waiting(); len(got) != len(want) {
					t.Errorf("ordering %s, owed %v: owed %v, want %v", ordering, owed, got, want)
				}
				r.debt.refusePause(false)
				time.Sleep(time.Minute)
				if got := r.Stats(); !got.Paused || got.DebtError != "" {
					t.Errorf("ordering %s, owed %v: stats %+v, want it paused, without an error", ordering, owed, got)
				}
				gone.Store(false)
				before := len(sub.Calls())
				r.debt.pause("") // a person resumes it
				r.await(len(want))
				if n := len(sub.Calls()) - before; n != len(want) {
					t.Errorf("ordering %s, owed %v: %d calls after it was resumed, want %d", ordering, owed, n, len(want))
				}
			})
		}
	}
}

// S-77: a stop does not wait for a subscriber that wants nothing any more.
func TestLane_stopsAtOnceWhileThePauseIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
			return subscriber.Pause(errors.New("410 Gone"))
		})
		r := newRig(t, sub, settings())
		r.debt.refusePause(true)
		r.start(time.Hour)
		r.offer(series("K", 3)...)
		r.offer(series("L", 3)...)
		time.Sleep(time.Minute)
		r.offer(series("M", 3)...)
		begin := time.Now()
		r.stop() //nolint:errcheck // it says that the pause could not be written
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("the stop took %v", took)
		}
		if got := r.debt.waiting(); len(got) != 9 {
			t.Errorf("owed %v, want all 9", got)
		}
	})
}

// S-78: what was read from the debt is in its handler when a person pauses the subscriber. That it fails is noted, and it is
// not tried again before the subscriber is resumed.
func TestLane_triesNothingOfTheDebtAgainWhilePaused(t *testing.T) {
	for _, ordering := range orderings {
		synctest.Test(t, func(t *testing.T) {
			var back atomic.Bool
			sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
				time.Sleep(5 * time.Second)
				if !back.Load() {
					return errors.New("503")
				}
				return nil
			})
			o := settings()
			o.Ordering = ordering
			r := newRig(t, sub, o)
			r.debt.add("K/0", lane.StateWaiting, 0)
			r.debt.add("L/0", lane.StateWaiting, 0)
			r.start(time.Minute)
			time.Sleep(time.Second)
			r.debt.pause("its database moves")
			time.Sleep(time.Minute)
			before := len(sub.Calls())
			time.Sleep(time.Hour)
			if got := len(sub.Calls()); got != before {
				t.Errorf("ordering %s: %d calls while it was paused, want none", ordering, got-before)
			}
			if got := r.Stats(); !got.Paused {
				t.Errorf("ordering %s: stats %+v, want it paused", ordering, got)
			}
			back.Store(true)
			r.debt.pause("")
			attempts, want := 0, 2
			if ordering == lane.Total {
				want = 1
			}
			for _, e := range r.await(2) {
				attempts += e.attempts
			}
			if attempts != want {
				t.Errorf("ordering %s: %d failed attempts are known, want %d: of what was in its handler", ordering, attempts, want)
			}
		})
	}
}
