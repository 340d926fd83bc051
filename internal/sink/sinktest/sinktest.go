// Package sinktest holds the tests that every destination must pass, through its real server: one that starts and stops,
// refuses, stalls and asks for credentials. A kind says in a Destination what its server can do; what it cannot is not part
// of its contract. It is for tests only. What a subscriber in the same database keeps to is package subscribertest.
package sinktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Received is an event as it arrived.
type Received struct {
	ID, Key string
	// Body is the payload as its receiver gets it; nil is SQL NULL.
	Body []byte
}

// A Destination is a server with a subscriber that delivers to it.
type Destination interface {
	// Open makes the subscriber, as a start of the process does. An io.Closer is closed at the end.
	Open(t *testing.T) subscriber.Subscriber
	// Received are the events that have arrived, in order, those that were refused not among them.
	Received(t *testing.T) []Received
	// Down makes the server absent, Up brings it back with what it had.
	Down(t *testing.T)
	Up(t *testing.T)
}

// A PartlyAbsent destination has parts that can be absent alone: that it is absent must be marked with subscriber.Away.
type PartlyAbsent interface{ PartlyAbsent() }

// A Refuser refuses events of these ids for good.
type Refuser interface {
	Refuse(t *testing.T, ids ...string)
}

// A Limiter takes no event whose payload is larger.
type Limiter interface {
	Limit(t *testing.T) int
}

// A Staller holds each call up until it is released.
type Staller interface {
	Stall(t *testing.T) (release func())
}

// A Gatekeeper asks for credentials. Lock makes those of the subscriber wrong, Unlock right again.
type Gatekeeper interface {
	Lock(t *testing.T)
	Unlock(t *testing.T)
}

// whileAbsent is how long the answer of a server is waited for that is known to be away.
const whileAbsent = 6 * time.Second

// patience is how long something may take that happens soon on an idle machine.
const patience = time.Minute

// Run checks the contract. start makes a destination whose server is up and empty.
func Run(t *testing.T, start func(t *testing.T) Destination) {
	t.Helper()
	check := func(name string, run func(*testing.T, *bench)) {
		t.Run(name, func(t *testing.T) { run(t, newBench(t, start)) })
	}
	check("keeps identity and bytes of every payload", keepsIdentityAndBytes)
	check("keeps the order of a key", keepsOrder)
	check("sends the same at each attempt", sendsTheSameAgain)
	check("takes a batch as one by one", takesBatches)
	check("is not permanent while its server is absent, and delivers when it is back", survivesAbsence)
	check("does nothing when the context has ended", nothingWhenCancelled)
	check("leaves no goroutine", leavesNoGoroutine)
	example := start(t)
	opened := example.Open(t)
	closeSubscriber(t, opened)
	if _, ok := opened.(subscriber.Pipeline); ok {
		checkPipeline(check, example)
	}
	if _, ok := example.(Refuser); ok {
		check("calls a refused event permanent, and takes the others", tellsTheRefused)
	}
	if _, ok := example.(Limiter); ok {
		check("calls an event permanent that is over the server's limit", tellsTheOversized)
	}
	_, stalls := example.(Staller)
	if _, ok := opened.(subscriber.Pipeline); stalls && !ok { // a pipeline has Abort for that
		check("returns when the context ends while it sends", returnsWhenCancelled)
	}
	if _, ok := example.(Gatekeeper); ok {
		check("waits for right credentials", waitsForCredentials)
	}
}

// bench is a destination with its open subscriber.
type bench struct {
	Destination
	sub subscriber.Subscriber
}

func newBench(t *testing.T, start func(t *testing.T) Destination) *bench {
	b := &bench{Destination: start(t)}
	b.sub = b.Open(t)
	t.Cleanup(func() { closeSubscriber(t, b.sub) })
	return b
}

