package lane_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// old makes events of long ago.
func old(ids ...string) []*event.Event {
	events := make([]*event.Event, len(ids))
	for i, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		events[i] = &event.Event{Source: "lessons", ID: id, Key: key, Type: "lesson.completed", Position: event.Position{Commit: 7, Ordinal: int64(i)}}
	}
	return events
}

// runs is run, and returns when the lane does.
func runs(t *testing.T, sub subscriber.Subscriber, options lane.Options) *rig {
	r := run(t, sub, options)
	synctest.Wait()
	return r
}

func idsOf(events []*event.Event) []string {
	ids := []string{}
	for _, ev := range events {
		ids = append(ids, ev.ID)
	}
	return ids
}

func TestReplay_handsEventsOverAgainAndMarksThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		var saw []time.Time
		sub := subscribertest.Handling("sub", func(_ context.Context, d subscriber.Delivery) error {
			saw = append(saw, d.Again)
			return nil
		})
		o := settings()
		o.Concurrency = 1
		r := run(t, sub, o)
		r.offer("K/9")
		r.await(1)
		if got := r.Replay(t.Context(), old("K/1", "L/1", "K/2"), again); got.Delivered != 3 || got.Dead != 0 || len(got.Left) != 0 {
			t.Errorf("got %+v, want three delivered", got)
		}
		for i, call := range sub.Calls() {
			if replay := i > 0; call.Replay != replay || saw[i].IsZero() == replay {
				t.Errorf("%s: replay %v, again %v; want %v", call.EventID, call.Replay, saw[i], replay)
			}
		}
		if open := r.Stats().Open; open != 0 || len(r.debt.waiting()) != 0 {
			t.Errorf("%d open and %v owed, want nothing: a replay is neither", open, r.debt.waiting())
		}
	})
}

func TestReplay_givesBackWhatFailsAndWhatIsBehindItAndCountsItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := failTimes(map[string]int{"K/2": 2})
		r := runs(t, sub, settings())
		left := old("K/1", "K/2", "K/3", "L/1")
		for _, want := range [][]string{{"K/2", "K/3"}, {"K/2", "K/3"}, {}} {
			got := r.Replay(t.Context(), left, time.Time{})
			if left = got.Left; !slices.Equal(idsOf(left), want) {
				t.Fatalf("left %v, want %v", idsOf(left), want)
			}
			if failed := len(want) > 0; (got.Wait > 0) != failed {
				t.Errorf("to wait %v", got.Wait)
			}
		}
		var attempts []int
		for _, call := range sub.Calls() {
			if call.EventID == "K/2" {
				attempts = append(attempts, call.Attempt)
			}
		}
		if want := []int{1, 2, 3}; !slices.Equal(attempts, want) {
			t.Errorf("attempts of K/2 %v, want %v", attempts, want)
		}
	})
}

func TestReplay_thatFailsDoesNotHoldUpLiveEventsOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		sub := subscribertest.Handling("sub", func(_ context.Context, d subscriber.Delivery) error {
			time.Sleep(time.Second)
			if d.Replay {
				return subscribertest.ErrFailing
			}
			return nil
		})
		r := runs(t, sub, settings())
		ended := make(chan lane.Replayed)
		go func() { ended <- r.Replay(t.Context(), old("K/1"), time.Time{}) }()
		synctest.Wait()
		r.offer("K/9")
		if got := r.await(1)[0].at.Sub(begun); got != 2*time.Second {
			t.Errorf("the live event ended after %v, want right behind the attempt", got)
		}
		<-ended
	})
}

// An event that fails live waits for its backoff, also when one that is replayed stood behind it in the call.
func TestReplay_behindALiveEventThatFailsEndsNoBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration // of the attempts of K/9
		begun := time.Now()
		sub := &atOnce{Fake: subscribertest.Handling("at once", func(_ context.Context, d subscriber.Delivery) error {
			time.Sleep(time.Second)
			if d.ID != "K/9" {
				return nil
			}
			at = append(at, time.Since(begun))
			return subscribertest.ErrFailing
		})}
		sub.batch = func(deliveries []subscriber.Delivery) error {
			failed := make(map[int]error)
			for i, d := range deliveries {
				failed[i] = subscriber.ErrHeld
				if d.ID == "K/9" {
					failed[i] = subscribertest.ErrFailing
					at = append(at, time.Since(begun))
				}
			}
			return &subscriber.BatchError{Failed: failed}
		}
		o := settings()
		o.Concurrency, o.Batch = 1, 10
		o.Backoff.Initial, o.Backoff.Max = time.Minute, time.Minute
		r := runs(t, sub, o)
		r.offer("A/1") // keeps the worker busy, so that the two come in one call
		r.offer("K/9")
		if got := r.Replay(t.Context(), old("K/1"), time.Time{}); len(got.Left) != 1 {
			t.Errorf("got %+v, want it left", got)
		}
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if len(at) != 2 || at[1]-at[0] < time.Minute {
			t.Errorf("attempts at %v, want a minute between them", at)
		}
	})
}

