package lane_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// observed runs a lane that writes down what Observe is told: a line for each call, "id number outcome" for
// each of its events.
func observed(t *testing.T, sub subscriber.Subscriber, options lane.Options, then func(*rig)) (calls []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, sub, options)
		r.Lane = lane.New(0, sub, options, acks{r.tracker, r}, r.debt, lane.Stream{
			Term: func() int64 { return term }, Passed: passedAll,
			Pressed: func() bool { return false }, Crowds: func() bool { return false },
			Refuse: func(*event.Event) error { return nil },
			Observe: func(_ time.Time, took time.Duration, attempts []lane.Attempt) {
				var call []string
				for _, a := range attempts {
					if (a.Err == nil) != (a.Outcome == lane.Delivered) {
						t.Errorf("%s is %s with error %v", a.Event.ID, a.Outcome, a.Err)
					}
					call = append(call, fmt.Sprintf("%s %d %s", a.Event.ID, a.Number, a.Outcome))
				}
				calls = append(calls, fmt.Sprintf("%v %s", took, strings.Join(call, ", ")))
			},
		}, lane.NewVectors(prometheus.NewRegistry(), prometheus.NewRegistry()).For(sub.Name()), slog.New(slog.DiscardHandler))
		then(r)
		r.start(time.Minute)
		synctest.Wait()
		time.Sleep(time.Hour) // virtual: every retry is over
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return calls
}

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("observed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLane_tellsHowEachAttemptFared(t *testing.T) {
	sub := subscribertest.Handling("picky", func(_ context.Context, d subscriber.Delivery) error {
		time.Sleep(time.Second)
		switch {
		case d.ID == "a/1" && d.Attempt < 3:
			return errors.New("not yet")
		case d.ID == "a/2":
			return subscriber.Permanent(errors.New("no such user"))
		}
		return nil
	})
	options := settings()
	options.Concurrency = 1
	got := observed(t, sub, options, func(r *rig) {
		r.offer("a/1", "a/2", "a/3")
		r.offerEvent(&event.Event{ID: "a/4", Key: "a", Invalid: "it has no type"})
	})
	check(t, got, "1s a/1 1 failed", "1s a/1 2 failed", "1s a/1 3 delivered", "1s a/2 1 dead", "1s a/3 1 delivered", "0s a/4 0 dead")
}

// Of a batch that names what failed, what is behind that in its key was not tried.
func TestLane_tellsOfABatchOnlyWhatWasTried(t *testing.T) {
	calls := 0
	sub := &atOnce{Fake: subscribertest.Recording(), batch: func(deliveries []subscriber.Delivery) error {
		if calls++; calls > 1 {
			return nil
		}
		failed := map[int]error{}
		for i, d := range deliveries {
			switch d.ID {
			case "a/2":
				failed[i] = errors.New("not yet")
			case "a/3":
				failed[i] = subscriber.ErrHeld
			}
		}
		return &subscriber.BatchError{Failed: failed}
	}}
	options := settings()
	options.Batch, options.Concurrency = 10, 1
	got := observed(t, sub, options, func(r *rig) { r.offer("a/1", "a/2", "a/3", "b/1") })
	check(t, got, "0s a/1 1 delivered, a/2 1 failed, b/1 1 delivered", "0s a/2 2 delivered, a/3 1 delivered")
}

func TestLane_tellsOfEveryEventOfABatchThatFailedWhole(t *testing.T) {
	sub := withBad("a/2", subscriber.Permanent(errors.New("cannot be read")))
	options := settings()
	options.Batch, options.Concurrency = 10, 1
	got := observed(t, sub, options, func(r *rig) { r.offer("a/1", "a/2") })
	check(t, got, "0s a/1 1 failed, a/2 1 failed", "0s a/1 1 delivered", "0s a/2 1 dead")
}
