package lane_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

func TestLane_fiveFailuresInARowOpenTheBreaker(t *testing.T) {
	for failures, want := range map[int]bool{4: false, 5: true, 50: true} {
		t.Run(fmt.Sprint(failures), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := subscribertest.Failing(failures)
				o := settings()
				o.Concurrency = 1
				r := run(t, sub, o)
				opened := false
				for i := range 60 {
					r.offer(fmt.Sprintf("%d/0", i))
					opened = opened || r.Stats().BreakerOpen
					synctest.Wait()
					opened = opened || r.Stats().BreakerOpen
				}
				if opened != want {
					t.Errorf("after %d failures in a row: open %v, want %v", failures, opened, want)
				}
				r.await(60)
				if r.Stats().BreakerOpen {
					t.Error("still open although everything was delivered")
				}
			})
		})
	}
}

// outage is a subscriber that takes a while to fail, and remembers how many calls it had at once.
type outage struct {
	*subscribertest.Fake
	mu           sync.Mutex
	inHand, most int // most since the last reset
	back         bool
}

func newOutage(takes time.Duration) *outage {
	o := &outage{}
	o.Fake = subscribertest.Handling("away", func(context.Context, subscriber.Delivery) error {
		o.mu.Lock()
		o.inHand++
		o.most = max(o.most, o.inHand)
		o.mu.Unlock()
		time.Sleep(takes)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.inHand--
		if o.back {
			return nil
		}
		return errors.New("connection refused")
	})
	return o
}

func (o *outage) set(back bool) (most int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	most, o.most, o.back = o.most, o.inHand, back
	return most
}

func TestLane_whileTheSubscriberIsAwayOneProbeAtATimeGoesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newOutage(3 * time.Second)
		r := run(t, sub, settings())
		for i := range 200 {
			r.offer(fmt.Sprintf("%d/0", i))
		}
		time.Sleep(10 * time.Minute)
		sub.set(false) // from here on the breaker is open
		before := len(sub.Calls())
		lasts := few(20*time.Minute, 2*time.Hour)
		time.Sleep(lasts)
		probes := len(sub.Calls()) - before
		if most := sub.set(true); most != 1 {
			t.Errorf("%d calls at once while the breaker is open, want 1", most)
		}
		// Each takes 3 s and is followed by a wait of at most 30 s.
		if least, most := int(lasts.Seconds())/(30+3)-1, int(lasts.Seconds())/3; probes < least || probes > most {
			t.Errorf("%d probes in %v, want between %d and %d", probes, lasts, least, most)
		}
		if stats := r.Stats(); !stats.BreakerOpen || stats.LastError != "connection refused" || stats.Delivered != 0 {
			t.Errorf("stats: got %+v", stats)
		}

		back := time.Now()
		ends := r.await(200)
		for _, end := range ends {
			if end.dead {
				t.Fatalf("%s is dead after an outage", end.id)
			}
		}
		// The first success releases all: 199 events of 3 s. All have failed, so they have 4 of 8 slots.
		first, last := ends[0].at, ends[199].at
		if waited, most := first.Sub(back), 36*time.Second; waited > most {
			t.Errorf("first delivery %v after the subscriber was back, want at most %v", waited, most)
		}
		if took, want := last.Sub(first), 50*3*time.Second; took != want {
			t.Errorf("the rest took %v, want %v", took, want)
		}
	})
}

// A probe that takes its time must not keep the lane busy: a lane that looks again and again whether it
// may probe would never let the virtual clock go on, and burn a core on a real one.
func TestLane_waitsForAProbeWithoutLookingAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newOutage(5*time.Second), settings())
		for i := range 20 {
			r.offer(fmt.Sprintf("%d/0", i))
		}
		done := make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(done) })
		<-done
	})
}

func TestLane_theFirstSuccessEndsTheWaitOfAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newOutage(0)
		o := settings()
		o.Backoff = lane.Backoff{Initial: time.Minute, Max: time.Hour}
		r := run(t, sub, o)
		for i := range 30 {
			r.offer(fmt.Sprintf("%d/0", i))
		}
		time.Sleep(few(time.Hour, 3*time.Hour))
		sub.set(true)
		ends := r.await(30)
		if first, last := ends[0].at, ends[29].at; !first.Equal(last) {
			t.Errorf("the last key waited %v longer than the first", last.Sub(first))
		}
	})
}

func TestLane_waitsAsLongAsTheReceiverAsks(t *testing.T) { // F-66
	for _, test := range []struct {
		asks        time.Duration
		least, most time.Duration // between the attempts
	}{
		{30 * time.Second, 30 * time.Second, 30 * time.Second},
		{90 * time.Second, 90 * time.Second, 90 * time.Second},
		{0, 200 * time.Millisecond, 200 * time.Millisecond},
		{-time.Second, 200 * time.Millisecond, 200 * time.Millisecond},
		{999999 * time.Second, time.Hour, time.Hour}, // the lane's bound
		{1<<63 - 1, time.Hour, time.Hour},
	} {
		t.Run(fmt.Sprint(test.asks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := subscribertest.Handling("busy", func(_ context.Context, d subscriber.Delivery) error {
					if d.ID == "K/0" && d.Attempt == 1 {
						return subscriber.RetryAfter(errors.New("429 Too Many Requests"), test.asks)
					}
					return nil
				})
				r := run(t, sub, settings())
				begin := time.Now()
				r.offer("K/0", "L/0")
				if end := r.awaitEnd("L/0"); !end.at.Equal(begin) {
					t.Errorf("another key waited %v", end.at.Sub(begin))
				}
				r.awaitEnd("K/0")
				calls := sub.Calls()
				if got := calls[len(calls)-1].At.Sub(begin); got < test.least || got > test.most {
					t.Errorf("asked for %v, waited %v, want %v to %v", test.asks, got, test.least, test.most)
				}
			})
		})
	}
}

// A Retry-After holds back its own key, and no other.
func TestLane_probesNoEarlierThanTheReceiverAsks(t *testing.T) { // F-66
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("busy", func(context.Context, subscriber.Delivery) error {
			return subscriber.RetryAfter(errors.New("503 Service Unavailable"), 10*time.Minute)
		})
		r := run(t, sub, settings())
		begin := time.Now()
		for i := range 50 {
			r.offer(fmt.Sprintf("%d/0", i))
		}
		hours := few(1, 5)
		time.Sleep(time.Duration(hours) * time.Hour)
		last := make(map[string]time.Time)
		for _, call := range sub.Calls() {
			before, again := last[call.Key]
			if wait := call.At.Sub(before); again && wait < 10*time.Minute {
				t.Errorf("key %s tried again after %v, want at least 10m", call.Key, wait)
			}
			if waited, most := call.At.Sub(begin), 50*time.Second; !again && waited > most {
				t.Errorf("key %s first tried after %v, want at most %v", call.Key, waited, most)
			}
			last[call.Key] = call.At
		}
		if got, least := len(sub.Calls()), 50+4*hours; got < least {
			t.Errorf("%d calls in %d hours, want at least %d", got, hours, least)
		}
	})
}
