package lane_test

import (
	"context"
	"errors"
	"fmt"
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

// partlyFailing fails every event of keys that begin with "bad", and all of them during an outage.
type partlyFailing struct {
	*subscribertest.Fake
	takes time.Duration          // of a failed call
	fail  func(key string) error // what a bad key answers
	mu    sync.Mutex             //
	away  bool                   // guarded by mu
	well  string                 // a bad key that fails no more; guarded by mu
	first map[string]time.Time   // attempt of each event; guarded by mu
	done  map[string]time.Time   // delivery of each event; guarded by mu
}

func newPartlyFailing(takes time.Duration) *partlyFailing {
	p := &partlyFailing{takes: takes, first: make(map[string]time.Time), done: make(map[string]time.Time)}
	p.fail = func(string) error { return subscribertest.ErrFailing }
	p.Fake = subscribertest.Handling("partly", func(_ context.Context, d subscriber.Delivery) error {
		p.mu.Lock()
		if _, tried := p.first[d.ID]; !tried {
			p.first[d.ID] = time.Now()
		}
		fails := p.away || strings.HasPrefix(d.Key, "bad") && d.Key != p.well
		p.mu.Unlock()
		if fails {
			time.Sleep(p.takes)
			return p.fail(d.Key)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.done[d.ID] = time.Now()
		return nil
	})
	return p
}

func (p *partlyFailing) setAway(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

func (p *partlyFailing) recovers(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.well = key
}

// waited is how long after begin an event was first tried, and whether it was delivered then.
func (p *partlyFailing) waited(id string, begin time.Time) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, tried := p.first[id]
	_, done := p.done[id]
	return first.Sub(begin), tried && done
}

func (p *partlyFailing) delivered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.done)
}

// bound is that of docs/GUARANTEES.md: how long an event whose key does not fail waits at most for its first
// attempt, before anything was delivered.
func bound(failing int, takes time.Duration) time.Duration {
	return 3 * time.Duration(failing+5) * (time.Second + takes)
}

// defaults are the options of a subscriber that says nothing.
func defaults() lane.Options {
	o := settings()
	o.StallAfter = time.Minute
	return o
}

// The table of docs/GUARANTEES.md ("Isolation"): failing keys in front of the first event that does not fail.
func TestLane_aGoodEventIsTriedWithinItsBoundBehindFailingKeys(t *testing.T) { // S-40
	type trouble struct {
		name   string
		outage time.Duration // before it the failing keys are tried for so long
		takes  time.Duration
		hour   bool // one of them asks for an hour
		large  int  // bytes of one of them
	}
	for _, failing := range few([]int{5, 20}, []int{5, 20, 100, 1000}) {
		for _, is := range []trouble{
			{name: "at once"},
			{name: "calls take a second", takes: time.Second},
			{name: "after half an hour", outage: 30 * time.Minute},
			{name: "an hour asked for", outage: 10 * time.Minute, hour: true},
			{name: "one of 4.5 MiB", outage: 10 * time.Minute, large: 9 << 19},
		} {
			if failing == 1000 && is.takes > 0 {
				continue // it takes more than half an hour, in seconds of ours
			}
			t.Run(fmt.Sprintf("%d keys, %s", failing, is.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					sub := newPartlyFailing(is.takes)
					sub.fail = func(key string) error {
						if is.hour && key == "bad0" {
							return subscriber.RetryAfter(errors.New("429 Too Many Requests"), time.Hour)
						}
						return subscribertest.ErrFailing
					}
					r := run(t, sub, defaults())
					r.share = 2500
					for i := range failing {
						ev := &event.Event{Source: "lessons", ID: fmt.Sprintf("bad%d/0", i), Key: fmt.Sprintf("bad%d", i), Type: "lesson.completed"}
						if i == 1 {
							ev.Payload = make([]byte, is.large)
						}
						r.offerEvent(ev)
					}
					time.Sleep(is.outage)
					begin, most := time.Now(), bound(failing, is.takes)
					r.offer("good/0")
					time.Sleep(most)
					waited, delivered := sub.waited("good/0", begin)
					if !delivered {
						t.Fatalf("not tried within %v", most)
					}
					t.Logf("waited %v of at most %v", waited, most)
					// The first can have been delivered before a key had failed; then those failures look like an outage.
					begin = time.Now()
					r.offer("good/1")
					r.awaitEnd("good/1")
					if waited, _ := sub.waited("good/1", begin); waited > most {
						t.Fatalf("the second waited %v, want at most %v", waited, most)
					}
					// Once one was delivered, failing keys delay no other.
					for i := range 30 {
						time.Sleep(time.Second)
						id := fmt.Sprintf("good%d/%d", i%7, i)
						begin := time.Now()
						r.offer(id)
						time.Sleep(5 * time.Second)
						if waited, delivered := sub.waited(id, begin); !delivered || waited > 2*time.Second {
							t.Fatalf("%s: delivered %v, waited %v after the first success", id, delivered, waited)
						}
					}
				})
			})
		}
	}
}

