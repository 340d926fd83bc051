package lane_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// add is what a person does with `walpost owed add`: the event is recorded by its row, at a made-up position and with
// a bound beyond its commit.
func (d *debt) add(id string, state lane.State, bound event.LSN) {
	key, _, _ := strings.Cut(id, "/")
	d.mu.Lock()
	defer d.mu.Unlock()
	ev := &event.Event{Source: "lessons", ID: id, Key: key, Type: "lesson.completed", Position: event.Position{Commit: 1}, Bound: bound}
	d.rows[id], d.order = &row{lane.Owed{Event: ev}, state}, nil
	d.changes++
}

// state is what the debt says of an event, "" where it has none.
func (d *debt) state(id string) lane.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.rows[id]; r != nil {
		return r.state
	}
	return ""
}

var orderings = []lane.Ordering{lane.ByKey, lane.Total, lane.None}

// S-37: what a person makes dead while it is tried again and again is tried no more, and its key goes on.
func TestLane_aPersonEndsAnEventThatFails(t *testing.T) {
	for _, ordering := range orderings {
		synctest.Test(t, func(t *testing.T) {
			var back atomic.Bool
			sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
				if !back.Load() {
					return errors.New("503")
				}
				return nil
			})
			o := settings()
			o.Ordering = ordering
			r := run(t, sub, o)
			r.offer(series("K", 2)...)
			time.Sleep(time.Minute)
			r.debt.add("K/0", lane.StateDead, r.commit+8)
			r.awaitEnd("K/0")
			back.Store(true)
			r.awaitEnd("K/1")
			time.Sleep(time.Hour)
			if got, want := sub.Delivered(), []string{"K/1"}; !slices.Equal(got, want) {
				t.Errorf("ordering %s: delivered %v, want %v", ordering, got, want)
			}
			if got := r.debt.state("K/0"); got != lane.StateDead {
				t.Errorf("ordering %s: the one that was ended is %q, want dead", ordering, got)
			}
			if got := r.Stats().Open; got != 0 {
				t.Errorf("ordering %s: %d are open, want none", ordering, got)
			}
		})
	}
}

// S-37: what a person adds while it is open here is sent once, and behind the earlier events of its key.
func TestLane_anOpenEventThatIsAddedComesOnceAndInOrder(t *testing.T) {
	for _, ordering := range orderings {
		synctest.Test(t, func(t *testing.T) {
			var back atomic.Bool
			sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
				if !back.Load() {
					return errors.New("503")
				}
				return nil
			})
			o := settings()
			o.Ordering = ordering
			r := run(t, sub, o)
			r.offer(series("K", 3)...)
			r.offer("L/0")
			time.Sleep(10 * time.Second)
			r.debt.add("K/2", lane.StateWaiting, r.commit+8)
			time.Sleep(10 * time.Second)
			r.offer("K/3")
			back.Store(true)
			time.Sleep(time.Hour)
			got := sub.Delivered()
			if ordering != lane.None {
				got = slices.DeleteFunc(got, func(id string) bool { return id == "L/0" })
			}
			if ordering == lane.None {
				slices.Sort(got)
			}
			want := series("K", 4)
			if ordering == lane.None {
				want = append(want, "L/0")
			}
			if !slices.Equal(got, want) {
				t.Errorf("ordering %s: delivered %v, want %v", ordering, got, want)
			}
			if waiting, open := r.debt.waiting(), r.Stats().Open; len(waiting) > 0 || open > 0 {
				t.Errorf("ordering %s: %v wait, %d are open, want none", ordering, waiting, open)
			}
		})
	}
}

// S-37: the stream has not brought the event when a person adds it. The key's debt is not paid before the stream has
// passed it; other keys' debt is.
func TestLane_anEventThatIsAddedBeforeItComesWaitsForItsTurn(t *testing.T) {
	for state, want := range map[lane.State][]string{
		lane.StateWaiting: series("K", 5),
		lane.StateDead:    append(series("K", 3), "K/4"),
	} {
		synctest.Test(t, func(t *testing.T) {
			var passed atomic.Uint64
			passed.Store(1 << 40)
			sub := subscribertest.Recording()
			r := newRig(t, sub, settings())
			r.Lane = newLaneIn(lane.Stream{Passed: func() event.LSN { return event.LSN(passed.Load()) }},
				sub, settings(), acks{r.tracker, r}, r.debt, func() bool { return false })
			r.start(time.Minute)
			r.offer(series("K", 2)...)
			r.await(2)
			passed.Store(uint64(r.commit + 7))
			r.debt.add("K/3", state, r.commit+24)
			r.debt.add("M/0", lane.StateWaiting, 8) // an old one
			time.Sleep(time.Minute)
			if got, want := sub.Delivered(), []string{"K/0", "K/1", "M/0"}; !slices.Equal(got, want) {
				t.Fatalf("before the stream has passed the event: delivered %v, want %v", got, want)
			}
			r.offer("K/2")
			time.Sleep(time.Minute)
			passed.Store(uint64(r.commit + 7))
			r.offer("L/0", "K/3", "K/4")
			time.Sleep(time.Minute)
			passed.Store(1 << 40)
			time.Sleep(time.Minute)
			got := slices.DeleteFunc(sub.Delivered(), func(id string) bool { return id[0] != 'K' })
			if !slices.Equal(got, want) {
				t.Errorf("%s: delivered %v, want %v", state, got, want)
			}
			if waiting, open := r.debt.waiting(), r.Stats().Open; len(waiting) > 0 || open > 0 {
				t.Errorf("%s: %v wait, %d are open, want none", state, waiting, open)
			}
		})
	}
}

