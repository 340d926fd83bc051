package subscribertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

func TestFailing_failsAsOftenAsItIsTold(t *testing.T) {
	sub := Failing(2)
	var got []bool
	for range 4 {
		got = append(got, sub.Handle(t.Context(), LessonCompleted(0)) == nil)
	}
	if want := []bool{false, false, true, true}; !slices.Equal(got, want) {
		t.Errorf("delivered = %v, want %v", got, want)
	}
	if got, want := sub.Delivered(), []string{LessonCompleted(0).ID, LessonCompleted(0).ID}; !slices.Equal(got, want) {
		t.Errorf("Delivered() = %q, want %q", got, want)
	}
	always := Failing(-1)
	for range 5 {
		if err := always.Handle(t.Context(), LessonCompleted(0)); !errors.Is(err, ErrFailing) {
			t.Errorf("Handle = %v, want %v", err, ErrFailing)
		}
	}
}

func TestBlocking_blocksUntilReleasedOrCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := Blocking()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := sub.Handle(ctx, LessonCompleted(0)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Handle = %v, want the deadline", err)
		}
		done := start(func() error { return sub.Handle(t.Context(), LessonCompleted(1)) })
		calls := sub.AwaitCalls(t, 2)
		if calls[1].Done || calls[1].Key != LessonCompleted(1).Key {
			t.Errorf("call = %+v, want one that goes on", calls[1])
		}
		sub.Release()
		sub.Release()
		if err := done.wait(t); err != nil {
			t.Errorf("Handle after Release = %v", err)
		}
	})
}

func TestRecording_keepsALedgerOfAllGoroutines(t *testing.T) {
	sub := Recording().Named("mine").Wanting("a", "b")
	if sub.Name() != "mine" || !sub.Wants("b") || sub.Wants("c") {
		t.Errorf("Name() = %q, Wants(b) = %v, Wants(c) = %v", sub.Name(), sub.Wants("b"), sub.Wants("c"))
	}
	var group sync.WaitGroup
	for _, delivery := range lessons(20) {
		group.Go(func() { _ = sub.Handle(t.Context(), delivery) })
	}
	ids := sub.AwaitDelivered(t, 20)
	group.Wait()
	slices.Sort(ids)
	for i, delivery := range lessons(20) {
		if ids[i] != delivery.ID {
			t.Errorf("id %d = %s, want %s", i, ids[i], delivery.ID)
		}
	}
}

func TestBatcher_reportsEachEventThatFails(t *testing.T) {
	sub := Failing(1).InBatches()
	err := sub.HandleBatch(t.Context(), lessons(3))
	var partial *subscriber.BatchError
	if !errors.As(err, &partial) || len(partial.Failed) != 1 || !errors.Is(partial.Failed[0], ErrFailing) {
		t.Errorf("HandleBatch = %v, want the first event alone to fail", err)
	}
	if err := sub.HandleBatch(t.Context(), lessons(3)[:1]); err != nil {
		t.Errorf("HandleBatch = %v", err)
	}
	got := sub.Batches()
	if len(got) != 2 || len(got[0]) != 3 || len(got[1]) != 1 {
		t.Errorf("Batches() = %q, want one of three and one of one", got)
	}
}