// Five keys fail, and one good event of another key comes every 30 s; all else is default.
func TestLane_aRareGoodEventAmongFailingKeysIsDelivered(t *testing.T) { // S-40
	for _, test := range []struct {
		failing int
		every   time.Duration
	}{{5, 30 * time.Second}, {20, time.Second}} {
		t.Run(fmt.Sprintf("%d keys, one each %v", test.failing, test.every), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := newPartlyFailing(0)
				r := run(t, sub, defaults())
				r.share = 2500
				lasts := long(60*test.every+15*time.Minute, 2*time.Hour) // twelve attempts of the failing ones take 5 minutes
				n := int(lasts / test.every)
				var worst time.Duration
				offered := make(map[string]time.Time)
				for i := range n {
					if i%10 == 0 {
						for k := range test.failing {
							r.offer(fmt.Sprintf("bad%d/%d", k, i))
						}
					}
					id := fmt.Sprintf("good%d/%d", i, i)
					offered[id] = time.Now()
					r.offer(id)
					time.Sleep(test.every)
				}
				time.Sleep(time.Minute)
				delivered := 0
				for id, at := range offered {
					waited, done := sub.waited(id, at)
					if done {
						delivered++
					}
					worst = max(worst, waited)
				}
				if delivered != n {
					t.Errorf("%d of %d delivered", delivered, n)
				}
				if most := bound(test.failing, 0); worst > most {
					t.Errorf("worst wait %v, want at most %v", worst, most)
				}
				letters, _ := r.debt.dead()
				if least := test.failing; len(letters) < least {
					t.Errorf("%d dead letters, want at least %d: the events that fail while others are delivered are poison", len(letters), least)
				}
				t.Logf("worst wait %v, %d dead letters", worst, len(letters))
			})
		})
	}
}

// The opposite arrangement: the receiver refuses each event once and takes it at its second attempt.
func TestLane_aReceiverThatRefusesEachEventOnceIsNoOutage(t *testing.T) { // S-42
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("forgetful", func(_ context.Context, d subscriber.Delivery) error {
			if d.Attempt == 1 {
				return errors.New("409 try again")
			}
			return nil
		})
		r := run(t, sub, defaults())
		begin := time.Now()
		for i := range 40 {
			r.offer(fmt.Sprintf("%d/0", i))
		}
		last := r.await(40)[39]
		if took, most := last.at.Sub(begin), 30*time.Second; last.dead || took > most {
			t.Errorf("40 events took %v, want at most %v", took, most)
		}
	})
}

// After an outage some of many keys go on failing, wherever they stand in the backlog.
func TestLane_aBacklogAfterAnOutageIsPaidAlthoughSomeKeysGoOnFailing(t *testing.T) { // S-41
	for _, test := range []struct {
		name     string
		keys     int
		failing  int
		each     int // events of a key
		ordering lane.Ordering
	}{
		{"20 of 4,000", 4000, 20, 1, lane.ByKey},
		{"20 of 400 with ten events each", 400, 20, 10, lane.ByKey},
		{"1,500 of 3,000", 3000, 1500, 1, lane.ByKey},
		{"20 of 4,000 without an order", 4000, 20, 1, lane.None},
	} {
		part := few(10, 1) // of the keys, and so of the outage
		test.keys, test.failing = test.keys/part, test.failing/part
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := newPartlyFailing(0)
				sub.setAway(true)
				o := defaults()
				o.Ordering = test.ordering
				r := run(t, sub, o)
				r.share = 2500
				for n := range test.each {
					for i := range test.keys {
						key := fmt.Sprintf("good%d", i)
						if i < test.failing {
							key = fmt.Sprintf("bad%d", i)
						}
						r.offer(fmt.Sprintf("%s/%d", key, n))
					}
				}
				time.Sleep(long(15*time.Minute, time.Hour) / time.Duration(part)) // most of them are not tried meanwhile
				sub.setAway(false)
				begin := time.Now()
				want := (test.keys - test.failing) * test.each
				most := bound(test.failing, 0) + 2*time.Minute
				time.Sleep(most)
				if got := sub.delivered(); got != want {
					t.Errorf("%d of %d delivered %v after the outage", got, want, most)
				}
				sub.mu.Lock()
				var last time.Duration
				for _, at := range sub.done {
					last = max(last, at.Sub(begin))
				}
				sub.mu.Unlock()
				t.Logf("all of the others within %v", last)
			})
		})
	}
}

