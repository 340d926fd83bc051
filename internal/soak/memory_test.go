//go:build soak

package soak

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testprogram"
)

// enough is what a relay may take at its peak with the default window of 32 MiB, whatever passes through.
const enough = 256 << 20

// peak is the most memory that the process has had resident so far. (man 5 proc, VmHWM)
func peak(t *testing.T, process *testprogram.Process) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmHWM in %s", status)
	}
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}

func TestSoak_hugeTransactionPassesInBoundedMemory(t *testing.T) {
	db := ownServer(t)
	withLedgers(db, "only")
	relay := startLedgers(t, db, relayOptions{subscribers: []string{"only"}})
	relay.AwaitStreaming()
	rows := scaled(t, 2_000_000)
	db.Exec(insertEvents, 0, 0, rows, keysPerWriter)
	begin := time.Now()
	testprogram.AwaitPublished(t, db, 30*time.Minute)
	took := time.Since(begin)
	if got := peak(t, relay); got > enough {
		t.Errorf("peak memory %d MiB, want at most %d", got>>20, enough>>20)
	}
	t.Logf("%d rows in one transaction: %s, peak memory %d MiB", rows, took.Round(time.Millisecond), peak(t, relay)>>20)
	relay.Stop()
	wantAll(t, db, "only")
	wantOrder(t, db)
	if got := repeats(db); got != 0 {
		t.Errorf("%d deliveries were repeated", got)
	}
	endByLosingTheSlot(t, db, relayOptions{subscribers: []string{"only"}})
}

func TestSoak_hugeDebtPassesInBoundedMemory(t *testing.T) {
	db := ownServer(t)
	withLedgers(db, "away", "present")
	behave(db, "away", "down")
	options := relayOptions{
		top:         "wal_budget: 0",
		subscribers: []string{"away", "present"},
		each:        "stall_after: 1s, retry: {initial: 100ms, max: 1s}",
	}
	relay := startLedgers(t, db, options)
	relay.AwaitStreaming()
	insert(context.Background(), t, db, scaled(t, 1_000_000), 1000, 0)
	rows := db.Int(`SELECT count(*) FROM outbox`)
	begin := time.Now()
	testprogram.Within(t, 30*time.Minute, "all of it to be owed", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE subscriber = 'away' AND state = 'waiting'`) == rows
	})
	t.Logf("%d events owed after %s, peak memory %d MiB", rows, time.Since(begin).Round(time.Millisecond), peak(t, relay)>>20)

	// Half of it is paid by a process that finds all of it at its start.
	relay.Stop()
	relay = startLedgers(t, db, options)
	relay.AwaitStreaming()
	behave(db, "away", "ok")
	begin = time.Now()
	testprogram.AwaitPublished(t, db, 30*time.Minute)
	if got := peak(t, relay); got > enough {
		t.Errorf("peak memory %d MiB, want at most %d", got>>20, enough>>20)
	}
	t.Logf("paid in %s, peak memory %d MiB", time.Since(begin).Round(time.Millisecond), peak(t, relay)>>20)
	relay.Stop()
	wantAll(t, db, options.subscribers...)
	wantOrder(t, db)
	if got := repeats(db); got != 0 {
		t.Errorf("%d deliveries were repeated although nothing was killed", got)
	}
	endByLosingTheSlot(t, db, options)
}
