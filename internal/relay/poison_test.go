package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// refusing calls one event unreadable.
func refusing(id string) handler {
	return func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == id {
			return subscriber.Permanent(errors.New("unreadable"))
		}
		return nil
	}
}

// F-52: the first event of a key is dead. By default the later ones pass it.
func TestRelay_letsLaterEventsPassADeadLetter(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", refusing("k-0"))
	streaming(t, owing(options(t, db, sub)))
	insertAll(db, "k", numbered("k", 3))
	if got, want := sub.AwaitDelivered(t, 2), []string{"k-1", "k-2"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	if got, want := dead(db), []string{"sub/k-0"}; !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
}

// F-52: with block_key they wait behind it, in whatever life of the relay, until a person has dealt with it.
// Then they come in order.
func TestRelay_keepsLaterEventsBehindADeadLetterUntilAPersonHasDealtWithIt(t *testing.T) {
	t.Parallel()
	for name, clean := range map[string]bool{"over a clean restart": true, "over a kill": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			blocking := func() (*changing, relay.Options) {
				sub := newChanging("sub", refusing("k-0"))
				o := owing(options(t, db, sub))
				o.Subscriptions[0].Lane.BlockKey = true
				return sub, o
			}
			sub, o := blocking()
			r, kill := startMortal(t, db, o)
			insertAll(db, "k", numbered("k", 3))
			insert(db, "other-0", "other")
			if got, want := sub.AwaitDelivered(t, 1), []string{"other-0"}; !slices.Equal(got, want) {
				t.Errorf("delivered %v, want only the other key: %v", got, want)
			}
			awaitOwed(t, db, "sub", 2)
			if clean {
				r.shutDown()
			} else {
				kill()
			}

			sub, o = blocking()
			streaming(t, o)
			insert(db, "k-3", "k")
			insert(db, "other-1", "other")
			sub.await(t, "other-1")
			awaitOwed(t, db, "sub", 3)
			if got := ofKey(sub.Calls(), "k"); len(got) > 0 {
				t.Errorf("handed over %v behind a dead letter", got)
			}
			if outcome, err := book(db).Discard(t.Context(), debt.Filter{Events: []string{"k-0"}}, "test", "settled by hand"); outcome.Deliveries != 1 || err != nil {
				t.Fatalf("discarded %d: %v", outcome.Deliveries, err)
			}
			eventually(t, "nothing is owed", func() bool { return owed(db, "sub", "waiting") == 0 })
			if got, want := ofKey(sub.Calls(), "k"), []string{"k-1", "k-2", "k-3"}; !slices.Equal(got, want) {
				t.Errorf("released %v, want %v", got, want)
			}
			insert(db, "k-4", "k") // live again
			sub.await(t, "k-4")
		})
	}
}

// An event that fails while others of its subscriber go well is poison after max_attempts; one that fails
// like everything else is not.
func TestRelay_tellsPoisonFromAnOutage(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	poisoned := newChanging("poisoned", func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == "bad" {
			return errors.New("cannot divide by zero")
		}
		return nil
	})
	gone := newChanging("gone", away)
	o := owing(options(t, db, poisoned, gone))
	for i := range o.Subscriptions {
		o.Subscriptions[i].Lane.MaxAttempts = 3
	}
	streaming(t, o)
	insert(db, "bad", "bad")
	insert(db, "behind", "bad")
	n := 0
	eventually(t, "the poison is dead", func() bool {
		insert(db, fmt.Sprint("good-", n), "good")
		n++
		return len(dead(db)) > 0
	})
	if got, want := dead(db), []string{"poisoned/bad"}; !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
	poisoned.await(t, "behind")
	gone.behave(taking)
	gone.AwaitDelivered(t, n+2)
	if got := dead(db); len(got) != 1 {
		t.Errorf("dead letters %v, want no more", got)
	}
}
