package lane_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// refusing calls one event unreadable.
func refusing(id string) *subscribertest.Fake {
	return subscribertest.Handling("refusing", func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == id {
			return fmt.Errorf("handle: %w", subscriber.Permanent(errors.New("unreadable")))
		}
		return nil
	})
}

func TestLane_aPermanentErrorIsADeadLetterAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := refusing("K/1")
		r := run(t, sub, settings())
		begin := time.Now()
		r.offer(series("K", 3)...)
		for i, end := range r.await(3) {
			if want := fmt.Sprint("K/", i); end.id != want || end.dead != (i == 1) || !end.at.Equal(begin) {
				t.Errorf("end %d: got %+v, want %s at once", i, end, want)
			}
		}
		letters, _ := r.debt.dead()
		if len(letters) != 1 {
			t.Fatalf("%d dead letters, want 1", len(letters))
		}
		got := letters[0]
		if got.Event.ID != "K/1" || got.Attempts != 1 || got.Err != "handle: unreadable" || !got.FirstFailure.Equal(begin) || !got.LastFailure.Equal(begin) {
			t.Errorf("dead letter: got %+v", got)
		}
		if stats := r.Stats(); stats.Delivered != 2 || stats.Dead != 1 || stats.Open != 0 || stats.BreakerOpen {
			t.Errorf("stats: got %+v, want 2 delivered, 1 dead, none open", stats)
		}
	})
}

func TestLane_anInvalidEventIsADeadLetterThatNoOneIsHanded(t *testing.T) { // F-12
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Recording()
		r := run(t, sub, settings())
		r.offer("K/0")
		r.offerEvent(&event.Event{ID: "row:7", Key: "K", Invalid: "event id is empty"})
		r.offer("K/1")
		r.await(3)
		if end := r.awaitEnd("row:7"); !end.dead {
			t.Errorf("got %+v, want it dead", end)
		}
		if got := len(sub.Calls()); got != 2 {
			t.Errorf("%d calls, want 2", got)
		}
		letters, _ := r.debt.dead()
		if len(letters) != 1 || letters[0].Err != "event id is empty" {
			t.Errorf("dead letters: got %+v, want one with the reason", letters)
		}
	})
}

// F-08: an event is never neither delivered nor recorded.
func TestLane_aRefusedDeadLetterStaysOpenAndKeepsItsReason(t *testing.T) {
	for _, test := range []struct {
		name string
		kill func(*rig)
		call int // of the subscriber for the event
		want string
	}{
		{"permanent", func(r *rig) { r.offer("K/0") }, 1, "handle: unreadable"},
		{"invalid", func(r *rig) { r.offerEvent(&event.Event{ID: "K/0", Key: "K", Invalid: "event id is empty"}) }, 0, "event id is empty"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := refusing("K/0")
				r := run(t, sub, settings())
				r.debt.refuseDead(true)
				test.kill(r)
				r.offer("K/1", "L/0")
				r.awaitEnd("L/0")
				time.Sleep(time.Hour)
				if got, _ := r.tracker.OpenOf(0); got != 2 || r.hasEnded("K/0") || r.hasEnded("K/1") {
					t.Errorf("%d open, want the refused event and the one behind it", got)
				}
				letters, refused := r.debt.dead()
				if len(letters) != 0 || refused < 100 || refused > 2*3600/15 {
					t.Errorf("%d dead letters and %d refused in an hour, want none and some hundreds of attempts", len(letters), refused)
				}
				r.debt.refuseDead(false)
				r.await(3)
				letters, _ = r.debt.dead()
				if len(letters) != 1 || letters[0].Event.ID != "K/0" || letters[0].Err != test.want || letters[0].Attempts != test.call {
					t.Errorf("dead letters: got %+v, want one of %d attempts that says %q", letters, test.call, test.want)
				}
				calls := 0
				for _, call := range sub.Calls() {
					if call.EventID == "K/0" {
						calls++
					}
				}
				if calls != test.call {
					t.Errorf("the subscriber was called %d times for it, want %d", calls, test.call)
				}
			})
		})
	}
}

func TestLane_anEventThatFailsWhileOthersSucceedIsPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := failTimes(map[string]int{"bad/0": -1})
		o := settings()
		o.Backoff.Initial = 2 * time.Second // so that another event is delivered between any two attempts
		r := run(t, sub, o)
		r.offer("bad/0", "bad/1")
		for i := range 3600 {
			r.offer(fmt.Sprintf("good/%d", i))
			time.Sleep(time.Second)
		}
		bad := r.awaitEnd("bad/0")
		// The first failure cannot be known to be the event's.
		if least, most := 12, 13; !bad.dead || bad.attempts < least || bad.attempts > most {
			t.Errorf("got %+v, want it dead after %d or %d attempts", bad, least, most)
		}
		if behind := r.awaitEnd("bad/1"); behind.dead || !behind.at.Equal(bad.at) {
			t.Errorf("event behind it: got %+v, want it delivered as soon as the poison was recorded", behind)
		}
		letters, _ := r.debt.dead()
		if len(letters) != 1 || letters[0].Err != subscribertest.ErrFailing.Error() || !letters[0].LastFailure.After(letters[0].FirstFailure) {
			t.Errorf("dead letters: got %+v", letters)
		}
	})
}

