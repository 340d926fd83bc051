//go:build soak

package soak

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// Printed side by side, not asserted: what live events of the subscriber and of another one wait, without
// and with a replay of 50,000 events at the same time. That each came again once and in order is asserted.
func TestSoak_aReplayIsNotFeltByWhatIsLive(t *testing.T) {
	n := scaled(t, 50_000)
	without := underReplay(t, n, false)
	with := underReplay(t, n, true)
	for _, name := range []string{"replayed", "other"} {
		t.Logf("%-8s live without replay: %s", name, without[name])
		t.Logf("%-8s live with replay:    %s", name, with[name])
	}
}

// underReplay runs a relay under 500 live events a second for a minute, with or without a replay of n older
// rows of the same keys to "replayed", and returns the latencies of what was live.
func underReplay(t *testing.T, n int, replay bool) map[string]latency {
	t.Helper()
	db := testdb.New(t)
	names := []string{"replayed", "other"}
	withLedgers(db, names...)
	options := relayOptions{subscribers: names}
	filling := startLedgers(t, db, options)
	filling.AwaitStreaming()
	db.Exec(`
		INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'old-' || n, 'soak.old', format('key-%s-%s', n % $2::int, n % $3::int), jsonb_build_object('n', n, 'text', repeat('x', 40))
		FROM generate_series(1, $1::int) AS n`, n, writers, keysPerWriter)
	testprogram.AwaitPublished(t, db, 2*time.Minute)
	filling.Stop()
	relay := startLedgers(t, db, options) // whose metrics begin again
	ops := relay.AwaitStreaming()

	seconds := rounds(t, 60)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	var live sync.WaitGroup
	live.Go(func() { insert(ctx, t, db, 0, 1, 500) })
	if replay {
		command := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "replay", "replayed", "--slot="+db.Name,
			"--type=soak.old", fmt.Sprintf("--rate=%d", n/seconds+1), "--yes", "--why=soak")
		testprogram.Within(t, time.Duration(seconds+120)*time.Second, "the replay to be done", func() bool {
			return db.Int(`SELECT count(*) FROM walpost.replays WHERE state = 'done'`) == 1
		})
		t.Logf("%d events replayed in %s with 500 live ones a second: %s", n,
			db.Text(`SELECT (ended_at - started_at)::text FROM walpost.replays`), command.Await(`(Replay \d+ to \S+ is done: .*)`))
	}
	live.Wait()
	testprogram.AwaitPublished(t, db, 2*time.Minute)
	measured := make(map[string]latency)
	for _, name := range names {
		measured[name] = commitToHandled(t, ops, name)
	}
	wantAll(t, db, names...)
	wantOrder(t, db)
	want := int64(0)
	if replay {
		want = int64(n)
	}
	came := db.Int(`SELECT count(*) FROM soak.ledger WHERE replay AND subscriber = 'replayed' AND event_id LIKE 'old-%'`)
	different := db.Int(`SELECT count(DISTINCT event_id) FROM soak.ledger WHERE replay`)
	all := db.Int(`SELECT count(*) FROM soak.ledger WHERE replay`)
	if came != want || different != want || all != want {
		t.Errorf("%d replayed deliveries of %d different events to the one and %d to all, want %d", came, different, all, want)
	}
	relay.Stop()
	endByLosingTheSlot(t, db, options)
	return measured
}
