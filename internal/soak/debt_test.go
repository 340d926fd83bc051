//go:build soak

package soak

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

var withOneAway = relayOptions{
	subscribers: []string{"first", "second", "away"},
	each:        "stall_after: 1s, retry: {initial: 100ms, max: 1s}",
}

// held reads whether the slot still stands before a commit, and how much WAL there is behind that.
func held(t *testing.T, db *testdb.DB, commit string) (holds bool, bytes int64) {
	t.Helper()
	err := db.Pool.QueryRow(t.Context(), `
		SELECT confirmed_flush_lsn < $2::text::pg_lsn, pg_wal_lsn_diff(pg_current_wal_lsn(), $2::text::pg_lsn)::bigint
		FROM pg_replication_slots WHERE slot_name = $1`, db.Name, commit).Scan(&holds, &bytes)
	if err != nil {
		t.Fatal(err)
	}
	return holds, bytes
}

func ledgered(db *testdb.DB, name string) int64 {
	return db.Int(`SELECT count(DISTINCT event_id) FROM soak.ledger WHERE subscriber = $1`, name)
}

// F-22: one subscriber is away for 100,000 events. Its WAL is held up to the budget and let go above it.
func TestSoak_outageHoldsWALUpToTheBudgetAndLosesNothing(t *testing.T) {
	db := ownServer(t)
	withLedgers(db, withOneAway.subscribers...)
	behave(db, "away", "down")
	events := scaled(t, 100_000)
	budget := int64(events) * 300 // an event is more WAL than that, with its marks and its debt
	options := withOneAway
	options.top = fmt.Sprintf("wal_budget: %d", budget)
	relay := startLedgers(t, db, options)
	relay.AwaitStreaming()

	db.Exec(insertEvents, writers, 0, 1, keysPerWriter) // by no one else's name
	first := db.Text(`SELECT pg_current_wal_insert_lsn()::text`)
	var most int64 // bytes that were seen held
	checkHeld := func() (released bool) {
		holds, bytes := held(t, db, first)
		switch {
		case holds:
			most = max(most, bytes)
		case bytes < budget:
			t.Fatalf("the slot has passed the first owed event with %d bytes of WAL behind it; the budget is %d", bytes, budget)
		}
		return !holds
	}
	stop := until(func(ctx context.Context) { insert(ctx, t, db, events, 10, 0) })
	defer stop()
	testprogram.Within(t, 10*time.Minute, "the two others to have everything", func() bool {
		checkHeld()
		return db.Int(`SELECT count(*) FROM outbox`) > int64(events-10*writers) &&
			ledgered(db, "first") == db.Int(`SELECT count(*) FROM outbox`) && ledgered(db, "second") == ledgered(db, "first")
	})
	stop()
	testprogram.Eventually(t, "WAL above the budget to be released", checkHeld)
	if most == 0 {
		t.Error("no WAL was seen held for the one that is away")
	}
	if got := ledgered(db, "away"); got != 0 {
		t.Errorf("the one that is away has %d events", got)
	}
	t.Logf("WAL held at most: %d bytes, with a budget of %d; owed: %d", most, budget,
		debttest.Waiting(db))

	behave(db, "away", "ok")
	begin := time.Now()
	testprogram.AwaitPublished(t, db, 10*time.Minute)
	t.Logf("%d events paid in %s", events, time.Since(begin).Round(time.Millisecond))
	wantAll(t, db, options.subscribers...)
	wantOrder(t, db)
	if got := repeats(db); got != 0 {
		t.Errorf("%d deliveries were repeated although nothing was killed", got)
	}
	relay.Stop()
	endByLosingTheSlot(t, db, options)
}

// The same with a relay that is killed every few seconds, before and after the subscriber comes back.
func TestSoak_outageWithKillsLosesNothingAndKeepsOrder(t *testing.T) {
	db := ownServer(t)
	withLedgers(db, withOneAway.subscribers...)
	behave(db, "away", "down")
	events := scaled(t, 100_000)
	options := withOneAway
	options.top = fmt.Sprintf("wal_budget: %d", events*300)
	n := rounds(t, 20)
	stop := until(func(ctx context.Context) { insert(ctx, t, db, events, 10, max(500, events/(n*2))) })
	defer stop()
	for round := range n {
		if round == (n+1)/2 {
			behave(db, "away", "ok")
		}
		relay := startLedgers(t, db, options)
		testprogram.Pause(t, 2*time.Second+randomMoment(2*time.Second))
		relay.Kill()
	}
	behave(db, "away", "ok")
	relay := startLedgers(t, db, options)
	relay.AwaitStreaming()
	testprogram.Within(t, 10*time.Minute, "everything to be written", func() bool {
		return db.Int(`SELECT count(*) FROM outbox`) > int64(events-10*writers)
	})
	stop()
	testprogram.AwaitPublished(t, db, 10*time.Minute)
	wantAll(t, db, options.subscribers...)
	wantOrder(t, db)
	relay.Stop()
	t.Logf("%d kills, %d events for three subscribers, %d deliveries again", n, db.Int(`SELECT count(*) FROM outbox`), repeats(db))
	endByLosingTheSlot(t, db, options)
}
