// Package subscribertest holds the tests that every subscriber must pass, and fakes for the tests of
// those who call subscribers. It is for tests only.
package subscribertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Slot is the slot that Run builds its subscribers with.
const Slot = "contract"

// Build makes the subscriber under test. It is called several times per test: a second one stands for
// the same subscriber after a restart.
type Build = func(t *testing.T, pool *postgres.Pool, slot string) subscriber.Subscriber

// Run checks the contract of subscriber.Subscriber, and of BatchSubscriber where the subscriber is one,
// for a subscriber that wants "lesson.completed" and whose effect is rows in the database of pool: what
// it does elsewhere Run cannot see. All tables in schema public count as effect, but those of the
// write side, and so does walpost.inbox.
func Run(t *testing.T, build Build) {
	t.Helper()
	b := newBench(t, build)
	b.check(t, []check{
		{"has a name that stays", hasStableName},
		{"wants events by their type", wantsByType},
		{"has its effect once when the same event comes twice", effectOnceWhenTwice},
		{"has its effect at most once more in a replay that asks for it", effectOnceMoreInReplay},
		{"has its effect once when it dies between effect and return", effectOnceWhenDying},
		{"has its effect once when the connection dies before the commit", effectOnceWhenCutOff},
		{"takes events of different keys at the same time", keysAtTheSameTime},
		{"does nothing when the context has ended", nothingWhenCancelled},
		{"returns when the context ends", returnsWhenCancelled},
		{"calls an unreadable payload permanent", unreadableIsPermanent},
		{"does not call an error of the database permanent", databaseErrorIsNotPermanent},
	})
	if _, ok := build(t, b.db.Pinned, Slot).(subscriber.BatchSubscriber); !ok {
		return
	}
	b.check(t, []check{
		{"has the effect of one by one in batches", batchIsOneByOne},
		{"names only the unreadable event of a batch", batchNamesOnlyTheBadOne},
		{"counts an event once that stands in a batch twice", batchWithTheSameTwice},
		{"says of a database error that nothing of the batch is done", batchOnDatabaseError},
		{"survives many overlapping batches at once", overlappingBatches},
	})
}

type check struct {
	name string
	run  func(*testing.T, *bench)
}

func (b *bench) check(t *testing.T, checks []check) {
	for _, check := range checks {
		t.Run(check.name, func(t *testing.T) {
			b.clear(t)
			check.run(t, b)
		})
	}
}

// lessonCompleted is the type of the events: the contract is tried with those of the lesson platform.
const lessonCompleted = "lesson.completed"

// LessonCompleted makes the n-th of a series of valid deliveries: three learners (the keys) on two tracks.
// The same n gives the same event.
func LessonCompleted(n int) subscriber.Delivery {
	user, track := n%3+1, []string{"go", "postgres"}[n/3%2]
	id := fmt.Sprintf("01K0WALP0ST%015d", n)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(n) * time.Minute).Format(time.RFC3339)
	payload := fmt.Sprintf(`{"event_id": %q, "type": %q, "correlation_id": "correlation-%d", "occurred_at": %q, `+
		`"user_id": %d, "lesson_id": %d, "track_slug": %q, "lesson_slug": "lesson-%d"}`,
		id, lessonCompleted, n, at, user, n+1, track, n)
	return subscriber.Delivery{Attempt: 1, Event: &event.Event{
		Source: "lessons", ID: id, Type: lessonCompleted, Key: fmt.Sprint(user),
		Payload: []byte(payload), Headers: fmt.Appendf(nil, `{"correlation_id": "correlation-%d"}`, n),
		OccurredAt: at, Row: fmt.Sprint(n + 1), Position: event.Position{Commit: 8, Ordinal: int64(n)},
	}}
}

// lessons makes deliveries 0 to n-1.
func lessons(n int) []subscriber.Delivery {
	deliveries := make([]subscriber.Delivery, n)
	for i := range deliveries {
		deliveries[i] = LessonCompleted(i)
	}
	return deliveries
}

// withPayload makes a delivery like LessonCompleted(n) with another payload.
func withPayload(n int, payload []byte) subscriber.Delivery {
	delivery := LessonCompleted(n)
	delivery.Payload = payload
	return delivery
}

