package relay_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// redrive is the command, given by two people at the same time. It returns how many both have redriven.
func redrive(t *testing.T, db *testdb.DB, ids ...string) int {
	t.Helper()
	var both sync.WaitGroup
	outcomes := make([]debt.Outcome, 2)
	errs := make([]error, 2)
	for i := range outcomes {
		both.Go(func() {
			outcomes[i], errs[i] = book(db).Redrive(t.Context(), debt.Filter{Events: ids}, "test", "fixed")
		})
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return outcomes[0].Deliveries + outcomes[1].Deliveries
}

// F-52: with block_key a redriven event goes before all that waits behind it, whichever relay sends it.
func TestRelay_sendsARedrivenEventBeforeWhatWaitsBehindIt(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"by the relay that runs": true, "by the next one": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub := newChanging("sub", refusing("k-0"))
			o := owing(options(t, db, sub))
			o.Subscriptions[0].Lane.BlockKey = true
			r := streaming(t, o)
			insertAll(db, "k", numbered("k", 3))
			awaitOwed(t, db, "sub", 2)
			if !running {
				r.shutDown()
			}
			sub.behave(taking)
			if got := redrive(t, db, "k-0"); got != 1 {
				t.Errorf("%d were redriven by two commands, want 1", got)
			}
			if !running {
				o = owing(options(t, db, sub))
				o.Subscriptions[0].Lane.BlockKey = true
				streaming(t, o)
			}
			eventually(t, "nothing is owed", func() bool { return owed(db, "sub", "waiting") == 0 })
			insert(db, "k-3", "k") // live again
			sub.await(t, "k-3")
			if got, want := ofKey(sub.Calls(), "k"), []string{"k-0", "k-0", "k-1", "k-2", "k-3"}; !slices.Equal(got, want) {
				t.Errorf("handed over %v, want %v", got, want)
			}
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
		})
	}
}

// F-52: without block_key a redriven event comes after those that passed it. From then on its key is in order:
// what comes while it fails waits behind it.
func TestRelay_keepsANewEventBehindARedrivenOne(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", refusing("k-0"))
	streaming(t, owing(options(t, db, sub)))
	insertAll(db, "k", numbered("k", 3))
	sub.AwaitDelivered(t, 2)
	sub.behave(func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == "k-0" {
			return errors.New("not yet")
		}
		return nil
	})
	if got := redrive(t, db, "k-0"); got != 1 {
		t.Errorf("%d were redriven by two commands, want 1", got)
	}
	eventually(t, "another attempt", func() bool { return len(ofKey(sub.Calls(), "k")) > 3 })
	insert(db, "k-3", "k")
	insert(db, "other", "other")
	sub.await(t, "other")
	if slices.Contains(ofKey(sub.Calls(), "k"), "k-3") {
		t.Error("a new event has passed the redriven one of its key")
	}
	sub.behave(taking)
	if got, want := sub.AwaitDelivered(t, 5), []string{"k-1", "k-2", "other", "k-0", "k-3"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
}

// F-33: what was too large is sent when max_event is raised; as long as it is not, it dies again.
func TestRelay_sendsWhatWasTooLargeWhenTheLimitIsRaised(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == "large" && len(d.Payload) < 300_000 {
			return errors.New("a piece is missing")
		}
		return nil
	})
	o := options(t, db, sub)
	o.MaxEvent = 100_000
	r := streaming(t, o)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		VALUES ('large', 'lesson.completed', 'a', jsonb_build_object('text', repeat('x', 300000)))`)
	eventually(t, "the dead letter", func() bool { return owed(db, "sub", "dead") == 1 })
	if redrive(t, db, "large") == 0 {
		t.Error("nothing was redriven")
	}
	eventually(t, "it to be dead again", func() bool { return owed(db, "sub", "dead") == 1 })
	if got := db.Text(`SELECT error || invalid FROM walpost.owed WHERE NOT copied`); strings.Count(got, "max_event is 100000") != 2 {
		t.Errorf("it is dead because of %q", got)
	}
	r.shutDown()
	o = options(t, db, sub)
	o.MaxEvent = 16 << 20
	streaming(t, o)
	redrive(t, db, "large")
	if got := sub.AwaitDelivered(t, 1); !slices.Equal(got, []string{"large"}) {
		t.Errorf("delivered %v", got)
	}
	eventually(t, "its mark", func() bool { return unmarked(db) == 0 })
}

// S-95: an old dead letter is redriven and fails again. It stands below the confirmed position, so the server would not
// send it again whatever is confirmed: it holds back no WAL.
func TestRelay_confirmsAlthoughAnOldDeadLetterIsRedrivenInVain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", refusing("old"))
	o := owing(options(t, db, sub))
	o.WALBudget = relay.Unlimited
	streaming(t, o)
	insert(db, "old", "a")
	eventually(t, "a dead letter", func() bool { return owed(db, "sub", "dead") == 1 })
	insert(db, "later", "b")
	wasCalled := func(id string) func() bool {
		return func() bool {
			return slices.ContainsFunc(sub.Calls(), func(c subscribertest.Call) bool { return c.EventID == id && c.Done })
		}
	}
	eventually(t, "the later one", wasCalled("later"))
	eventually(t, "the slot has passed both", confirmedCalls(t, db, sub))
	sub.behave(func(ctx context.Context, d subscriber.Delivery) error {
		if d.ID == "old" {
			return errAway
		}
		return nil
	})
	redrive(t, db, "old")
	eventually(t, "it fails again", func() bool {
		return slices.ContainsFunc(sub.Calls(), func(c subscribertest.Call) bool { return c.EventID == "old" && errors.Is(c.Err, errAway) })
	})
	insert(db, "live", "b")
	eventually(t, "the live one", wasCalled("live"))
	eventually(t, "the slot has passed what is live", confirmedCalls(t, db, sub))
	if got := owed(db, "sub", "waiting"); got != 1 {
		t.Errorf("%d wait, want the one that is redriven", got)
	}
	if got := metric(t, o, "walpost_holding_wal_bytes", "subscriber=sub"); got != 0 {
		t.Errorf("it holds %v bytes of WAL, want none", got)
	}
}
