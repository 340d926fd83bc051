package lane_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// atOnce is a subscriber whose batches succeed or fail as a whole, or as batch says. Its ledger has the
// events of batches that succeeded, and all that came alone.
type atOnce struct {
	*subscribertest.Fake
	batch func([]subscriber.Delivery) error
	sizes []int // of the calls; read when the lane is quiet
}

func (a *atOnce) Handle(ctx context.Context, d subscriber.Delivery) error {
	a.sizes = append(a.sizes, 1)
	return a.Fake.Handle(ctx, d)
}

func (a *atOnce) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	a.sizes = append(a.sizes, len(deliveries))
	err := a.batch(deliveries)
	if err != nil {
		return err
	}
	for _, d := range deliveries {
		if err := a.Fake.Handle(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// withBad fails a batch in which the event stands, and the event alone.
func withBad(id string, err error) *atOnce {
	return &atOnce{
		Fake: subscribertest.Handling("at once", func(_ context.Context, d subscriber.Delivery) error {
			if d.ID == id {
				return err
			}
			return nil
		}),
		batch: func(deliveries []subscriber.Delivery) error {
			if slices.ContainsFunc(deliveries, func(d subscriber.Delivery) bool { return d.ID == id }) {
				return err
			}
			return nil
		},
	}
}

func TestLane_anIdleLaneHandsOverAtOnceAndABusyOneWhatHasGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("slow", func(context.Context, subscriber.Delivery) error {
			time.Sleep(time.Second)
			return nil
		}).InBatches()
		o := settings()
		o.Concurrency, o.Batch = 1, 10
		r := run(t, sub, o)
		r.offer("first/0")
		synctest.Wait()
		if got := len(sub.Calls()); got != 1 {
			t.Fatalf("an idle lane made %d calls for an event, want 1 at once", got)
		}
		var want []string
		for i := range 25 {
			id := fmt.Sprintf("%d/%d", i%7, i)
			want = append(want, id)
			r.offer(id)
		}
		r.await(26)
		var sizes []int
		for _, batch := range sub.Batches() {
			sizes = append(sizes, len(batch))
		}
		if want := []int{10, 10, 5}; !slices.Equal(sizes, want) {
			t.Errorf("sizes of the batches: got %v, want %v", sizes, want)
		}
		checkOrder(t, want, sub.Delivered())
	})
}

// checkOrder compares what was delivered with what was offered, key by key.
func checkOrder(t *testing.T, offered, delivered []string) {
	t.Helper()
	byKey := func(ids []string) map[string][]string {
		keys := make(map[string][]string)
		for _, id := range ids {
			key, _, _ := strings.Cut(id, "/")
			keys[key] = append(keys[key], id)
		}
		return keys
	}
	got := byKey(delivered)
	for key, want := range byKey(offered) {
		if !slices.Equal(got[key], want) {
			t.Errorf("key %s:\n got %v\nwant %v", key, got[key], want)
		}
	}
}

func TestLane_aFailedBatchIsNarrowedDownToTheBadEvent(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		dead bool
	}{
		{"that may fix", subscribertest.ErrFailing, false},
		// The subscriber says that no attempt can fix it, but not which of the events it means.
		{"that is permanent", subscriber.Permanent(errors.New("unreadable")), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const bad = "3/123"
				sub := withBad(bad, test.err)
				o := settings()
				o.Concurrency, o.Batch, o.MaxAttempts = 1, 500, 0
				r := newRig(t, sub, o)
				var offered []string
				for i := range 500 {
					id := fmt.Sprintf("%d/%d", i%10, i)
					r.offer(id) // before Run, so that all of them have gathered
					if id == bad {
						continue
					}
					if !test.dead && i%10 == 3 && i > 123 {
						continue // waits behind the bad one
					}
					offered = append(offered, id)
				}
				r.start(time.Minute)
				r.await(len(offered))
				synctest.Wait()
				checkOrder(t, offered, sub.Delivered())
				letters, _ := r.debt.dead()
				switch {
				case test.dead && (len(letters) != 1 || letters[0].Event.ID != bad):
					t.Errorf("%d dead letters, want the bad event alone", len(letters))
				case !test.dead && (len(letters) != 0 || r.hasEnded(bad)):
					t.Errorf("%d dead letters, the bad one ended: %v; want it to be tried again", len(letters), r.hasEnded(bad))
				}
				if sub.sizes[0] != 500 {
					t.Errorf("first call of %d events, want all 500", sub.sizes[0])
				}
				if got, most := len(sub.sizes), 60; got > most {
					t.Errorf("%d calls, want at most %d: %v", got, most, sub.sizes)
				}
			})
		})
	}
}

func TestLane_batchesGrowAgainAfterABadEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := withBad("bad/0", subscribertest.ErrFailing)
		o := settings()
		o.Concurrency, o.Batch, o.MaxAttempts = 1, 64, 0
		r := newRig(t, sub, o)
		r.offer("bad/0")
		for i := range 1000 {
			r.offer(fmt.Sprintf("%d/%d", i, i))
		}
		r.start(time.Minute)
		r.await(1000)
		if got, want := slices.Max(sub.sizes[5:]), 64; got != want {
			t.Errorf("largest batch after the failure: got %d, want %d: %v", got, want, sub.sizes)
		}
	})
}

func TestLane_aBatchErrorConcernsOnlyTheEventsItNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rounds int
		sub := &atOnce{Fake: subscribertest.Recording()}
		sub.batch = func(deliveries []subscriber.Delivery) error {
			if rounds++; rounds > 1 {
				return nil
			}
			return fmt.Errorf("insert: %w", &subscriber.BatchError{Failed: map[int]error{
				1: subscribertest.ErrFailing,
				3: subscriber.Permanent(errors.New("unreadable")),
			}})
		}
		o := settings()
		o.Concurrency, o.Batch = 1, 10
		r := newRig(t, sub, o)
		r.offer("A/0", "B/0", "C/0", "D/0")
		r.start(time.Minute)
		begin := time.Now()
		for _, end := range r.await(4) {
			waited := end.at.Sub(begin)
			if want := end.id == "D/0"; end.dead != want {
				t.Errorf("%s: dead %v, want %v", end.id, end.dead, want)
			}
			if want := end.id == "B/0"; (waited > 0) != want {
				t.Errorf("%s ended after %v", end.id, waited)
			}
		}
		if want := []int{4, 1}; !slices.Equal(sub.sizes, want) {
			t.Errorf("calls of %v events, want %v", sub.sizes, want)
		}
		letters, _ := r.debt.dead()
		if len(letters) != 1 || letters[0].Err != "unreadable" {
			t.Errorf("dead letters %+v, want one that says why", letters)
		}
	})
}

func TestLane_aPanicInABatchIsNarrowedDownToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bad = "5/5"
		panicking := true
		sub := withBad(bad, subscribertest.ErrFailing)
		fail := sub.batch
		sub.batch = func(deliveries []subscriber.Delivery) error {
			if err := fail(deliveries); err != nil && panicking {
				panic(err)
			}
			return nil
		}
		o := settings()
		o.Concurrency, o.Batch, o.MaxAttempts = 1, 20, 0
		r := newRig(t, sub, o)
		var offered []string
		for i := range 20 {
			offered = append(offered, fmt.Sprintf("%d/%d", i%10, i))
		}
		r.offer(offered...)
		r.start(time.Minute)
		ends := r.await(18)
		for _, end := range ends {
			if end.id == bad || end.id == "5/15" {
				t.Errorf("%s ended", end.id)
			}
		}
	})
}