func hasStableName(t *testing.T, b *bench) {
	name := b.sub.Name()
	if name == "" || strings.TrimSpace(name) != name {
		t.Errorf("Name() = %q, want a word", name)
	}
	b.must(t, b.sub, LessonCompleted(0))
	if got := b.sub.Name(); got != name {
		t.Errorf("Name() after handling = %q, want %q", got, name)
	}
	if got := b.restarted(t).Name(); got != name {
		t.Errorf("Name() after a restart = %q, want %q", got, name)
	}
}

func wantsByType(t *testing.T, b *bench) {
	for eventType, want := range map[string]bool{
		lessonCompleted: true, "": false, "lesson.completed ": false, "other.type": false,
	} {
		if got := b.sub.Wants(eventType); got != want {
			t.Errorf("Wants(%q) = %v, want %v", eventType, got, want)
		}
		typed, ok := b.sub.(subscriber.TypedSubscriber)
		if eventType != "" && (!ok || (event.Filter{Types: typed.Types()}).Takes("any", eventType) != want) {
			t.Errorf("Types() as a filter takes %q otherwise than Wants: want %v", eventType, want)
		}
	}
}

func effectOnceWhenTwice(t *testing.T, b *bench) {
	before := b.dump(t)
	b.must(t, b.sub, LessonCompleted(0))
	once := b.dump(t)
	if once == before {
		t.Fatal("the event had no effect that Run can see")
	}
	again := LessonCompleted(0)
	again.Attempt, again.Replay = 2, true
	b.must(t, b.sub, again)
	b.same(t, "after the same event twice", once)
}

// A replay that breaks off begins again, with the same moment in Again.
func effectOnceMoreInReplay(t *testing.T, b *bench) {
	again := LessonCompleted(0)
	b.must(t, b.sub, again)
	again.Replay, again.Again = true, b.now(t)
	b.must(t, b.sub, again)
	onceMore := b.dump(t)
	b.must(t, b.restarted(t), again)
	b.same(t, "after the same replay twice", onceMore)
}

func effectOnceWhenDying(t *testing.T, b *bench) {
	for _, delivery := range lessons(4) {
		b.must(t, b.sub, delivery)
	}
	once := b.dump(t)
	restarted := b.restarted(t) // it knows only what was committed
	for _, delivery := range lessons(4) {
		b.must(t, restarted, delivery)
	}
	b.same(t, "after the same events to a restarted subscriber", once)
}

func effectOnceWhenCutOff(t *testing.T, b *bench) {
	before := b.dump(t)
	unlock := b.lockEffects(t)
	outcome := start(func() error { return b.sub.Handle(t.Context(), LessonCompleted(0)) })
	b.terminateWhoWaits(t)
	err := outcome.wait(t)
	unlock()
	if err == nil || subscriber.IsPermanent(err) {
		t.Fatalf("Handle on a connection that died: %v, want an error that is not permanent", err)
	}
	b.same(t, "after a connection that died before the commit", before)
	b.must(t, b.sub, LessonCompleted(0))
	once := b.dump(t)
	b.must(t, b.sub, LessonCompleted(0))
	b.same(t, "after the same event once more", once)
}

func keysAtTheSameTime(t *testing.T, b *bench) {
	want := b.oneByOne(t, lessons(3)) // three learners
	var group sync.WaitGroup
	for _, delivery := range lessons(3) {
		group.Go(func() {
			if err := b.sub.Handle(t.Context(), delivery); err != nil {
				t.Errorf("Handle(%s): %v", delivery.ID, err)
			}
		})
	}
	group.Wait()
	b.sameButForTheClock(t, "after three keys at once", want)
}

