//go:build soak

package soak

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// owe makes a ledger owe rows deliveries of so many keys, as its relay would have recorded them with copies. With failing
// the first of each key has failed and is due again.
func owe(db *testdb.DB, name string, rows, keys int, failing bool) {
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, bound, ordinal,
			event_type, key, size, copied, payload, headers, attempts, first_failure, last_failure, next_attempt)
		SELECT $1, $2, 'lessons', 'owed-' || i, 'before', 'waiting', 1, '0/8', '0/8', i, 't', 'bad-' || i % $4::int, 200, true, '{}', '{}',
			CASE WHEN head THEN 1 ELSE 0 END, CASE WHEN head THEN now() END, CASE WHEN head THEN now() END, CASE WHEN head THEN now() END
		FROM (SELECT i, $5::bool AND i <= $4::int AS head FROM generate_series(1, $3::int) i) o`,
		db.Name, name, rows, keys, failing)
}

// steady commits events of keys that do not fail, one every 5 ms, until the returned function is called.
func steady(t *testing.T, db *testdb.DB, n *int) (stop func()) {
	return until(func(ctx context.Context) {
		every(ctx, 5*time.Millisecond, func() {
			*n++
			db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 't', $2, '{}')`, fmt.Sprintf("e%08d", *n), fmt.Sprint("good-", *n%100))
		})
	})
}

// awaitLedger waits until a ledger has every event of the outbox.
func awaitLedger(t *testing.T, db *testdb.DB, name string) {
	t.Helper()
	testprogram.Within(t, 5*time.Minute, name+" to have everything that does not fail", func() bool {
		return db.Int(`SELECT count(*) FROM outbox o
			WHERE NOT EXISTS (SELECT FROM soak.ledger l WHERE l.subscriber = $1 AND l.event_id = o.event_id)`, name) == 0
	})
}

// startSteady starts a relay of ledgers under a steady load, and returns it when the first event has passed.
func startSteady(t *testing.T, db *testdb.DB, o relayOptions, n *int, first string) (relay *testprogram.Process, ops string, stop func()) {
	t.Helper()
	before := ledgered(db, first)
	relay = startLedgers(t, db, o)
	ops = relay.AwaitStreaming()
	stop = steady(t, db, n)
	testprogram.Within(t, 5*time.Minute, first+" to have an event", func() bool { return ledgered(db, first) > before })
	return relay, ops, stop
}

// S-363: 1,000,000 deliveries of 500,000 keys that all fail. Memory stays bounded, and the other keys of the same
// subscriber, and the other subscriber, get what commits.
func TestSoak_aDebtOfKeysThatAllFailIsFeltByNoOtherKey(t *testing.T) {
	db := ownServer(t)
	withLedgers(db, "choosy", "present")
	behave(db, "choosy", "refuse bad-*")
	options := relayOptions{
		top:         "wal_budget: 0",
		subscribers: []string{"choosy", "present"},
		each:        "stall_after: 1s, max_attempts: 1000000, retry: {initial: 100ms, max: 5m}",
	}
	lasts := time.Duration(rounds(t, 60)) * time.Second
	events := 0
	relay, ops, stop := startSteady(t, db, options, &events, "present")
	testprogram.Pause(t, lasts)
	stop()
	awaitLedger(t, db, "present")
	without := histogramOf(t, ops, "present")
	relay.Stop()

	rows := scaled(t, 1_000_000)
	owe(db, "choosy", rows, rows/2, true)
	begun := time.Now()
	relay, ops, stop = startSteady(t, db, options, &events, "choosy")
	t.Logf("%d deliveries of %d keys that fail: the first of another key %s after the start", rows, rows/2, time.Since(begun).Round(time.Millisecond))
	testprogram.Pause(t, lasts)
	stop()
	awaitLedger(t, db, "present")
	awaitLedger(t, db, "choosy")
	t.Logf("the other subscriber, without a debt: %s", without.latency())
	t.Logf("the other subscriber: %s", commitToHandled(t, ops, "present"))
	t.Logf("the other keys: %s", commitToHandled(t, ops, "choosy"))
	if got := peak(t, relay); got > enough {
		t.Errorf("peak memory %d MiB, want at most %d", got>>20, enough>>20)
	}
	t.Logf("peak memory %d MiB; of %d keys that wait %d have been tried since", peak(t, relay)>>20, rows/2,
		db.Int(`SELECT count(*) FROM walpost.owed WHERE attempts > 1`))
	relay.Stop()
	wantOrder(t, db)
}

// A start with 1,000,000 deliveries that one subscriber is owed: the other does not notice.
func TestSoak_aStartWithALargeDebtIsNotFeltByTheOthers(t *testing.T) {
	db := ownServer(t)
	withLedgers(db, "away", "present")
	options := relayOptions{
		top:         "wal_budget: 0",
		subscribers: []string{"away", "present"},
		each:        "stall_after: 1s, retry: {initial: 100ms, max: 1s}",
	}
	lasts := time.Duration(rounds(t, 30)) * time.Second
	events := 0
	start := func() latency {
		relay, ops, stop := startSteady(t, db, options, &events, "present")
		testprogram.Pause(t, lasts)
		stop()
		awaitLedger(t, db, "present")
		measured := commitToHandled(t, ops, "present")
		t.Logf("peak memory %d MiB", peak(t, relay)>>20)
		relay.Stop()
		return measured
	}
	behave(db, "away", "down")
	without := start()
	rows := scaled(t, 1_000_000)
	owe(db, "away", rows, 1000, false)
	with := start()
	t.Logf("the other subscriber: %s", without)
	t.Logf("with %d deliveries that one is owed: %s; p99 %.2f times that without", rows, with, with.p99.Seconds()/max(without.p99.Seconds(), 1e-6))
	wantOrder(t, db)
}

// A subscriber that is well again and is owed 100,000 deliveries: what commits meanwhile has its turn behind them, and waits
// for as long as they take, once.
func TestSoak_whatCommitsBehindADebtWaitsOnceForAllOfIt(t *testing.T) {
	db := ownServer(t)
	withLedgers(db, "well", "present")
	options := relayOptions{top: "wal_budget: 0", subscribers: []string{"well", "present"}, each: "stall_after: 1s, retry: {initial: 100ms, max: 1s}"}
	rows := scaled(t, 100_000)
	owe(db, "well", rows, 1000, false)
	events := 0
	begun := time.Now()
	relay, ops, stop := startSteady(t, db, options, &events, "present")
	testprogram.Within(t, 5*time.Minute, "the debt of before to be paid", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE event_id LIKE 'owed-%' AND state = 'waiting'`) == 0
	})
	paid := time.Since(begun)
	testprogram.Within(t, 5*time.Minute, "the subscriber to be live", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting'`) == 0
	})
	live := time.Since(begun)
	testprogram.Pause(t, 5*time.Second)
	stop()
	awaitLedger(t, db, "well")
	t.Logf("%d deliveries are paid after %v, and what had committed meanwhile %v later", rows, paid.Round(time.Millisecond), (live - paid).Round(time.Millisecond))
	t.Logf("the other subscriber: %s", commitToHandled(t, ops, "present"))
	relay.Stop()
	wantOrder(t, db)
}
