package relay_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-28: the order of the rows of a transaction is their own where the table has none.
func TestRepair_keepsTheOrderOfATransactionsRows(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`DROP TABLE outbox`)
	db.Exec(`CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), event_type text, partition_key text, payload jsonb,
		created_at timestamptz DEFAULT now(), published_at timestamptz)`)
	rows := func(key string) {
		db.Exec(`DO $$ BEGIN FOR n IN 1..3 LOOP
			INSERT INTO public.outbox (event_type, partition_key, payload) VALUES (n::text, '` + key + `', '{}');
		END LOOP; END $$`)
	}
	sub := newChanging("sub", taking)
	o := options(t, db, sub)
	for _, first := range []bool{true, false} { // the first start, and a repair
		for n := range 6 {
			rows(fmt.Sprint(first, n))
		}
		o.Registry = prometheus.NewRegistry()
		if !first {
			db.Exec(dropSlot, o.Slot)
		}
		r := streaming(t, o)
		eventually(t, "every row is marked", func() bool { return unmarked(db) == 0 })
		r.shutDown()
	}
	of := make(map[string]string)
	for _, call := range sub.events() {
		of[call.Key] += call.Type
	}
	if len(of) != 12 {
		t.Errorf("%d keys, want 12", len(of))
	}
	for key, order := range of {
		if order != "123" {
			t.Errorf("key %s: the rows of its transaction came as %s", key, order)
		}
	}
}

// S-96: after a kill, a subscriber is owed the second event of a key, and no one knows that it has had the first, whose row
// is not marked because another subscriber still has it in hand. A repair owes it the first again: before the second.
func TestRelay_repairSendsWhatWasOwedInTheOrderOfTheTable(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"the slot is dropped": dropSlot,
		"another timeline":    `UPDATE walpost.slots SET timeline = 77 WHERE slot = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			picky := subscribertest.Handling("picky", func(_ context.Context, d subscriber.Delivery) error {
				if d.ID == "second" {
					return errAway
				}
				return nil
			})
			slow := subscribertest.Handling("slow", func(ctx context.Context, _ subscriber.Delivery) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			o := options(t, db, picky, slow)
			o.Subscriptions[0].Lane.StallAfter = 50 * time.Millisecond
			_, kill := startMortal(t, db, o)
			insertAll(db, "a", []string{"first", "second"})
			awaitOwed(t, db, "picky", 1)
			kill()
			db.Exec(spoil, db.Name)

			well, fast := subscribertest.Recording().Named("picky"), subscribertest.Recording().Named("slow")
			o = options(t, db, well, fast)
			streaming(t, o)
			eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "picky", "waiting") == 0 })
			if got, want := ids(well.Calls()), []string{"first", "second"}; !slices.Equal(got, want) {
				t.Errorf("after the repair it had %v, want %v", got, want)
			}
		})
	}
}

// S-99: what a filter that the configuration no longer has took keeps its place among the other rows of its key. The slow
// one keeps the first event unmarked, so that the repair sends it again.
func TestRelay_repairKeepsTheOrderOfWhatAFormerFilterTook(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"the slot is dropped": dropSlot,
		"the slot has moved":  `UPDATE walpost.slots SET confirmed = '0/8' WHERE slot = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub, slow := newChanging("sub", func(_ context.Context, d subscriber.Delivery) error {
				if d.ID != "first" {
					return errAway
				}
				return nil
			}), newChanging("slow", hanging)
			configured := func(events string) relay.Options {
				o := options(t, db, sub, slow)
				o.Subscriptions[0].Filter.Events, o.Subscriptions[0].Lane.StallAfter = []string{events}, 50*time.Millisecond
				return o
			}
			_, kill := startMortal(t, db, configured("*"))
			insertTyped(db, "first", "x")
			insertTyped(db, "second", "y")
			awaitOwed(t, db, "sub", 1)
			kill()
			_, kill = startMortal(t, db, configured("x")) // from here on
			insertTyped(db, "third", "x")
			awaitOwed(t, db, "sub", 2)
			eventually(t, "its position is recorded", func() bool {
				return db.Int(`SELECT count(*) FROM walpost.subscribers s JOIN walpost.owed USING (slot) WHERE name = 'sub' AND event_id = 'third' AND secured_commit >= commit_lsn`) == 1
			})
			kill()
			db.Exec(spoil, db.Name)

			before := len(sub.Delivered())
			sub.behave(taking)
			slow.behave(taking)
			streaming(t, configured("x"))
			eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
			if got, want := sub.Delivered()[before:], []string{"first", "second", "third"}; !slices.Equal(got, want) {
				t.Errorf("after the repair it had %v, want %v", got, want)
			}
		})
	}
}

// S-181: a subscriber that begins with all rows waits for marked ones among those that are not marked, and a repair comes
// before it has had them.
func TestRepair_keepsTheOrderOfASubscriberThatBeginsWithAllRows(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]string{
		"the slot is dropped": dropSlot,
		"another timeline":    `UPDATE walpost.slots SET timeline = 77 WHERE slot = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			old := newChanging("old", func(_ context.Context, d subscriber.Delivery) error {
				if d.ID == "e-2" || d.ID == "e-4" {
					return subscriber.Permanent(errAway)
				}
				return nil
			})
			r := streaming(t, options(t, db, old))
			insertAll(db, "a", numbered("e", 5))
			eventually(t, "all but the dead letters are marked", func() bool { return unmarked(db) == 2 && owed(db, "old", "dead") == 2 })
			r.shutDown()

			late := newChanging("late", away)
			configured := func() relay.Options {
				o := options(t, db, old, late)
				o.Subscriptions[1].FromBeginning = true
				return o
			}
			r = streaming(t, configured())
			awaitOwed(t, db, "late", 5)
			r.shutDown()
			db.Exec(spoil, db.Name)

			late.behave(taking)
			streaming(t, configured())
			if got, want := late.AwaitDelivered(t, 5), numbered("e", 5); !slices.Equal(got, want) {
				t.Errorf("after the repair it got %v, want %v", got, want)
			}
		})
	}
}