func nothingWhenCancelled(t *testing.T, b *bench) {
	before := b.dump(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := start(func() error { return b.sub.Handle(ctx, LessonCompleted(0)) }).wait(t); err == nil || subscriber.IsPermanent(err) {
		t.Errorf("Handle with a context that has ended: %v, want an error that is not permanent", err)
	}
	b.same(t, "after a context that had ended", before)
}

func returnsWhenCancelled(t *testing.T, b *bench) {
	before := b.dump(t)
	unlock := b.lockEffects(t)
	ctx, cancel := context.WithCancel(t.Context())
	outcome := start(func() error { return b.sub.Handle(ctx, LessonCompleted(0)) })
	b.whoWaits(t)
	cancel()
	if err := outcome.wait(t); err == nil || subscriber.IsPermanent(err) {
		t.Errorf("Handle whose context ends: %v, want an error that is not permanent", err)
	}
	unlock()
	b.same(t, "after a context that ended", before)
}

func unreadableIsPermanent(t *testing.T, b *bench) {
	before := b.dump(t)
	for name, payload := range unreadable() {
		err := b.sub.Handle(t.Context(), withPayload(0, payload))
		if !subscriber.IsPermanent(err) {
			t.Errorf("payload with %s: %v, want a permanent error", name, err)
		}
	}
	b.same(t, "after unreadable payloads", before)
}

func databaseErrorIsNotPermanent(t *testing.T, b *bench) {
	before := b.dump(t)
	for name, pool := range map[string]*postgres.Pool{
		"that may not write": b.pool("pg_read_all_data"),
		"that is closed":     b.closedPool(),
	} {
		err := b.build(t, pool, Slot).Handle(t.Context(), LessonCompleted(0))
		if err == nil || subscriber.IsPermanent(err) {
			t.Errorf("with a pool %s: %v, want an error that is not permanent", name, err)
		}
	}
	b.same(t, "after errors of the database", before)
}

func batchIsOneByOne(t *testing.T, b *bench) {
	want := b.oneByOne(t, lessons(40))
	b.mustBatch(t, lessons(40)[:25])
	b.mustBatch(t, lessons(40)[20:]) // five of them again
	b.sameButForTheClock(t, "after two batches", want)
	b.mustBatch(t, nil)
	b.sameButForTheClock(t, "after an empty batch", want)
}

func batchNamesOnlyTheBadOne(t *testing.T, b *bench) {
	good := lessons(6)
	want := b.oneByOne(t, append(good[:2:2], good[3:]...))
	batch := lessons(6)
	batch[2] = withPayload(2, []byte(`{"user_id": "missing"}`))
	err := b.batch().HandleBatch(t.Context(), batch)
	var partial *subscriber.BatchError
	if !errors.As(err, &partial) {
		t.Fatalf("HandleBatch with an unreadable event: %v, want a BatchError", err)
	}
	if len(partial.Failed) != 1 || !subscriber.IsPermanent(partial.Failed[2]) {
		t.Errorf("HandleBatch: failed = %v, want a permanent error for index 2 alone", partial.Failed)
	}
	b.sameButForTheClock(t, "after a batch with an unreadable event", want)
}

func batchWithTheSameTwice(t *testing.T, b *bench) {
	want := b.oneByOne(t, lessons(4))
	b.mustBatch(t, append(lessons(4), lessons(3)...))
	b.sameButForTheClock(t, "after a batch with the same events twice", want)
}

func batchOnDatabaseError(t *testing.T, b *bench) {
	before := b.dump(t)
	sub := b.build(t, b.pool("pg_read_all_data"), Slot).(subscriber.BatchSubscriber)
	err := sub.HandleBatch(t.Context(), lessons(3))
	var partial *subscriber.BatchError
	switch {
	case err == nil || subscriber.IsPermanent(err):
		t.Errorf("HandleBatch: %v, want an error that is not permanent", err)
	case errors.As(err, &partial) && len(partial.Failed) != 3:
		t.Errorf("HandleBatch: failed = %v, want all three events", partial.Failed)
	}
	b.same(t, "after an error of the database", before)
}

// overlappingBatches is a storm in which several batches hold the same events and touch the same rows, in
// ever different order. A deadlock is an error of the database, and fails the test. Each round begins
// without rows, because the race for who inserts them first is where orders clash.
func overlappingBatches(t *testing.T, b *bench) {
	const events, workers, rounds = 40, 16, 10
	want := b.oneByOne(t, lessons(events))
	sub := b.build(t, b.wide(workers), Slot).(subscriber.BatchSubscriber)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range rounds {
		b.clear(t)
		var group sync.WaitGroup
		for worker := range workers {
			random := rand.New(rand.NewPCG(seed, uint64(round*workers+worker)))
			group.Go(func() {
				batch := lessons(events)
				random.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
				half := 1 + random.IntN(events-1)
				for _, part := range [][]subscriber.Delivery{batch[:half], batch[half:]} {
					if err := sub.HandleBatch(t.Context(), part); err != nil {
						t.Errorf("HandleBatch: %v", err)
					}
				}
			})
		}
		group.Wait()
		b.sameButForTheClock(t, "after overlapping batches", want)
	}
}
