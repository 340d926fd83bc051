//go:build soak

package soak

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/bench"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// leftBehind counts what a bench makes on a server.
func leftBehind(db *testdb.DB) int64 {
	return db.Int(`
		SELECT (SELECT count(*) FROM pg_database WHERE datname LIKE 'walpost\_bench\_%')
		     + (SELECT count(*) FROM pg_replication_slots WHERE database LIKE 'walpost\_bench\_%')`)
}

// What the figures are depends on the machine; that every bar has one does not.
func TestSoak_benchHasARowForEveryBarAndLeavesNothing(t *testing.T) {
	db := ownServer(t)
	command := exec.CommandContext(t.Context(), testprogram.Binary(t), "bench", "--quick", "--json", "--database-url="+db.DSN)
	var out, said bytes.Buffer
	command.Stdout, command.Stderr = &out, &said
	if err := command.Run(); err != nil {
		t.Fatalf("bench: %v: %s", err, said.String())
	}
	var report bench.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	var table strings.Builder
	if err := report.WriteMarkdown(&table); err != nil {
		t.Fatal(err)
	}
	t.Log(table.String())
	for _, want := range []string{
		"1-row transactions of 250 B: rate", "1-row transactions of 250 B: client CPU", "1-row transactions of 250 B: allocations",
		"transactions of 100 of 250 B: rate", "transactions of 100 of 250 B: client CPU", "transactions of 100 of 250 B: allocations",
		"one huge transaction of 250 B: rate", "one huge transaction of 250 B: client CPU", "one huge transaction of 250 B: allocations",
		"falling into debt", "four built-in subscribers", "webhooks of", "Kafka, records of", "commit to handler: p50", "commit to handler: p99",
		"with four database subscribers: p99", "producer's inserts", "idle relay: share of a core", "idle relay: rows written",
		"completions of walpost api", "peak memory, noop", "peak memory, debt", "peak memory, builtin", "peak memory, webhook",
		"peak memory, one transaction of", "peak memory, latency", "peak memory, producer", "peak memory, idle",
	} {
		found := false
		for _, row := range report.Rows {
			if strings.Contains(row.What, want) {
				found = true
				if row.NotRun == "" && (row.Ours == nil || row.Value == nil || row.Ours.Median < 0) {
					t.Errorf("%s has no figure: %+v", row.What, row)
				}
				if row.NotRun != "" && !strings.Contains(row.NotRun, "pg_recvlogical is not installed") && !strings.Contains(row.NotRun, "/proc") &&
					!strings.Contains(row.NotRun, "--brokers") {
					t.Errorf("%s was not run: %s", row.What, row.NotRun)
				}
			}
		}
		if !found {
			t.Errorf("no row of %q", want)
		}
	}
	if got := leftBehind(db); got != 0 {
		t.Errorf("%d databases and slots of the bench are left", got)
	}
}

func TestSoak_benchThatIsKilledLeavesNothing(t *testing.T) {
	db := ownServer(t)
	for range rounds(t, 10) {
		process := testprogram.Start(t, nil, "bench", "--case=producer", "--turns=100", "--database-url="+db.DSN)
		testprogram.Eventually(t, "a relay of the bench to read a slot", func() bool {
			return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE database LIKE 'walpost\_bench\_%' AND active`) > 0
		})
		testprogram.Pause(t, randomMoment(2e9))
		process.Kill()
		testprogram.Eventually(t, "everything of it to be gone", func() bool { return leftBehind(db) == 0 })
	}
}