// S-37: the event is in its handler when a person adds it. What is recorded is the truth when the handler fails.
func TestLane_anEventThatIsAddedWhileItIsInItsHandler(t *testing.T) {
	const dead, waiting = lane.StateDead, lane.StateWaiting
	late := few(10*time.Minute, time.Hour)
	for name, test := range map[string]struct {
		state lane.State
		ends  error
		took  time.Duration // the attempt
		want  []string
		after lane.State
	}{
		"dead, and it fails":                   {dead, errors.New("503"), 5 * time.Second, []string{"K/1"}, dead},
		"dead, and it fails long after":        {dead, errors.New("503"), late, []string{"K/1"}, dead},
		"dead, and it is delivered":            {dead, nil, 5 * time.Second, []string{"K/0", "K/1"}, dead},
		"waiting, and it fails":                {waiting, errors.New("503"), 5 * time.Second, []string{"K/0", "K/1"}, ""},
		"waiting, and it is delivered":         {waiting, nil, 5 * time.Second, []string{"K/0", "K/1"}, ""},
		"waiting, and it fails for good":       {waiting, subscriber.Permanent(errors.New("never")), 5 * time.Second, []string{"K/1"}, dead},
		"waiting, and it is late and fails":    {waiting, errors.New("503"), late, []string{"K/0", "K/1"}, ""},
		"waiting, and it is late and succeeds": {waiting, nil, late, []string{"K/0", "K/0", "K/1"}, ""},
	} {
		for _, ordering := range orderings {
			synctest.Test(t, func(t *testing.T) {
				first := true
				sub := subscribertest.Handling("sub", func(_ context.Context, d subscriber.Delivery) error {
					if d.ID != "K/0" || !first {
						return nil
					}
					first = false
					time.Sleep(test.took)
					return test.ends
				})
				o := settings()
				o.Ordering = ordering
				r := run(t, sub, o)
				r.offer(series("K", 2)...)
				time.Sleep(time.Second)
				r.debt.add("K/0", test.state, r.commit+8)
				time.Sleep(2 * late)
				got := sub.Delivered()
				slices.Sort(got)
				if ordering == lane.ByKey && !slices.IsSorted(sub.Delivered()) {
					t.Errorf("%s, ordering %s: delivered %v", name, ordering, sub.Delivered())
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("%s, ordering %s: delivered %v, want %v", name, ordering, got, test.want)
				}
				if got := r.debt.state("K/0"); got != test.after && got != lane.StatePaid {
					t.Errorf("%s, ordering %s: it is %q, want %q", name, ordering, got, test.after)
				}
				if waiting, open := r.debt.waiting(), r.Stats().Open; len(waiting) > 0 || open > 0 {
					t.Errorf("%s, ordering %s: %v wait, %d are open, want none", name, ordering, waiting, open)
				}
			})
		}
	}
}

// S-38: a person adds what is in its handler at that moment. The debt reader looks up an event whose call ends
// meanwhile, and what it reads of it is read under the lock: this test is for the race detector.
func TestLane_whatIsAddedIsLookedUpWhileItsCallEnds(t *testing.T) {
	for _, ordering := range orderings {
		synctest.Test(t, func(t *testing.T) {
			var back atomic.Bool
			sub := subscribertest.Handling("sub", func(context.Context, subscriber.Delivery) error {
				time.Sleep(time.Second)
				if !back.Load() {
					return errors.New("503")
				}
				return nil
			})
			o := settings()
			o.Ordering = ordering
			r := newRig(t, sub, o)
			r.debt.slow = 1500 * time.Millisecond // longer than a call, so that one ends during each
			r.start(time.Minute)
			r.offer(series("K", 3)...)
			time.Sleep(100 * time.Millisecond)
			for _, id := range series("K", 3) {
				r.debt.add(id, lane.StateWaiting, r.commit+8)
			}
			time.Sleep(20 * time.Second)
			back.Store(true)
			time.Sleep(time.Hour)
			got := sub.Delivered()
			if ordering == lane.None {
				slices.Sort(got)
			}
			if want := series("K", 3); !slices.Equal(got, want) {
				t.Errorf("ordering %s: delivered %v, want %v", ordering, got, want)
			}
		})
	}
}

// S-98: a repair recorded the unmarked events of a key, and the stream brings again what was delivered and marked. That is
// not sent behind them.
func TestLane_sendsNothingAgainThatIsMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var passed atomic.Uint64
		sub := subscribertest.Recording()
		r := newRig(t, sub, settings())
		r.Lane = newLaneIn(lane.Stream{Passed: func() event.LSN { return event.LSN(passed.Load()) }, Horizon: 1 << 30},
			sub, settings(), acks{r.tracker, r}, r.debt, func() bool { return false })
		r.debt.marked = map[string]bool{"K/1": true}
		r.debt.add("K/0", lane.StateWaiting, 8)
		r.debt.add("K/2", lane.StateWaiting, 16)
		r.start(time.Minute)
		r.offer(series("K", 4)...)
		time.Sleep(time.Second)
		passed.Store(1 << 40)
		time.Sleep(time.Minute)
		if got, want := sub.Delivered(), []string{"K/0", "K/2", "K/3"}; !slices.Equal(got, want) {
			t.Errorf("delivered %v, want %v", got, want)
		}
		if waiting, open := r.debt.waiting(), r.Stats().Open; len(waiting) > 0 || open > 0 {
			t.Errorf("%v wait, %d are open, want none", waiting, open)
		}
	})
}
