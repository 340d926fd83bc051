package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// errNoReport is the outcome of a delivery that was not reported in time.
var errNoReport = errors.New("no report has come")

// sending is a call of Send with what was reported.
type sending struct {
	t *testing.T

	mu      sync.Mutex
	reports []error       // guarded by mu
	missing int           // guarded by mu
	all     chan struct{} // closed when nothing is missing
}

// send calls Send as a lane does: ctx is the leadership's.
func send(t *testing.T, ctx context.Context, pipeline subscriber.Pipeline, deliveries ...subscriber.Delivery) *sending {
	s := &sending{t: t, reports: make([]error, len(deliveries)), missing: len(deliveries), all: make(chan struct{})}
	for i := range s.reports {
		s.reports[i] = errNoReport
	}
	pipeline.Send(ctx, slices.Clone(deliveries), s.done)
	return s
}

func (s *sending) done(i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(s.reports[i], errNoReport) {
		s.t.Errorf("delivery %d is reported twice: %v, %v", i, s.reports[i], err)
		return
	}
	s.reports[i] = err
	if s.missing--; s.missing == 0 {
		close(s.all)
	}
}

// await returns the outcomes when all are reported or ctx has ended.
func (s *sending) await(ctx context.Context) []error {
	select {
	case <-s.all:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reports)
}

// checkPipeline checks what a Pipeline alone promises.
func checkPipeline(check func(string, func(*testing.T, *bench)), example Destination) {
	check("lets nothing arrive after Abort when the lead is lost", nothingAfterAbort)
	check("keeps the order of each key in calls that overlap", keepsOrderOfKeys)
	if _, ok := example.(Limiter); ok {
		check("holds what follows an event of its key that is too large", holdsBehindTheOversized)
	}
	if _, ok := example.(Staller); ok {
		check("reports everything when a stop does not wait for the server", reportsWhenAborted)
	}
}

// keyed is a delivery of its own key.
func keyed(n int, key string) subscriber.Delivery {
	d := Delivery(n)
	event := *d.Event
	event.Key = key
	d.Event = &event
	return d
}

func nothingAfterAbort(t *testing.T, b *bench) {
	pipeline := b.sub.(subscriber.Pipeline)
	b.must(t, Delivery(0))
	lead, lose := context.WithCancelCause(t.Context())
	var calls []*sending
	n := 1
	for range 50 {
		var batch []subscriber.Delivery
		for range 20 {
			batch = append(batch, keyed(n, fmt.Sprint(n%7)))
			n++
		}
		calls = append(calls, send(t, lead, pipeline, batch...))
	}
	lose(errors.New("the lead is lost"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := pipeline.Abort(ctx); err != nil {
		t.Fatalf("abort: %v", err)
	}
	before := b.ids(t)
	arrived := map[string]bool{}
	for _, id := range before {
		arrived[id] = true
	}
	n = 1
	for _, call := range calls {
		for _, err := range call.await(t.Context()) {
			switch {
			case errors.Is(err, errNoReport):
				t.Errorf("event %d is not reported", n)
			case err == nil && !arrived[Delivery(n).ID]:
				t.Errorf("event %d is reported as delivered and has not arrived", n)
			case subscriber.IsPermanent(err):
				t.Errorf("event %d: %v", n, err)
			}
			n++
		}
	}
	b.must(t, Delivery(n)) // under another leadership
	if got, want := b.ids(t), append(slices.Clone(before), Delivery(n).ID); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("%d have arrived, %d of them before Abort returned", len(got), len(before))
	}
}

func keepsOrderOfKeys(t *testing.T, b *bench) {
	pipeline := b.sub.(subscriber.Pipeline)
	const keys, rounds, each = 10, 10, 5
	var group sync.WaitGroup
	for key := range keys {
		group.Go(func() {
			for round := range rounds { // one call of a key at a time
				var batch []subscriber.Delivery
				for i := range each {
					batch = append(batch, keyed((key*rounds+round)*each+i, fmt.Sprint(key)))
				}
				for i, err := range send(t, t.Context(), pipeline, batch...).await(t.Context()) {
					if err != nil {
						t.Errorf("key %d, round %d, event %d: %v", key, round, i, err)
					}
				}
			}
		})
	}
	group.Wait()
	last := map[string]string{}
	for _, r := range b.Received(t) {
		if r.ID <= last[r.Key] {
			t.Errorf("key %s: %s comes after %s", r.Key, r.ID, last[r.Key])
		}
		last[r.Key] = r.ID
	}
	if got := len(b.ids(t)); got != keys*rounds*each {
		t.Errorf("%d have arrived, want %d", got, keys*rounds*each)
	}
}

func holdsBehindTheOversized(t *testing.T, b *bench) {
	pipeline := b.sub.(subscriber.Pipeline)
	large := keyed(1, "a")
	large.Payload = fmt.Appendf(nil, `{"text": "%s"}`, strings.Repeat("x", b.Destination.(Limiter).Limit(t)))
	got := send(t, t.Context(), pipeline, keyed(0, "a"), large, keyed(2, "b"), keyed(3, "a")).await(t.Context())
	if got[0] != nil || !subscriber.IsPermanent(got[1]) || got[2] != nil {
		t.Errorf("got %v, want the second refused for good and the others delivered", got)
	}
	if got[3] != nil && !errors.Is(got[3], subscriber.ErrHeld) {
		t.Errorf("the next of its key: %v", got[3])
	}
	if arrived := slices.Contains(b.ids(t), Delivery(3).ID); arrived != (got[3] == nil) {
		t.Errorf("the next of its key is reported as %v, arrived: %v", got[3], arrived)
	}
}

func reportsWhenAborted(t *testing.T, b *bench) {
	pipeline := b.sub.(subscriber.Pipeline)
	b.must(t, Delivery(0))
	release := b.Destination.(Staller).Stall(t)
	lead, lose := context.WithCancelCause(t.Context())
	defer lose(nil)
	calls := make(chan *sending, 1)
	go func() { calls <- send(t, lead, pipeline, keyed(1, "a"), keyed(2, "b")) }() // it may wait for room
	lose(errors.New("the relay stops"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begun := time.Now()
	_ = pipeline.Abort(ctx) // of what is on its way to a server that does not answer it cannot know
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("Abort took %s although its context had ended after 1s", took)
	}
	for i, err := range (<-calls).await(t.Context()) {
		if err == nil || subscriber.IsPermanent(err) {
			t.Errorf("delivery %d: got %v, want an error that is not permanent", i, err)
		}
	}
	release()
	b.eventually(t, "delivered after the stop", func() bool { return b.deliver(t, Delivery(3)) == nil })
}
