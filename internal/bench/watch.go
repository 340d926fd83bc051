package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// This file runs in the measured process: it counts what subscribers have handled there and tells the
// bench on standard output when they have everything.

// finished is what a process writes when a subscriber of it has handled all events that are expected.
type finished struct {
	Subscriber string `json:"subscriber"`
	At         int64  `json:"at"` // Unix time in nanoseconds
	// CPU is the processor time of the process in nanoseconds, and Mallocs the number of its allocations,
	// both since a handler was first called: what a start takes is no matter of a backlog's size.
	CPU     int64  `json:"cpu"`
	Mallocs uint64 `json:"mallocs"`
	// Took is how long it took, in nanoseconds, by the process's own clock, where it has one.
	Took int64 `json:"took,omitempty"`
	// Called is when the handler was first called with an event, by event id, where that was asked for.
	Called map[string]int64 `json:"called,omitempty"`
}

// A Watcher looks at the subscribers of its process. It is safe for concurrent use.
type Watcher struct {
	expect int64
	stamp  bool

	began   sync.Once
	mallocs uint64 // at the first event, like cpu; set by began
	cpu     time.Duration

	mu  sync.Mutex
	out io.Writer  // guarded by mu
	all []*watched // guarded by mu
}

// NewWatcher writes a line to out for each subscriber that has handled expect events. With stamp it is
// written at the end of the process instead, by Close, and says when the handler was called with each.
func NewWatcher(expect int, stamp bool, out io.Writer) *Watcher {
	return &Watcher{expect: int64(expect), stamp: stamp, out: out}
}

// Watch wraps a subscriber. What it returns takes batches, or reports delivery by delivery, exactly if sub does.
func (w *Watcher) Watch(sub subscriber.Subscriber) subscriber.Subscriber {
	watched := &watched{Subscriber: sub, watcher: w, called: map[string]int64{}}
	w.mu.Lock()
	w.all = append(w.all, watched)
	w.mu.Unlock()
	if batches, ok := sub.(subscriber.BatchSubscriber); ok {
		return &watchedBatches{watched, batches}
	}
	if pipe, ok := sub.(subscriber.Pipeline); ok {
		return &watchedPipeline{watched, pipe}
	}
	return watched
}

type watched struct {
	subscriber.Subscriber
	watcher *Watcher
	handled atomic.Int64

	mu     sync.Mutex
	called map[string]int64 // guarded by mu
}

func (s *watched) Handle(ctx context.Context, d subscriber.Delivery) error {
	s.begin(d)
	err := s.Subscriber.Handle(ctx, d)
	if err == nil {
		s.end(1)
	}
	return err
}

type watchedBatches struct {
	*watched
	batches subscriber.BatchSubscriber
}

func (s *watchedBatches) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	s.begin(deliveries...)
	err := s.batches.HandleBatch(ctx, deliveries)
	var partial *subscriber.BatchError
	switch {
	case err == nil:
		s.end(len(deliveries))
	case errors.As(err, &partial):
		s.end(len(deliveries) - len(partial.Failed))
	}
	return err
}

type watchedPipeline struct {
	*watched
	pipe subscriber.Pipeline
}

func (s *watchedPipeline) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	s.begin(deliveries...)
	s.pipe.Send(ctx, deliveries, func(i int, err error) {
		if err == nil {
			s.end(1)
		}
		done(i, err)
	})
}

func (s *watchedPipeline) Abort(ctx context.Context) error { return s.pipe.Abort(ctx) }

func (s *watched) begin(deliveries ...subscriber.Delivery) {
	s.watcher.began.Do(func() { s.watcher.mallocs, s.watcher.cpu = mallocs(), ownCPU() })
	if !s.watcher.stamp {
		return
	}
	now := time.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range deliveries {
		if s.called[d.ID] == 0 {
			s.called[d.ID] = now
		}
	}
}

func (s *watched) end(n int) {
	before := s.handled.Add(int64(n)) - int64(n)
	if expect := s.watcher.expect; before < expect && before+int64(n) >= expect {
		s.watcher.publish(s)
	}
}

// Close writes what was stamped. It is called when no subscriber works any more.
func (w *Watcher) Close() {
	w.mu.Lock()
	all := w.all
	w.mu.Unlock()
	for _, s := range all {
		if w.stamp {
			w.publish(s)
		}
	}
}

func (w *Watcher) publish(s *watched) {
	line := finished{Subscriber: s.Name(), At: time.Now().UnixNano(), CPU: int64(ownCPU() - w.cpu), Mallocs: mallocs() - w.mallocs}
	s.mu.Lock()
	defer s.mu.Unlock()
	line.Called = s.called
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = json.NewEncoder(w.out).Encode(line) // its reader has ended if this fails
}

func mallocs() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.Mallocs
}

// ownCPU is the processor time of this process, in user and system. (man 2 getrusage)
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// EndWithStdin ends the process when in ends, which is when the bench that started it has gone, killed
// perhaps.
func EndWithStdin(in io.Reader) {
	_, _ = io.Copy(io.Discard, in)
	os.Exit(1)
}

// Noop takes everything at once.
type Noop string

// Name is what the configuration calls it.
func (n Noop) Name() string { return string(n) }

// Wants is always true.
func (Noop) Wants(string) bool { return true }

// Handle does nothing.
func (Noop) Handle(context.Context, subscriber.Delivery) error { return nil }

// HandleBatch does nothing.
func (Noop) HandleBatch(context.Context, []subscriber.Delivery) error { return nil }

// Down takes nothing.
type Down struct{ Noop }

var errDown = errors.New("down, as a subscriber of the bench is meant to be")

// Handle fails.
func (Down) Handle(context.Context, subscriber.Delivery) error { return errDown }

// HandleBatch fails as a whole.
func (Down) HandleBatch(context.Context, []subscriber.Delivery) error { return errDown }

// Slow takes fewer events than the stream brings, so that whatever can fill up is full: a call takes 40 ms.
type Slow struct{ Noop }

// Handle waits.
func (s Slow) Handle(ctx context.Context, d subscriber.Delivery) error {
	return s.HandleBatch(ctx, []subscriber.Delivery{d})
}

// HandleBatch waits.
func (Slow) HandleBatch(ctx context.Context, _ []subscriber.Delivery) error {
	select {
	case <-time.After(40 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