// That its destination is away never makes an event a dead letter; anything else does.
func TestLane_awayNeverCountsTowardsMaxAttempts(t *testing.T) { // S-43
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprint("away ", away), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := newPartlyFailing(0)
				sub.fail = func(string) error {
					if away {
						return fmt.Errorf("produce: %w", subscriber.Away(errors.New("partition 7 has no leader")))
					}
					return errors.New("no")
				}
				r := run(t, sub, defaults())
				r.offer("bad/0", "bad/1")
				for i := range 600 {
					r.offer(fmt.Sprintf("good%d/%d", i%20, i))
					time.Sleep(time.Second)
				}
				letters, _ := r.debt.dead()
				if got := len(letters) > 0; got == away {
					t.Errorf("%d dead letters", len(letters))
				}
				if got := r.Stats().KeysInDebt; away && got != 1 {
					t.Errorf("%d keys in debt after ten minutes, want the one that is away", got)
				}
				if got := sub.delivered(); got != 600 {
					t.Errorf("%d of 600 others delivered", got)
				}
			})
		})
	}
}

// Keys that fail ride in calls of their own, on at most half of the slots.
func TestLane_retriesRideApartOnHalfOfTheSlots(t *testing.T) { // S-44
	for _, concurrency := range few([]int{2, 8}, []int{1, 2, 3, 8}) {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				bad, most, mixed := 0, 0, 0
				sub := subscribertest.Handling("far", func(context.Context, subscriber.Delivery) error { return nil })
				batches := &atOnce{Fake: sub, batch: func([]subscriber.Delivery) error { return nil }}
				handle := func(ctx context.Context, deliveries []subscriber.Delivery) error {
					failed := make(map[int]error)
					retries := 0
					for i, d := range deliveries {
						if strings.HasPrefix(d.Key, "bad") {
							failed[i] = errors.New("time-out at the far end")
							if d.Attempt > 1 {
								retries++
							}
						}
					}
					if len(failed) == 0 {
						return nil
					}
					mu.Lock()
					if retries > 0 {
						bad++
						most = max(most, bad)
						if retries < len(deliveries) {
							mixed++
						}
					}
					mu.Unlock()
					select {
					case <-time.After(5 * time.Second):
					case <-ctx.Done():
					}
					mu.Lock()
					defer mu.Unlock()
					if retries > 0 {
						bad--
					}
					return &subscriber.BatchError{Failed: failed}
				}
				o := defaults()
				o.Concurrency, o.Batch, o.MaxAttempts, o.StallAfter = concurrency, 10, 0, never
				r := run(t, batchesOf{batches, handle}, o)
				r.offer("good/0")
				r.await(1)
				for i := range 100 {
					r.offer(fmt.Sprintf("bad%d/0", i))
				}
				time.Sleep(few(15*time.Minute, time.Hour)) // each of them has failed
				r.offer("good/1")
				r.awaitEnd("good/1") // known to be well
				var worst time.Duration
				for i := range 100 {
					id := fmt.Sprintf("good%d/2", i)
					begin := time.Now()
					r.offer(id)
					worst = max(worst, r.awaitEnd(id).at.Sub(begin))
					time.Sleep(700 * time.Millisecond)
				}
				mu.Lock()
				defer mu.Unlock()
				if want := max(1, concurrency/2); most > want {
					t.Errorf("%d calls of failing keys at once, want at most %d", most, want)
				}
				if mixed > 0 {
					t.Errorf("%d calls had both", mixed)
				}
				if concurrency > 1 && worst > 0 || worst > 5*time.Second {
					t.Errorf("a good event waited %v", worst)
				}
			})
		})
	}
}

// batchesOf is a subscriber of one function.
type batchesOf struct {
	*atOnce
	handle func(context.Context, []subscriber.Delivery) error
}

func (b batchesOf) Handle(ctx context.Context, d subscriber.Delivery) error {
	err := b.handle(ctx, []subscriber.Delivery{d})
	var failed *subscriber.BatchError
	if errors.As(err, &failed) {
		return failed.Failed[0]
	}
	return err
}

func (b batchesOf) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	return b.handle(ctx, deliveries)
}

// However many keys fail, what a lane has of its debt in memory is bounded, and so is what it asks for.
func TestLane_anyNumberOfFailingKeysTakesBoundedMemory(t *testing.T) { // S-45
	synctest.Test(t, func(t *testing.T) {
		sub := newPartlyFailing(0)
		sub.fail = func(string) error { return subscriber.Away(errors.New("partition 7 has no leader")) }
		r := run(t, sub, defaults())
		r.share = 2500
		failing := few(220, long(2200, 3000)) // and a query may name 2,000
		for i := range failing {
			r.offer(fmt.Sprintf("bad%d/0", i))
		}
		time.Sleep(time.Duration(failing) * 1500 * time.Millisecond) // each of them has failed
		r.offer("good/0")
		r.awaitEnd("good/0")
		for i := range long(30, 100) {
			id := fmt.Sprintf("good%d/1", i)
			begin := time.Now()
			r.offer(id)
			time.Sleep(10 * time.Second)
			if waited, done := sub.waited(id, begin); !done || waited > 2*time.Second {
				t.Errorf("%s: delivered %v after %v, %+v", id, done, waited, r.Stats())
			}
		}
		if got, most := r.debt.asked(), 2000; got > most { // what is in hand, not what fails
			t.Errorf("a query named %d keys, want at most %d", got, most)
		}
	})
}
