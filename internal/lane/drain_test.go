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

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// slow takes a second for each event.
func slow() *subscribertest.Fake {
	return subscribertest.Handling("slow", func(context.Context, subscriber.Delivery) error {
		time.Sleep(time.Second)
		return nil
	})
}

func TestLane_aStopFinishesWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := slow()
		r := newRig(t, sub, settings())
		r.start(time.Minute)
		for i := range 80 {
			r.offer(fmt.Sprintf("%d/%d", i%20, i))
		}
		sub.AwaitCalls(t, 1)
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if got, most := time.Since(begin), 20*time.Second; got > most {
			t.Errorf("took %v, want at most %v", got, most)
		}
		if got := len(sub.Delivered()); got != 80 {
			t.Errorf("delivered %d of 80", got)
		}
	})
}

func TestLane_aStopWaitsForNoBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := settings()
		o.Backoff = lane.Backoff{Initial: time.Hour, Max: time.Hour}
		r := newRig(t, failTimes(map[string]int{"K/0": -1}), o)
		r.start(time.Minute)
		r.offer("K/0", "K/1", "L/0")
		r.await(1)
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if got := time.Since(begin); got > 0 {
			t.Errorf("took %v although everything left waits for an hour", got)
		}
		if r.hasEnded("K/0") || r.hasEnded("K/1") {
			t.Error("what was not delivered ended")
		}
	})
}

func TestLane_aStopDuringAnOutageTriesNoMoreThanItsProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newOutage(2 * time.Second)
		r := newRig(t, sub, settings())
		r.start(time.Minute)
		for i := range 100 {
			r.offer(fmt.Sprintf("%d/0", i))
		}
		time.Sleep(few(10*time.Minute, time.Hour))
		begin, before := time.Now(), len(sub.Calls())
		if err := r.stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if got, most := time.Since(begin), 2*time.Second; got > most {
			t.Errorf("took %v, want at most %v for the probe in hand", got, most)
		}
		if got := len(sub.Calls()) - before; got > 1 {
			t.Errorf("%d more calls, want at most 1", got)
		}
	})
}

func TestLane_theEndOfTheDrainAbandonsHandlersAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Blocking()
		o := settings()
		o.Timeout = time.Hour
		r := newRig(t, sub, o)
		r.start(20 * time.Second)
		r.offer("K/0", "L/0")
		sub.AwaitCalls(t, 2)
		begin := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if got, want := time.Since(begin), 20*time.Second; got != want {
			t.Errorf("took %v, want %v", got, want)
		}
		for _, call := range sub.Calls() {
			if !call.Done || call.Err == nil || !strings.Contains(call.Err.Error(), "drain time is over") {
				t.Errorf("%s: done %v with %v, want the drain as cause", call.EventID, call.Done, call.Err)
			}
		}
		if r.hasEnded("K/0") || r.hasEnded("L/0") {
			t.Error("an abandoned delivery ended")
		}
		if got := r.Stats().Dead; got != 0 {
			t.Errorf("%d dead letters by a stop, want none", got)
		}
	})
}

func TestLane_aHandlerThatIgnoresTheStopIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := newStuck("K")
		defer sub.letGo()
		r := newRig(t, sub, settings())
		r.start(5 * time.Second)
		r.offer("K/0")
		time.Sleep(time.Minute)
		begin := time.Now()
		err := r.stop()
		if err == nil || !strings.Contains(err.Error(), `"stuck"`) || !strings.Contains(err.Error(), "K/0") {
			t.Errorf("stopped with %v, want the subscriber and the event named", err)
		}
		if got, most := time.Since(begin), 7*time.Second; got > most {
			t.Errorf("took %v, want at most %v", got, most)
		}
	})
}

func TestLane_whatIsOfferedAfterTheStopStaysOpen(t *testing.T) { // F-14
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Recording()
		r := newRig(t, sub, settings())
		r.start(time.Minute)
		r.offer("K/0")
		r.await(1)
		if err := r.stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		r.offer("K/1", "L/0")
		time.Sleep(time.Hour)
		if got, _ := r.tracker.OpenOf(0); got != 2 || len(sub.Calls()) != 1 {
			t.Errorf("%d open after %d calls, want 2 after 1", got, len(sub.Calls()))
		}
	})
}

func TestLane_whatIsOfferedBeforeRunWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Recording()
		r := newRig(t, sub, settings())
		r.offer(series("K", 3)...)
		time.Sleep(time.Hour)
		if got := len(sub.Calls()); got != 0 {
			t.Errorf("%d calls before Run, want none", got)
		}
		r.start(time.Minute)
		r.await(3)
		if got, want := sub.Delivered(), series("K", 3); !slices.Equal(got, want) {
			t.Errorf("delivered %v, want %v", got, want)
		}
	})
}

func TestLane_aDeadLetterIsWrittenAlthoughTheDrainIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := subscribertest.Handling("late", func(ctx context.Context, _ subscriber.Delivery) error {
			<-ctx.Done()
			return subscriber.Permanent(errors.New("unreadable"))
		})
		o := settings()
		o.Timeout = time.Hour
		r := newRig(t, sub, o)
		r.start(time.Second)
		r.offer("K/0")
		sub.AwaitCalls(t, 1)
		if err := r.stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		if letters, _ := r.debt.dead(); len(letters) != 1 || !r.hasEnded("K/0") {
			t.Errorf("dead letters: %+v, want the event's", letters)
		}
	})
}