func closeSubscriber(t *testing.T, sub subscriber.Subscriber) {
	if closer, ok := sub.(io.Closer); ok {
		if err := closer.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// Delivery makes the n-th of a series. The same n gives the same event.
func Delivery(n int) subscriber.Delivery {
	return subscriber.Delivery{Attempt: 1, Term: 7, Event: &event.Event{
		Source: "shop", ID: fmt.Sprintf("01K0S1NK00K%015d", n), Type: "order.placed", Key: "order-1",
		Payload: fmt.Appendf(nil, `{"n": %d,  "big": 12345678901234567890.1234567890, "text": "<é\u00e9 \"quoted\"> "}`, n),
		Headers: []byte(`{"correlation_id": "c-1"}`), OccurredAt: "2026-01-02 03:04:05.678901+00",
		Position: event.Position{Commit: 0x16B3748, Ordinal: int64(n)},
	}}
}

// deliver hands one delivery over, with a deadline as the lane's.
func (b *bench) deliver(t *testing.T, d subscriber.Delivery) error {
	return b.deliverWithin(t, patience, d)
}

func (b *bench) deliverWithin(t *testing.T, limit time.Duration, d subscriber.Delivery) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if pipeline, ok := b.sub.(subscriber.Pipeline); ok {
		return send(t, t.Context(), pipeline, d).await(ctx)[0]
	}
	return b.sub.Handle(ctx, d)
}

func (b *bench) must(t *testing.T, d subscriber.Delivery) {
	t.Helper()
	if err := b.deliver(t, d); err != nil {
		t.Fatalf("deliver %s: %v", d.ID, err)
	}
}

// ids are those that have arrived, without repetitions.
func (b *bench) ids(t *testing.T) []string {
	var ids []string
	for _, r := range b.Received(t) {
		if !slices.Contains(ids, r.ID) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func idsOf(deliveries ...subscriber.Delivery) []string {
	var ids []string
	for _, d := range deliveries {
		ids = append(ids, d.ID)
	}
	return ids
}

func (b *bench) wantIDs(t *testing.T, what string, want ...subscriber.Delivery) {
	t.Helper()
	if got, want := b.ids(t), idsOf(want...); !slices.Equal(got, want) {
		t.Errorf("%s: arrived %q, want %q", what, got, want)
	}
}

func keepsIdentityAndBytes(t *testing.T, b *bench) {
	payloads := []struct {
		payload string
		of      event.PayloadType
	}{
		{`{"a": 1.50, "b": 9007199254740993, "a": null}`, event.JSON}, {`null`, event.JSON}, {`""`, event.JSON}, {`[]`, event.JSON},
		{`{"text": "\u0000 \ud83d\ude00 é"}`, event.JSON},
		{"plain text, \"quoted\" \\ é\t", event.Text}, {``, event.Text}, {`{"not": "read"}`, event.Text},
		{`\x00ff10`, event.Binary}, {`\x`, event.Binary},
		{"NULL", event.JSON},
	}
	for i, p := range payloads {
		d := Delivery(i)
		d.Key = []string{"", "k", "schlüssel 1/\"2\"", strings.Repeat("k", 300)}[i%4]
		d.Payload, d.PayloadType = []byte(p.payload), p.of
		if p.payload == "NULL" {
			d.Payload = nil
		}
		b.must(t, d)
		received := b.Received(t)
		if len(received) != i+1 {
			t.Fatalf("%d have arrived, want %d", len(received), i+1)
		}
		got := received[i]
		body, err := d.Body()
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != d.ID || got.Key != d.Key {
			t.Errorf("arrived as id %q, key %q, want %q, %q", got.ID, got.Key, d.ID, d.Key)
		}
		if string(got.Body) != string(body) || p.payload == "NULL" && len(got.Body) > 0 {
			t.Errorf("%s %s: arrived as %q, want %q", p.of, p.payload, got.Body, body)
		}
	}
}

func keepsOrder(t *testing.T, b *bench) {
	var sent []subscriber.Delivery
	for n := range 50 {
		sent = append(sent, Delivery(n))
		b.must(t, sent[n])
	}
	b.wantIDs(t, "one by one", sent...)
}

func sendsTheSameAgain(t *testing.T, b *bench) {
	first, again := Delivery(1), Delivery(1)
	again.Attempt, again.Replay, again.Term = 2, true, 8
	b.must(t, first)
	b.must(t, again)
	restarted := b.Open(t)
	defer closeSubscriber(t, restarted)
	before := b.sub
	b.sub = restarted
	b.must(t, again)
	b.sub = before
	received := b.Received(t)
	for _, r := range received {
		if r.ID != first.ID || r.Key != first.Key || string(r.Body) != string(received[0].Body) {
			t.Errorf("arrived as %q, %q, %s and as %q, %q, %s", received[0].ID, received[0].Key, received[0].Body, r.ID, r.Key, r.Body)
		}
	}
	if len(received) == 0 {
		t.Error("nothing has arrived")
	}
}

func takesBatches(t *testing.T, b *bench) {
	var sent []subscriber.Delivery
	for n := range 100 {
		sent = append(sent, Delivery(n))
	}
	if pipeline, ok := b.sub.(subscriber.Pipeline); ok {
		for i, err := range send(t, t.Context(), pipeline, sent...).await(t.Context()) {
			if err != nil {
				t.Errorf("delivery %d: %v", i, err)
			}
		}
		b.wantIDs(t, "one call", sent...)
		return
	}
	batching, ok := b.sub.(subscriber.BatchSubscriber)
	if !ok {
		b.must(t, Delivery(0)) // a kind without batches is called for one at a time
		return
	}
	if err := batching.HandleBatch(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	b.wantIDs(t, "a batch", sent...)
}

func survivesAbsence(t *testing.T, b *bench) {
	b.must(t, Delivery(0))
	b.Down(t)
	for range 3 {
		err := b.deliverWithin(t, whileAbsent, Delivery(1))
		if err == nil {
			t.Fatal("an absent server takes an event")
		}
		if errors.Is(err, errNoReport) {
			break // a pipeline that goes on trying by itself
		}
		if subscriber.IsPermanent(err) {
			t.Errorf("that the server is absent is permanent: %v", err)
		}
		if _, partly := b.Destination.(PartlyAbsent); partly && !subscriber.IsAway(err) {
			t.Errorf("that the server is absent is not marked with Away: %v", err)
		}
	}
	b.Up(t)
	b.eventually(t, "delivered to the server that is back", func() bool { return b.deliver(t, Delivery(1)) == nil })
	b.must(t, Delivery(2))
	b.wantIDs(t, "after the server is back", Delivery(0), Delivery(1), Delivery(2))
}

func nothingWhenCancelled(t *testing.T, b *bench) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the lead is lost")
	cancel(cause)
	if err := b.sub.Handle(ctx, Delivery(0)); err == nil || subscriber.IsPermanent(err) {
		t.Errorf("got %v, want an error that is not permanent", err)
	}
	if pipeline, ok := b.sub.(subscriber.Pipeline); ok {
		for i, err := range send(t, ctx, pipeline, Delivery(0), Delivery(2)).await(t.Context()) {
			if err == nil || subscriber.IsPermanent(err) || subscriber.IsAway(err) {
				t.Errorf("delivery %d: got %v, want an error that says nothing of it", i, err)
			}
		}
	}
	b.must(t, Delivery(1))
	b.wantIDs(t, "after a call whose context had ended", Delivery(1))
}

func leavesNoGoroutine(t *testing.T, b *bench) {
	b.must(t, Delivery(0))
	before := runtime.NumGoroutine()
	for range 3 {
		kept := b.sub
		b.sub = b.Open(t)
		for n := range 5 {
			b.must(t, Delivery(n))
		}
		closeSubscriber(t, b.sub)
		b.sub = kept
	}
	b.eventually(t, "no goroutine of a closed subscriber is left", func() bool { return runtime.NumGoroutine() <= before })
}

func tellsTheRefused(t *testing.T, b *bench) {
	bad := Delivery(1)
	b.Destination.(Refuser).Refuse(t, bad.ID)
	b.must(t, Delivery(0))
	if err := b.deliver(t, bad); !subscriber.IsPermanent(err) {
		t.Errorf("a refused event: got %v, want a permanent error", err)
	}
	b.must(t, Delivery(2))
	b.wantIDs(t, "around a refused event", Delivery(0), Delivery(2))
	batching, ok := b.sub.(subscriber.BatchSubscriber)
	if !ok {
		return
	}
	// Either it names what failed, or nothing of the batch counts and the lane narrows it down.
	err := batching.HandleBatch(t.Context(), []subscriber.Delivery{Delivery(3), bad, Delivery(4)})
	var partial *subscriber.BatchError
	switch {
	case err == nil:
		t.Error("a batch with a refused event is delivered")
	case errors.As(err, &partial):
		if !subscriber.IsPermanent(partial.Failed[1]) || partial.Failed[2] == nil {
			t.Errorf("of a batch failed %v, want the second for good, and the third, which is of its key, held", partial.Failed)
		}
	}
}

func tellsTheOversized(t *testing.T, b *bench) {
	limit := b.Destination.(Limiter).Limit(t)
	large := Delivery(1)
	large.Payload = fmt.Appendf(nil, `{"text": "%s"}`, strings.Repeat("x", limit))
	b.must(t, Delivery(0))
	if err := b.deliver(t, large); !subscriber.IsPermanent(err) {
		t.Errorf("an event over the limit: got %v, want a permanent error", err)
	} else if len(err.Error()) > 4096 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	b.must(t, Delivery(2))
	b.wantIDs(t, "around an event that is too large", Delivery(0), Delivery(2))
}

func returnsWhenCancelled(t *testing.T, b *bench) {
	release := b.Destination.(Staller).Stall(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	returned := make(chan error, 1)
	go func() { returned <- b.sub.Handle(ctx, Delivery(0)) }()
	select {
	case err := <-returned:
		t.Errorf("a stalled server answers: %v", err)
	case <-time.After(50 * time.Millisecond): // so that it is on its way, most of the time
	}
	cancel(errors.New("the relay stops"))
	select {
	case err := <-returned:
		if err == nil || subscriber.IsPermanent(err) {
			t.Errorf("got %v, want an error that is not permanent", err)
		}
	case <-time.After(patience):
		t.Error("it does not return")
	}
	release()
	b.eventually(t, "delivered after the stop", func() bool { return b.deliver(t, Delivery(1)) == nil })
	if !slices.Contains(b.ids(t), Delivery(1).ID) {
		t.Errorf("arrived %q", b.ids(t))
	}
}

func waitsForCredentials(t *testing.T, b *bench) {
	gate := b.Destination.(Gatekeeper)
	gate.Lock(t)
	for range 3 {
		if err := b.deliver(t, Delivery(0)); err == nil || subscriber.IsPermanent(err) {
			t.Errorf("with wrong credentials: got %v, want an error that is not permanent", err)
		}
	}
	gate.Unlock(t)
	b.eventually(t, "delivered with the right credentials", func() bool { return b.deliver(t, Delivery(0)) == nil })
	b.wantIDs(t, "with the right credentials", Delivery(0))
}

func (b *bench) eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	Eventually(t, what, true)
}

// Eventually asks until it is true.
func Eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !true(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen in time: %s", what)
		}
	}
}
