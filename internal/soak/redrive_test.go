//go:build soak

package soak

import (
	"context"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// F-52: one key of a thousand is poisoned under load, and redriven when its subscriber works again. The others
// must not feel it, and the key's events come in their order.
func TestSoak_poisonedKeyIsRedrivenInOrderAndPausesNoOther(t *testing.T) {
	db := testdb.New(t)
	withLedgers(db, "only")
	// Each event is refused three times before it is a dead letter; behind it the others of its key wait.
	options := relayOptions{
		subscribers: []string{"only"},
		each:        "after_dead_letter: block_key, max_attempts: 3, stall_after: 2s, retry: {initial: 100ms, max: 1s}",
	}
	relay := startLedgers(t, db, options)
	ops := relay.AwaitStreaming()
	stop := until(func(ctx context.Context) { insert(ctx, t, db, 0, 1, 500) })
	defer stop()
	const key = "key-0-7"
	dead := func() bool { return debttest.Dead(db) > 0 }

	part := time.Duration(rounds(t, 20)) * time.Second
	testprogram.Pause(t, part)
	before := histogramOf(t, ops, "only")
	behave(db, "only", "refuse "+key)
	testprogram.Eventually(t, "the key to have a dead letter", dead)
	testprogram.Pause(t, part)
	poisoned := histogramOf(t, ops, "only").since(before)
	if n := debttest.Dead(db); n != 1 {
		t.Errorf("%d dead letters, want the first event of the key alone", n)
	}
	if n := db.Int(`SELECT count(*) FROM walpost.owed WHERE key <> $1`, key); n != 0 {
		t.Errorf("%d deliveries of other keys are owed", n)
	}
	waiting := db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting' AND key = $1`, key)

	behave(db, "only", "ok")
	begin := time.Now()
	outcome, err := debt.NewStore(db.Pinned, db.Name).Redrive(t.Context(), debt.Filter{Subscriber: "only", Key: key}, "test", "works again")
	if err != nil || outcome.Deliveries != 1 {
		t.Fatalf("redriven %d: %v", outcome.Deliveries, err)
	}
	testprogram.Eventually(t, "the key to owe nothing", func() bool {
		return debttest.Unpaid(db) == 0
	})
	t.Logf("one event redriven, and with %d behind it paid in %s", waiting, time.Since(begin).Round(10*time.Millisecond))
	testprogram.Pause(t, part)
	stop()
	testprogram.AwaitPublished(t, db, 2*time.Minute)
	wantAll(t, db, "only")
	wantOrder(t, db)
	if got := repeats(db); got != 0 {
		t.Errorf("%d deliveries were repeated", got)
	}
	t.Logf("commit to handled before: %s; of the other keys while one is poisoned: %s", before.latency(), poisoned.latency())
	relay.Stop()
	endByLosingTheSlot(t, db, options)
}
