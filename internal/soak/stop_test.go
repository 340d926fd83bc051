//go:build soak

package soak

import (
	"context"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// F-14: 50 events a second, each a second in the handler, so that every stop finds fifty of them in hand.
func TestSoak_cleanStopsLoseNothingAndRepeatNothing(t *testing.T) {
	const drain = 10 * time.Second
	db := testdb.New(t)
	withLedgers(db, "slow", "quick")
	behave(db, "slow", "slow 1s")
	options := relayOptions{
		top:         "drain: " + drain.String(),
		subscribers: []string{"slow", "quick"},
		each:        "concurrency: 200, batch: 1",
	}
	stop := until(func(ctx context.Context) { insert(ctx, t, db, 0, 1, 50) })
	defer stop()
	var longest time.Duration
	n := rounds(t, 30)
	for range n {
		relay := startLedgers(t, db, options)
		relay.AwaitStreaming()
		testprogram.Pause(t, time.Second+randomMoment(time.Second))
		took := relay.Stop()
		longest = max(longest, took)
		if took > drain {
			t.Errorf("a stop took %s, want at most the drain of %s", took, drain)
		}
	}
	stop()

	relay := startLedgers(t, db, options)
	ops := relay.AwaitStreaming()
	testprogram.AwaitPublished(t, db, time.Minute)
	testprogram.AwaitIdle(t, db, ops)
	relay.Stop()
	wantAll(t, db, options.subscribers...)
	wantOrder(t, db)
	if got := repeats(db); got != 0 {
		t.Errorf("%d deliveries were repeated, want none after clean stops", got)
	}
	if got := testprogram.StillToCome(t, db); got != 0 {
		t.Errorf("after the last clean stop the server would send %d events again", got)
	}
	t.Logf("%d stops, the longest took %s; %d events", n, longest.Round(time.Millisecond), db.Int(`SELECT count(*) FROM outbox`))
	endByLosingTheSlot(t, db, options)
}