func TestLane_withoutALimitOfAttemptsNothingIsPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := failTimes(map[string]int{"bad/0": 100})
		o := settings()
		o.MaxAttempts = 0
		r := run(t, sub, o)
		r.offer("bad/0")
		for i := range 3600 {
			r.offer(fmt.Sprintf("good/%d", i))
			time.Sleep(time.Second)
		}
		if bad := r.awaitEnd("bad/0"); bad.dead || bad.attempts != 100 {
			t.Errorf("got %+v, want it delivered after 100 failed attempts", bad)
		}
	})
}

// away makes a subscriber that fails whatever it gets from one moment to another.
func away(from, until time.Time) *subscribertest.Fake {
	return subscribertest.Handling("away", func(context.Context, subscriber.Delivery) error {
		if now := time.Now(); !now.Before(from) && now.Before(until) {
			return errors.New("connection refused")
		}
		return nil
	})
}

func TestLane_aLoneEventSurvivesAnOutageOfHours(t *testing.T) {
	for _, ordering := range []lane.Ordering{lane.ByKey, lane.Total, lane.None} {
		for _, stallAfter := range []time.Duration{time.Minute, never} {
			t.Run(fmt.Sprintf("%s, debt after %v", ordering, stallAfter), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					back := time.Now().Add(few(20*time.Minute, 2*time.Hour))
					sub := away(time.Now(), back)
					o := settings()
					o.Ordering, o.StallAfter = ordering, stallAfter
					r := run(t, sub, o)
					r.offer("K/0")
					end := r.await(1)[0]
					if limit := back.Add(2 * o.Backoff.Max); end.dead || end.at.After(limit) {
						t.Errorf("got %+v, want it delivered by %v", end, limit)
					}
					if letters, _ := r.debt.dead(); len(letters) > 0 {
						t.Errorf("dead letters: %+v, want none", letters)
					}
				})
			})
		}
	}
}

// An event that failed once by chance, while others went through, is no poison when everything fails
// after that: the first of the others to come shows that it is an outage.
func TestLane_anOutageAfterAFailureByChanceKillsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blip := time.Now()
		back := blip.Add(few(20*time.Minute, 2*time.Hour))
		sub := subscribertest.Handling("away", func(_ context.Context, d subscriber.Delivery) error {
			switch now := time.Now(); {
			case d.ID == "lucky/0", !now.Before(back):
				return nil
			}
			return errors.New("connection refused")
		})
		r := run(t, sub, settings())
		r.offer("K/0")
		time.Sleep(time.Millisecond)
		r.offer("lucky/0")
		time.Sleep(time.Second)
		r.offer("L/0")
		end := r.awaitEnd("K/0")
		if end.dead || end.at.Before(back) {
			t.Errorf("got %+v after %v of an outage, want it delivered afterwards", end, end.at.Sub(blip))
		}
	})
}

func TestLane_aPanicIsAnErrorOfItsEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("panicking", func(_ context.Context, d subscriber.Delivery) error {
			if d.ID == "K/0" && d.Attempt <= 2 {
				panic("no such learner")
			}
			return nil
		})
		r := run(t, sub, settings())
		r.offer("K/0", "K/1", "L/0")
		synctest.Wait()
		if !r.hasEnded("L/0") {
			t.Error("the panic delayed another key")
		}
		if stats := r.Stats(); stats.LastError != "handler panicked: no such learner" {
			t.Errorf("last error: got %q", stats.LastError)
		}
		if end := r.awaitEnd("K/0"); end.dead || end.attempts != 2 {
			t.Errorf("got %+v, want it delivered after 2 failed attempts", end)
		}
		r.awaitEnd("K/1")
	})
}

// The dead letter may come out of the debt, and what is behind it be in hand already.
func TestLane_aDeadLetterOfTheDebtBlocksItsKeyToo(t *testing.T) {
	for _, ordering := range []lane.Ordering{lane.ByKey, lane.Total} {
		t.Run(string(ordering), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sub := refusing("K/1")
				o := settings()
				o.Ordering, o.BlockKey = ordering, true
				r := runs(t, sub, o)
				r.debt.pause("by hand")
				time.Sleep(5 * time.Second)
				r.offer(series("K", 4)...)
				time.Sleep(5 * time.Second)
				r.debt.pause("")
				long := few(10*time.Minute, time.Hour)
				time.Sleep(long)
				if got, want := attempted(sub.Calls()), []string{"K/0", "K/1"}; !slices.Equal(got, want) {
					t.Errorf("attempts %v, want %v: the rest is behind a dead letter", got, want)
				}
				r.offer("K/9")
				time.Sleep(long)
				if got := len(sub.Calls()); got != 2 {
					t.Errorf("%d attempts, want none behind a dead letter", got)
				}
			})
		})
	}
}

func TestLane_takesOneEventOfAKeyAtATimeWhereADeadOneBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := refusing("K/1").InBatches()
		o := settings()
		o.BlockKey, o.Batch, o.Concurrency = true, 100, 1
		r := newRig(t, sub, o)
		r.offer("K/0", "L/0", "K/1", "K/2", "L/1")
		r.start(time.Minute)
		time.Sleep(time.Minute)
		for _, batch := range sub.Batches() {
			keys := map[string]bool{}
			for _, id := range batch {
				if keys[id[:1]] {
					t.Errorf("batch %v has two events of a key", batch)
				}
				keys[id[:1]] = true
			}
		}
		if slices.Contains(attempted(sub.Calls()), "K/2") {
			t.Error("K/2 was sent although it is behind a dead letter")
		}
	})
}
