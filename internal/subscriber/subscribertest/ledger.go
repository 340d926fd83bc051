package subscribertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// awaitTimeout is how long the Await methods wait before they fail the test.
const awaitTimeout = 30 * time.Second

// A Call is one attempt to handle an event.
type Call struct {
	EventID  string
	Position event.Position
	Key      string
	Attempt  int
	Term     int64
	Replay   bool
	Payload  string
	At       time.Time // when the attempt began
	Done     bool      // whether it has ended
	Err      error     // how it ended; nil is delivered
}

// A Fake is a subscriber without an effect that remembers what it was given. Recording, Failing, Blocking
// and Handling make one; each test makes its own. It is safe for concurrent use.
type Fake struct {
	name   string
	types  []string // nil: all
	handle func(ctx context.Context, delivery subscriber.Delivery) error

	mu      sync.Mutex
	calls   []Call        // guarded by mu, in the order in which the attempts began
	changed chan struct{} // guarded by mu; closed and replaced when calls changes
}

// Handling behaves as handle says.
func Handling(name string, handle func(ctx context.Context, delivery subscriber.Delivery) error) *Fake {
	return &Fake{name: name, handle: handle, changed: make(chan struct{})}
}

// Recording takes everything.
func Recording() *Fake {
	return Handling("recording", func(context.Context, subscriber.Delivery) error { return nil })
}

// ErrFailing is how Failing fails.
var ErrFailing = errors.New("failing as told")

// Failing fails its first n attempts, whatever the event, and takes everything from then on. A negative n
// is always.
func Failing(n int) *Fake {
	var mu sync.Mutex
	return Handling("failing", func(context.Context, subscriber.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			return nil
		}
		n--
		return ErrFailing
	})
}

// A Blocker blocks every attempt until it is released or the attempt's context ends.
type Blocker struct {
	*Fake
	once     sync.Once
	released chan struct{}
}

// Blocking blocks until Release.
func Blocking() *Blocker {
	b := &Blocker{released: make(chan struct{})}
	b.Fake = Handling("blocking", func(ctx context.Context, _ subscriber.Delivery) error {
		select {
		case <-b.released:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	return b
}

// Release lets everything through, now and from now on.
func (b *Blocker) Release() { b.once.Do(func() { close(b.released) }) }

// Named changes the name and returns the fake. Call it before the fake is used; the same name again changes
// nothing, so that two relays at a time can be given the same fake.
func (f *Fake) Named(name string) *Fake {
	if f.name != name {
		f.name = name
	}
	return f
}

// Wanting restricts the fake to event types and returns it. Call it before the fake is used.
func (f *Fake) Wanting(types ...string) *Fake {
	f.types = types
	return f
}

// Name is the behaviour's, or what Named said.
func (f *Fake) Name() string { return f.name }

// Wants is true for all types, or for those of Wanting.
func (f *Fake) Wants(eventType string) bool {
	return f.types == nil || slices.Contains(f.types, eventType)
}

// Types is what Wanting said, nil for all.
func (f *Fake) Types() []string { return f.types }

// Handle writes the ledger before and after it behaves.
func (f *Fake) Handle(ctx context.Context, delivery subscriber.Delivery) error {
	f.mu.Lock()
	n := len(f.calls)
	f.calls = append(f.calls, Call{
		EventID: delivery.ID, Position: delivery.Position, Key: delivery.Key, Attempt: delivery.Attempt, Term: delivery.Term,
		Replay: delivery.Replay, Payload: string(delivery.Payload), At: time.Now(),
	})
	f.wakeWaitersLocked()
	f.mu.Unlock()

	err := f.handle(ctx, delivery)

	f.mu.Lock()
	f.calls[n].Done, f.calls[n].Err = true, err
	f.wakeWaitersLocked()
	f.mu.Unlock()
	return err
}

// wakeWaitersLocked wakes those who wait.
func (f *Fake) wakeWaitersLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Calls returns a copy of the ledger, in the order in which the attempts began.
func (f *Fake) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Delivered returns the ids of the events that were taken, in the order in which the attempts began, an
// id as often as it was taken.
func (f *Fake) Delivered() []string {
	var ids []string
	for _, call := range f.Calls() {
		if call.Done && call.Err == nil {
			ids = append(ids, call.EventID)
		}
	}
	return ids
}

// AwaitCalls waits until n attempts have begun and returns the ledger. It fails the test after 30 s, which
// under synctest take no time.
func (f *Fake) AwaitCalls(t testing.TB, n int) []Call {
	t.Helper()
	f.await(t, fmt.Sprintf("%d calls", n), func() bool { return len(f.Calls()) >= n })
	return f.Calls()
}

// AwaitDelivered waits until n deliveries were taken and returns their ids. It fails the test after 30 s.
func (f *Fake) AwaitDelivered(t testing.TB, n int) []string {
	t.Helper()
	f.await(t, fmt.Sprintf("%d deliveries", n), func() bool { return len(f.Delivered()) >= n })
	return f.Delivered()
}

func (f *Fake) await(t testing.TB, what string, enough func() bool) {
	t.Helper()
	timeout := time.NewTimer(awaitTimeout)
	defer timeout.Stop()
	for {
		f.mu.Lock()
		changed := f.changed // taken before looking, so that no change is missed
		f.mu.Unlock()
		if enough() {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			t.Fatalf("%s: %s did not come within %s; ledger: %+v", f.name, what, awaitTimeout, f.Calls())
		}
	}
}

// A Batcher is a Fake that takes batches.
type Batcher struct {
	*Fake
	mu      sync.Mutex
	batches [][]string // guarded by mu
}

// InBatches returns a subscriber with the same behaviour and ledger that takes batches as well. It behaves
// for each event of a batch in turn, and reports those that fail in a BatchError.
func (f *Fake) InBatches() *Batcher { return &Batcher{Fake: f} }

// HandleBatch hands the events to Handle one after the other.
func (b *Batcher) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	ids := make([]string, len(deliveries))
	for i, delivery := range deliveries {
		ids[i] = delivery.ID
	}
	b.mu.Lock()
	b.batches = append(b.batches, ids)
	b.mu.Unlock()

	failed := make(map[int]error)
	held := make(map[string]bool) // keys of which an event failed
	for i, delivery := range deliveries {
		if held[delivery.Key] {
			failed[i] = subscriber.ErrHeld
			continue
		}
		if err := b.Handle(ctx, delivery); err != nil {
			failed[i], held[delivery.Key] = err, true
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &subscriber.BatchError{Failed: failed}
}

// Batches returns the event ids of each batch that was handed over, in that order.
func (b *Batcher) Batches() [][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.batches)
}
