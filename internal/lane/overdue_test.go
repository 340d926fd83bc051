package lane_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// A stuck subscriber ignores the context of events of some keys until it is let go.
type stuck struct {
	*subscribertest.Fake
	once sync.Once
	free chan struct{}
}

func newStuck(keys ...string) *stuck {
	s := &stuck{free: make(chan struct{})}
	s.Fake = subscribertest.Handling("stuck", func(_ context.Context, d subscriber.Delivery) error {
		if slices.Contains(keys, d.Key) {
			<-s.free
		}
		return nil
	})
	return s
}

func (s *stuck) letGo() { s.once.Do(func() { close(s.free) }) }

func TestLane_aHandlerThatNeverReturnsIsNamedAndHoldsOnlyItsKey(t *testing.T) {
	for _, ordering := range []lane.Ordering{lane.ByKey, lane.None} {
		t.Run(string(ordering), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := newStuck("K")
				defer sub.letGo()
				o := settings()
				o.Ordering, o.Concurrency = ordering, 1
				r := run(t, sub, o)
				begin := time.Now()
				r.offer("K/0", "L/0", "M/0")
				if ordering == lane.ByKey {
					r.offer("K/1")
				}
				// The only worker is given to others a second after the deadline.
				if end := r.awaitEnd("M/0"); end.at.Sub(begin) != 11*time.Second {
					t.Errorf("another key waited %v, want 11s", end.at.Sub(begin))
				}
				if got, want := r.Stats().Overdue, []string{"K/0"}; !slices.Equal(got, want) {
					t.Errorf("overdue: got %v, want %v", got, want)
				}
				time.Sleep(time.Hour)
				if calls := sub.Calls(); len(calls) != 3 {
					t.Errorf("%d calls, want 3: the key of a handler that did not return was handed over again", len(calls))
				}

				sub.letGo()
				// A late success is a success: nothing has recorded the delivery as owed meanwhile.
				end := r.awaitEnd("K/0")
				if calls := sub.Calls(); end.dead || end.attempts != 0 || calls[len(calls)-1].EventID == "K/0" {
					t.Errorf("got %+v, want it delivered by the late handler", end)
				}
				if got := r.Stats().Overdue; len(got) != 0 {
					t.Errorf("overdue after it returned: %v", got)
				}
				if ordering == lane.ByKey {
					r.awaitEnd("K/1")
				}
			})
		})
	}
}

func TestLane_handlersThatNeverReturnAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys []string
		for i := range 500 {
			keys = append(keys, fmt.Sprint(i))
		}
		sub := newStuck(keys...)
		defer sub.letGo()
		r := run(t, sub, settings())
		for _, key := range keys {
			r.offer(key + "/0")
		}
		time.Sleep(90 * time.Minute)
		if got, most := len(sub.Calls()), 64+8; got > most {
			t.Errorf("%d handlers run, want at most %d", got, most)
		}
		sub.letGo()
		for _, end := range r.await(500) {
			if end.dead {
				t.Errorf("%s is dead", end.id)
			}
		}
	})
}

func TestLane_aHandlerHasADeadlineThatSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Blocking()
		o := settings()
		o.Timeout = 3 * time.Second
		r := run(t, sub, o)
		begin := time.Now()
		r.offer("K/0")
		sub.AwaitCalls(t, 2)
		calls := sub.Calls()
		if got := calls[0].Err; got == nil || !strings.Contains(got.Error(), "deadline of 3s") {
			t.Errorf("cause: got %v, want the deadline", got)
		}
		if got, least := calls[1].At.Sub(begin), 3*time.Second; got < least {
			t.Errorf("second attempt after %v, want at least %v", got, least)
		}
		if got := r.Stats().Overdue; len(got) != 0 {
			t.Errorf("overdue: %v, want none: the handler did return", got)
		}
		sub.Release()
		r.await(1)
	})
}

// A handler is at work when its key falls into debt, and fails only after it was given up. What is newer has
// been recorded meanwhile, and waits for it all the same.
func TestLane_isNotOvertakenWhileALateHandlerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("sub", func(_ context.Context, d subscriber.Delivery) error {
			if d.ID == "K/0" && d.Attempt == 1 {
				time.Sleep(15 * time.Second) // deaf to its deadline of 10 s
				return errors.New("late")
			}
			return nil
		})
		o := settings()
		o.Concurrency = 1
		r := newRig(t, sub, o)
		r.share = 3
		r.start(never)
		r.offer("K/0", "K/1", "K/2")
		ends := r.await(3)
		var got []string
		for _, end := range ends {
			got = append(got, end.id)
		}
		if want := []string{"K/0", "K/1", "K/2"}; !slices.Equal(got, want) {
			t.Errorf("ended in the order %v, want %v", got, want)
		}
	})
}