func TestReplay_makesADeadLetterOfWhatFailsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
			return subscriber.Permanent(errors.New("no such learner"))
		})
		r := runs(t, sub, settings())
		if got := r.Replay(t.Context(), old("K/1"), time.Time{}); got.Dead != 1 {
			t.Errorf("got %+v, want one dead", got)
		}
		if letters, _ := r.debt.dead(); len(letters) != 1 || letters[0].Err != "no such learner" {
			t.Errorf("dead letters: %+v", letters)
		}
	})
}

func TestReplay_waitsWhileTheSubscriberIsInDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, subscribertest.Recording(), settings())
		r.debt.pause("by hand")
		time.Sleep(3 * time.Second) // the lane looks every two
		if got := r.Replay(t.Context(), old("K/1", "L/1"), time.Time{}); len(got.Left) != 2 {
			t.Errorf("while paused: %+v, want all given back", got)
		}
		r.debt.pause("")
		time.Sleep(10 * time.Second)
		if got := r.Replay(t.Context(), old("K/1", "L/1"), time.Time{}); got.Delivered != 2 {
			t.Errorf("when resumed: %+v, want all delivered", got)
		}
	})
}

func TestReplay_isGivenBackWhenTheLaneStopsOrItsContextEnds(t *testing.T) {
	for what, end := range map[string]func(*rig, context.CancelFunc){
		"stop":    func(r *rig, _ context.CancelFunc) { _ = r.stop() },
		"context": func(_ *rig, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := subscribertest.Blocking()
				o := settings()
				o.Concurrency, o.Timeout = 1, time.Hour
				r := newRig(t, sub, o)
				r.start(time.Second)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				synctest.Wait()
				ended := make(chan lane.Replayed, 1)
				go func() { ended <- r.Replay(ctx, old("K/1", "L/1", "K/2"), time.Time{}) }()
				synctest.Wait()
				end(r, cancel)
				if got, want := idsOf((<-ended).Left), []string{"K/1", "L/1", "K/2"}; !slices.Equal(got, want) {
					t.Errorf("left %v, want %v", got, want)
				}
				sub.Release()
			})
		})
	}
}

// Live events, replays, debt, failures and outages at random: of a key never two at a time, live events in
// their order, replayed ones in theirs, none missing.
func TestReplay_keepsTheOrderNextToAnything(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { replayNextToAnything(t, rand.New(rand.NewPCG(seed, 5))) })
		})
	}
}

func replayNextToAnything(t *testing.T, random *rand.Rand) {
	const keys, live, replayed = 5, 300, 200
	var mu sync.Mutex
	away := false
	working := make(map[string]bool)
	done := map[bool]map[string][]string{false: {}, true: {}} // ids by replay and key
	handle := func(_ context.Context, d subscriber.Delivery) error {
		mu.Lock()
		twice := working[d.Key]
		working[d.Key] = true
		fails := away || random.IntN(10) == 0
		takes := time.Duration(random.IntN(20)) * time.Millisecond
		mu.Unlock()
		if twice {
			t.Errorf("%s: another event of its key is in work", d.ID)
		}
		time.Sleep(takes)
		mu.Lock()
		defer mu.Unlock()
		working[d.Key] = false
		if fails {
			return subscribertest.ErrFailing
		}
		done[d.Replay][d.Key] = append(done[d.Replay][d.Key], d.ID)
		return nil
	}
	o := settings()
	o.Concurrency, o.StallAfter, o.MaxAttempts = 3, time.Second, 0
	r := run(t, subscribertest.Handling("sub", handle), o)
	want := map[bool]map[string][]string{false: {}, true: {}}

	finished := make(chan struct{})
	var again []*event.Event
	for i := range replayed {
		key := fmt.Sprint(random.IntN(keys))
		again = append(again, old(fmt.Sprintf("%s/old%d", key, i))...)
		want[true][key] = append(want[true][key], again[i].ID)
	}
	go func() {
		defer close(finished)
		var left []*event.Event
		for len(again)+len(left) > 0 {
			if len(left) == 0 {
				n := min(len(again), r.ReplayPage())
				left, again = again[:n], again[n:]
			}
			got := r.Replay(t.Context(), left, time.Time{})
			if left = got.Left; len(left) > 0 {
				time.Sleep(max(got.Wait, 100*time.Millisecond))
			}
		}
	}()
	for i := range live {
		mu.Lock()
		key := fmt.Sprint(random.IntN(keys))
		pause := time.Duration(random.IntN(30)) * time.Millisecond
		if random.IntN(40) == 0 {
			away = !away
			pause = 3 * time.Second
		}
		mu.Unlock()
		id := fmt.Sprintf("%s/live%d", key, i)
		want[false][key] = append(want[false][key], id)
		r.offer(id)
		time.Sleep(pause)
	}
	mu.Lock()
	away = false
	mu.Unlock()
	r.await(live)
	<-finished
	synctest.Wait()
	for replay, byKey := range want {
		for key, ids := range byKey {
			if got := done[replay][key]; !slices.Equal(got, ids) {
				t.Errorf("key %s, replay %v:\n got %v\nwant %v", key, replay, got, ids)
			}
		}
	}
}
