package lane_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
)

// settings are the defaults of docs/configuration.md, but nothing falls into debt: what these tests are about happens
// in the lane's hands.
func settings() lane.Options {
	return lane.Options{
		Ordering: lane.ByKey, Concurrency: 8, Batch: 1, Timeout: 10 * time.Second,
		Backoff:     lane.Backoff{Initial: 200 * time.Millisecond, Max: 30 * time.Second},
		MaxAttempts: 12, StallAfter: never, Standstill: time.Second,
	}
}

const never = 10000 * time.Hour

// term is the leadership of all tests.
const term = 7

// long is a time, or number, of a test's long form where WALPOST_ROUNDS asks for it, else of its short one. Both meet
// what the test is about.
func long[T any](short, long T) T {
	if os.Getenv("WALPOST_ROUNDS") != "" {
		return long
	}
	return short
}

// few is a number, or time, of a test with the race detector, else its full one. The detector makes an hour of a lane's
// virtual time six times as expensive, and needs no thousand keys to meet a race. "make test" runs this package both
// with it and without.
func few[T any](withRace, full T) T {
	if underRace {
		return withRace
	}
	return full
}

// A rig is a lane between a real tracker and a debt in memory. It belongs to one synctest bubble.
type rig struct {
	*lane.Lane
	t       *testing.T
	tracker *ack.Tracker
	share   int // of open events that crowds the window, 0 for none
	debt    *debt
	cancel  context.CancelFunc
	ended   chan error // gets the result of Run

	mu      sync.Mutex
	commit  event.LSN     // of the last event offered; guarded by mu
	ends    []end         // guarded by mu
	changed chan struct{} // closed and replaced when ends changes; guarded by mu
}

// end is how a delivery ended, and when.
type end struct {
	id       string
	dead     bool
	attempts int // failed ones
	at       time.Time
}

// run starts a lane. When the test ends it is stopped, and nothing of it may be left running.
func run(t *testing.T, sub subscriber.Subscriber, options lane.Options) *rig {
	t.Helper()
	r := newRig(t, sub, options)
	r.start(time.Minute)
	return r
}

func newRig(t *testing.T, sub subscriber.Subscriber, options lane.Options) *rig {
	t.Helper()
	r := &rig{
		t:       t,
		tracker: ack.New(ack.Window{Events: 1 << 20, Bytes: 1 << 40}, 1, 0),
		ended:   make(chan error, 1),
		changed: make(chan struct{}),
	}
	r.debt = newDebt(r)
	r.Lane = newLane(sub, options, acks{r.tracker, r}, r.debt, func() bool {
		open, _ := r.tracker.OpenOf(0)
		return r.share > 0 && open >= r.share
	})
	return r
}

// newLane makes a lane in a stream that has no trouble of its own.
func newLane(sub subscriber.Subscriber, options lane.Options, acks lane.Acks, ower lane.Ower, crowds func() bool) *lane.Lane {
	return newLaneIn(lane.Stream{}, sub, options, acks, ower, crowds)
}

// passedAll is of a stream that brings nothing that could be recorded already.
func passedAll() event.LSN { return math.MaxInt64 }

// newLaneIn is newLane in a stream of which something is told.
func newLaneIn(stream lane.Stream, sub subscriber.Subscriber, options lane.Options, acks lane.Acks, ower lane.Ower, crowds func() bool) *lane.Lane {
	stream.Term = func() int64 { return term }
	if stream.Passed == nil {
		stream.Passed = passedAll
	}
	stream.Pressed = func() bool { return false }
	stream.Crowds = crowds
	stream.Refuse = func(*event.Event) error { return nil }
	metrics := lane.NewVectors(prometheus.NewRegistry(), prometheus.NewRegistry()).For(sub.Name())
	return lane.New(0, sub, options, acks, ower, stream, metrics, slog.New(slog.DiscardHandler))
}

func (r *rig) start(drain time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.Run(ctx, drain) }()
	r.t.Cleanup(func() {
		r.cancel()
		r.ended <- <-r.ended
	})
}

// stop ends the lane and returns what Run returned.
func (r *rig) stop() error {
	r.cancel()
	err := <-r.ended
	r.ended <- err // for the cleanup
	return err
}

// offer hands over events that commit one after the other, each an id of a key: "K/1" has key K.
func (r *rig) offer(ids ...string) {
	for _, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		r.offerEvent(&event.Event{Source: "lessons", ID: id, Key: key, Type: "lesson.completed"})
	}
}

func (r *rig) offerEvent(ev *event.Event) {
	r.mu.Lock()
	r.commit += 8
	ev.Position = event.Position{Commit: r.commit}
	ev.CommittedAt = time.Now()
	r.tracker.Begin(r.commit)
	entry := r.tracker.Add(ev, []int{0}, false)
	r.tracker.Commit(r.commit + 7)
	r.mu.Unlock()
	r.Offer(&entry.Deliveries()[0])
}

func (r *rig) noteEnd(e end) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.at = time.Now()
	r.ends = append(r.ends, e)
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until n deliveries have ended, and returns them in that order.
func (r *rig) await(n int) []end {
	r.t.Helper()
	limit := time.NewTimer(1000 * time.Hour)
	defer limit.Stop()
	for {
		r.mu.Lock()
		ends, changed := slices.Clone(r.ends), r.changed
		r.mu.Unlock()
		if len(ends) >= n {
			return ends
		}
		select {
		case <-changed:
		case <-limit.C:
			r.t.Fatalf("%d deliveries have ended, want %d: %+v\nstats %+v", len(ends), n, ends, r.Stats())
		}
	}
}

// awaitEnd waits for the end of one event.
func (r *rig) awaitEnd(id string) end {
	r.t.Helper()
	for n := 0; ; n++ {
		ends := r.await(n)
		if i := slices.IndexFunc(ends, func(e end) bool { return e.id == id }); i >= 0 {
			return ends[i]
		}
		n = len(ends)
	}
}

func (r *rig) hasEnded(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.ends, func(e end) bool { return e.id == id })
}

// acks is the tracker, and tells the rig.
type acks struct {
	*ack.Tracker
	rig *rig
}

func (a acks) Finish(ends ...ack.End) {
	a.Tracker.Finish(ends...)
	for _, e := range ends {
		a.rig.noteEnd(end{id: e.Delivery.Event.ID, dead: e.Recorded, attempts: e.Attempts})
	}
}

// series makes ids "K/0" to "K/n-1".
func series(key string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s/%d", key, i)
	}
	return ids
}
