package lane_test

import (
	"context"
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

// failTimes fails each event as often as the map says, or always when that is negative.
func failTimes(fails map[string]int) *subscribertest.Fake {
	var mu sync.Mutex
	left := make(map[string]int)
	for id, n := range fails {
		left[id] = n
	}
	return subscribertest.Handling("flaky", func(_ context.Context, d subscriber.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if left[d.ID] == 0 {
			return nil
		}
		left[d.ID]--
		return subscribertest.ErrFailing
	})
}

// attempted are the ids of a ledger in the order of the attempts, failed ones included.
func attempted(calls []subscribertest.Call) []string {
	var ids []string
	for _, call := range calls {
		ids = append(ids, call.EventID)
	}
	return ids
}

func TestLane_keepsTheOrderOfAKeyThroughFailures(t *testing.T) {
	for _, ordering := range []lane.Ordering{lane.ByKey, lane.Total} {
		t.Run(string(ordering), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := failTimes(map[string]int{"K/1": 3, "K/3": 1})
				o := settings()
				o.Ordering = ordering
				r := run(t, sub, o)
				r.offer(series("K", 5)...)
				r.await(5)
				want := []string{"K/0", "K/1", "K/1", "K/1", "K/1", "K/2", "K/3", "K/3", "K/4"}
				if got := attempted(sub.Calls()); !slices.Equal(got, want) {
					t.Errorf("attempts:\n got %v\nwant %v", got, want)
				}
				for i, call := range sub.Calls()[1:5] {
					if call.Attempt != i+1 || call.Term != term {
						t.Errorf("attempt %d: got number %d in term %d, want term %d", i+1, call.Attempt, call.Term, term)
					}
				}
			})
		})
	}
}

func TestLane_totalOrderWaitsAcrossKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := failTimes(map[string]int{"A/0": 2})
		o := settings()
		o.Ordering = lane.Total
		r := run(t, sub, o)
		r.offer("A/0", "B/0", "C/0")
		r.await(3)
		want := []string{"A/0", "A/0", "A/0", "B/0", "C/0"}
		if got := attempted(sub.Calls()); !slices.Equal(got, want) {
			t.Errorf("attempts: got %v, want %v", got, want)
		}
	})
}

func TestLane_withoutOrderNoEventWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := failTimes(map[string]int{"K/0": 4})
		o := settings()
		o.Ordering = lane.None
		r := run(t, sub, o)
		r.offer(series("K", 4)...)
		synctest.Wait()
		got := sub.Delivered()
		slices.Sort(got)
		if want := []string{"K/1", "K/2", "K/3"}; !slices.Equal(got, want) {
			t.Errorf("delivered at once: got %v, want %v", got, want)
		}
		r.await(4)
	})
}

// F-34: a key that fails for ever delays its own events and no others.
func TestLane_aFailingKeyDelaysNoOther(t *testing.T) {
	for _, ordering := range []lane.Ordering{lane.ByKey, lane.None} {
		t.Run(string(ordering), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := failTimes(map[string]int{"bad/0": -1})
				o := settings()
				o.Ordering, o.MaxAttempts = ordering, 0
				r := run(t, sub, o)
				r.offer("bad/0", "bad/1")
				offered := make(map[string]time.Time)
				for i := range 600 { // ten minutes
					id := fmt.Sprintf("good%d/%d", i%20, i)
					offered[id] = time.Now()
					r.offer(id)
					time.Sleep(time.Second)
				}
				for _, call := range sub.Calls() {
					if call.Key != "bad" && (call.Err != nil || !call.At.Equal(offered[call.EventID])) {
						t.Errorf("%s came %v after it was offered, %v", call.EventID, call.At.Sub(offered[call.EventID]), call.Err)
					}
					if call.EventID == "bad/1" && ordering == lane.ByKey {
						t.Error("an event overtook an earlier one of its key")
					}
				}
				if r.hasEnded("bad/0") {
					t.Error("the bad event ended")
				}
			})
		})
	}
}

func TestLane_handlesOneEventOfAKeyAtATimeAndManyKeysAtOnce(t *testing.T) {
	for _, test := range []struct {
		name     string
		ordering lane.Ordering
		keys     int
		most     int // calls at the same time, with a concurrency of 8
	}{
		{"fewer keys than workers", lane.ByKey, 3, 3},
		{"as many", lane.ByKey, 8, 8},
		{"more", lane.ByKey, 20, 8},
		{"total order", lane.Total, 20, 1},
		{"no order", lane.None, 1, 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				inHand := make(map[string]int)
				total, most := 0, 0
				sub := subscribertest.Handling("slow", func(_ context.Context, d subscriber.Delivery) error {
					mu.Lock()
					inHand[d.Key]++
					total++
					most = max(most, total)
					if inHand[d.Key] > 1 && test.ordering != lane.None {
						t.Errorf("%s: %d at once of key %s", d.ID, inHand[d.Key], d.Key)
					}
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					defer mu.Unlock()
					inHand[d.Key]--
					total--
					return nil
				})
				o := settings()
				o.Ordering = test.ordering
				r := run(t, sub, o)
				begin := time.Now()
				for i := range 20 {
					for k := range test.keys {
						r.offer(fmt.Sprintf("%d/%d", k, i))
					}
				}
				events := 20 * test.keys
				last := r.await(events)[events-1]
				if most != test.most {
					t.Errorf("calls at the same time: got at most %d, want %d", most, test.most)
				}
				// No one idles while there is something to do; in the end fewer keys than workers may be left.
				rounds := time.Duration((events + test.most - 1) / test.most)
				if got, most := last.at.Sub(begin), (rounds+2)*time.Second; got > most {
					t.Errorf("%d events of a second each took %v, want at most %v", events, got, most)
				}
			})
		})
	}
}

// The other half of F-34: who is dead has no part in the time of who lives.
func TestLanes_aDeadSubscriberDelaysNoOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead []*rig
		for range 10 {
			dead = append(dead, run(t, subscribertest.Failing(-1), settings()), run(t, subscribertest.Blocking(), settings()))
		}
		living := subscribertest.Recording()
		r := run(t, living, settings())
		for i := range 100 {
			id := fmt.Sprintf("%d/%d", i%20, i)
			for _, d := range dead {
				d.offer(id)
			}
			begin := time.Now()
			r.offer(id)
			if at := r.awaitEnd(id).at; !at.Equal(begin) {
				t.Errorf("%s took %v", id, at.Sub(begin))
			}
			time.Sleep(time.Second)
		}
	})
}
