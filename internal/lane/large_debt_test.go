package lane_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// owing adds rows to the debt of a lane that does not run yet, at the positions before the stream.
func (r *rig) owing(state lane.State, ids ...string) {
	for _, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		r.commit += 8
		ev := &event.Event{Source: "lessons", ID: id, Key: key, Type: "lesson.completed", Position: event.Position{Commit: r.commit}}
		r.debt.rows[id] = &row{lane.Owed{Event: ev}, state}
	}
	r.tracker.Begin(r.commit)
	r.tracker.Commit(r.commit + 7)
}

// S-360: one key that fails has thousands of deliveries in the debt. The first of them are kept to be tried, and no more.
func TestLane_aFailingKeyWithALongDebtTakesBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newPartlyFailing(0)
		sub.fail = func(string) error { return subscriber.Away(subscribertest.ErrFailing) }
		r := newRig(t, sub, defaults())
		r.owing(lane.StateWaiting, series("bad", 5000)...)
		r.owing(lane.StateWaiting, "good/0")
		r.start(time.Minute)
		r.awaitEnd("good/0")
		r.offer("good/1")
		r.awaitEnd("good/1")
		if got, most := r.debt.readRows(), 1300; got > most { // a full hand, and what came along with it
			t.Errorf("%d deliveries were read before one of the key was delivered, want at most %d", got, most)
		}
		sub.recovers("bad")
		last := "bad/4999"
		r.awaitEnd(last)
		var order []string
		for _, e := range r.await(5000) {
			if strings.HasPrefix(e.id, "bad/") {
				order = append(order, e.id)
			}
		}
		if !slices.Equal(order, series("bad", 5000)) {
			t.Errorf("the key was not paid in its order, or not whole: %d of 5000", len(order))
		}
	})
}

// S-361: more keys wait behind dead letters than a lane remembers. What it asks for and remembers stays bounded, none of
// them is passed, and the other keys are delivered.
func TestLane_anyNumberOfBlockedKeysTakesBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := defaults()
		options.BlockKey = true
		handled := make(chan string, 10000)
		r := newRig(t, subscribertest.Handling("blocking", func(_ context.Context, d subscriber.Delivery) error {
			handled <- d.ID
			return nil
		}), options)
		const blocked = 1500
		for i := range blocked {
			r.owing(lane.StateDead, fmt.Sprintf("k%d/0", i))
			r.owing(lane.StateWaiting, fmt.Sprintf("k%d/1", i))
		}
		r.start(time.Minute)
		time.Sleep(time.Second)
		for i := range 20 {
			id := fmt.Sprintf("good%d/0", i)
			r.offer(id, fmt.Sprintf("k%d/2", blocked-1-i)) // not one of those that are remembered
			begin := time.Now()
			r.awaitEnd(id)
			if waited := time.Since(begin); waited > 2*time.Second {
				t.Errorf("%s waited %v", id, waited)
			}
			time.Sleep(time.Second)
		}
		if got := len(handled); got != 20 {
			t.Errorf("%d deliveries were handed over, want the 20 of other keys", got)
		}
		if got, most := r.debt.asked(), 1000; got > most {
			t.Errorf("a query named %d keys, want at most %d", got, most)
		}
		if got := r.Stats().KeysInDebt; got > 1000 {
			t.Errorf("%d keys are remembered", got)
		}

		// A person sends all of the dead letters again: each goes before what has waited behind it.
		r.debt.redrive()
		r.Refresh()
		r.await(20 + 2*blocked + 20)
		next := make(map[string]int)
		for _, e := range r.await(20 + 2*blocked + 20) {
			key, n, _ := strings.Cut(e.id, "/")
			if strings.HasPrefix(key, "k") {
				if want := fmt.Sprint(next[key]); n != want {
					t.Fatalf("%s came, want number %s of its key", e.id, want)
				}
				next[key]++
			}
		}
		time.Sleep(10 * time.Second)
		if stats := r.Stats(); stats.InDebt || stats.KeysInDebt != 0 {
			t.Errorf("everything is paid, and it is still in debt: %+v", stats)
		}
	})
}

// S-362: a debt with more rows than a start reads is one of the whole subscriber, until a count of all its pages has found
// that it is of one key.
func TestLane_aLongDebtOfFewKeysBecomesOneOfThoseKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newPartlyFailing(0)
		sub.fail = func(string) error { return subscriber.Away(subscribertest.ErrFailing) }
		r := newRig(t, sub, defaults())
		const rows = 50_500
		r.owing(lane.StateWaiting, series("bad", rows)...)
		r.start(time.Minute)
		for i := range 20 { // each a key of its own: what is paid meanwhile is no part of the debt
			id := fmt.Sprintf("good%d/0", i)
			begin := time.Now()
			r.offer(id)
			r.awaitEnd(id)
			if waited := time.Since(begin); waited > 2*time.Second {
				t.Errorf("%s waited %v", id, waited)
			}
			time.Sleep(time.Second)
		}
		if stats := r.Stats(); stats.InDebt || stats.KeysInDebt != 1 {
			t.Errorf("it is in debt as a whole: %v, keys in debt: %d; want the one key", stats.InDebt, stats.KeysInDebt)
		}
		if got := r.debt.pagesCounted(); got < 2 {
			t.Errorf("%d pages were counted, want two", got)
		}
		sub.recovers("bad")
		r.awaitEnd(fmt.Sprintf("bad/%d", rows-1))
	})
}
