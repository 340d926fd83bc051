package lane

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// aBacklog is one whose clock stands at now, and whose keys in failed have failed before.
func aBacklog(now time.Time, failed ...string) *backlog {
	b := newBacklog(func() time.Time { return now }, func(key string) time.Time {
		if slices.Contains(failed, key) {
			return now.Add(-time.Hour)
		}
		return time.Time{}
	})
	return &b
}

func (b *backlog) pushIDs(key string, ids ...string) {
	for _, id := range ids {
		b.push(key, &item{ev: &event.Event{ID: id, Key: key}})
	}
}

// takeNext takes one item of the next key that is well, as a call of one event does, and returns it with its key.
func (b *backlog) takeNext() (string, *keyQueue) {
	q := b.nextReady()
	if q == nil {
		return "", nil
	}
	id := q.items[0].ev.ID
	q.items, q.state = q.items[1:], inWork
	return id, q
}

// check complains about a key that is not in exactly the list that its state names.
func (b *backlog) check(t *testing.T) {
	t.Helper()
	for key, q := range b.keys {
		inReady := slices.Contains(b.ready.head, q) || slices.Contains(b.ready.tail, q)
		inRetries := slices.Contains(b.retries, q)
		if inReady != (q.state == ready) || inRetries != (q.state == retrying) || q.key != key {
			t.Errorf("key %q in state %d: among the ready %v, among the retries %v", key, q.state, inReady, inRetries)
		}
		if inRetries && b.retries[q.place] != q {
			t.Errorf("key %q is not at its place", key)
		}
	}
}

func TestBacklog_givesKeysInOrderOfArrivalAndAKeyOnceAtATime(t *testing.T) {
	b := aBacklog(time.Now())
	b.pushIDs("K", "K1", "K2")
	b.pushIDs("L", "L1")
	b.pushIDs("K", "K3")
	b.check(t)
	first, k := b.takeNext()
	second, l := b.takeNext()
	if third, q := b.takeNext(); first != "K1" || second != "L1" || q != nil {
		t.Fatalf("got %q, %q and %q, want K1, L1, and nothing of a key in work", first, second, third)
	}
	b.pushIDs("L", "L2") // behind what is in work
	b.check(t)
	b.release(l)
	b.release(k)
	b.check(t)
	var got []string
	for id, q := b.takeNext(); q != nil; id, q = b.takeNext() {
		got = append(got, id)
		b.release(q)
		b.check(t)
	}
	if want := []string{"L2", "K2", "K3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(b.keys) != 0 {
		t.Errorf("%d keys are left, want none", len(b.keys))
	}
}

func TestBacklog_putsWhatFailsApartAndGivesTheFirstThatIsDue(t *testing.T) {
	now := time.Now()
	b := aBacklog(now, "known")
	b.pushIDs("known", "known/1")
	for i, wait := range []time.Duration{time.Hour, time.Minute, 2 * time.Hour} {
		b.pushIDs(fmt.Sprint(i), fmt.Sprint(i, "/1"), fmt.Sprint(i, "/2"))
		_, q := b.takeNext()
		q.putBack([]*item{{ev: &event.Event{ID: "back"}, failure: &failure{attempts: 1}}})
		b.retryAt(q, now.Add(wait))
		b.check(t)
	}
	if q := b.nextReady(); q != nil {
		t.Errorf("key %q is given as one that is well", q.key)
	}
	var got []string
	for range 2 {
		q := b.retries.due(now.Add(time.Minute))
		if q == nil {
			break
		}
		b.retries.pop()
		q.state = inWork
		got = append(got, q.key)
	}
	if want := []string{"known", "1"}; !slices.Equal(got, want) {
		t.Errorf("due within a minute: got %v, want %v", got, want)
	}
	if q := b.retries.due(now.Add(time.Minute)); q != nil {
		t.Errorf("key %q is due too early", q.key)
	}
	b.check(t)
}

func TestBacklog_waitsForAsLongAsTheReceiverHasAsked(t *testing.T) {
	now := time.Now()
	b := aBacklog(now)
	b.pushIDs("K", "K1", "K2")
	_, q := b.takeNext()
	q.failedAt, q.heldUntil = now, now.Add(time.Hour)
	b.release(q)
	if b.retries.due(now.Add(time.Hour-1)) != nil || b.retries.due(now.Add(time.Hour)) != q {
		t.Errorf("the key is due at %v, want %v", q.due, now.Add(time.Hour))
	}
}

func TestBacklog_forgetsKeysThatHaveBecomeEmpty(t *testing.T) {
	now := time.Now()
	b := aBacklog(now, "fails")
	b.pushIDs("fails", "1")
	b.pushIDs("well", "1")
	failing, well := b.keys["fails"], b.keys["well"]
	b.sample = failing
	failing.items, well.items = nil, nil // their events went to the debt
	b.releaseEmpty(failing)
	b.releaseEmpty(well)
	if b.keys["fails"] != nil || b.sample != nil || b.keys["well"] == nil {
		t.Errorf("a failing key is forgotten at once, any other one when its turn comes: %v", b.keys)
	}
	b.check(t)
	if q := b.nextReady(); q != nil || len(b.keys) != 0 {
		t.Errorf("got key %v, %d keys are left, want none", q, len(b.keys))
	}
	b.pushIDs("new", "1") // a queue is used again
	if q := b.keys["new"]; len(q.items) != 1 || q.state != ready || !q.failedAt.IsZero() {
		t.Errorf("a queue that is used again is %+v", q)
	}
	b.check(t)
}

func TestBacklog_removesWhatGoesAndForgetsAFailingKeyWithNothingLeft(t *testing.T) {
	now := time.Now()
	b := aBacklog(now, "F")
	b.pushIDs("K", "K1", "K2", "K3")
	b.pushIDs("F", "F1")
	b.remove(b.keys["K"], func(it *item) bool { return it.ev.ID == "K2" })
	b.remove(b.keys["F"], func(*item) bool { return true })
	b.check(t)
	if b.keys["F"] != nil || len(b.retries) > 0 {
		t.Errorf("a failing key with nothing left is still there: %v", b.retries)
	}
	var got []string
	for id, q := b.takeNext(); q != nil; id, q = b.takeNext() {
		got = append(got, id)
		b.release(q)
	}
	if want := []string{"K1", "K3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
