package debt_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// explain runs a statement and returns its plan, with what each step read and returned.
func explain(t *testing.T, db *testdb.DB, sql string, args ...any) string {
	t.Helper()
	var plan []string
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		rows, err := tx.Query(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) `+sql, args...)
		if err != nil {
			return err
		}
		plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// From 18 on a number of rows has two decimals.
	return strings.ReplaceAll(strings.Join(plan, "\n"), ".00 loops=", " loops=")
}

var buffers = regexp.MustCompile(`Buffers: shared (?:hit=(\d+))?(?: ?read=(\d+))?`)

// blocks is how many blocks the whole plan read.
func blocks(t *testing.T, plan string) int {
	t.Helper()
	found := buffers.FindStringSubmatch(plan)
	if found == nil {
		t.Fatalf("no buffers in\n%s", plan)
	}
	hit, _ := strconv.Atoi(found[1])
	read, _ := strconv.Atoi(found[2])
	return hit + read
}

// S-361, S-362, S-363: what a read, a start and the look for blocked keys cost does not grow with the debt, nor with the
// keys that fail or are blocked. Rows and blocks are counted; the statistics say that nothing is owed.
func TestStore_readsNoMoreOfALargeDebtThanItWasAskedFor(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`ALTER TABLE walpost.owed SET (autovacuum_enabled = false)`)
	db.Exec(`ANALYZE walpost.owed`)
	// Keys that all fail and are due in an hour, two deliveries of each, and as many keys with a dead letter.
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, bound, ordinal, event_type, key, first_failure, next_attempt)
		SELECT $1, 'sub', 'm', 'e' || i, '', 'waiting', 1, '0/8', '0/8', i, 't', 'k' || i % 10000,
		       CASE WHEN i <= 10000 THEN now() END, CASE WHEN i <= 10000 THEN now() + '1h'::interval END
		FROM generate_series(1, 20000) i`, slot)
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, bound, ordinal, event_type, key)
		SELECT $1, 'sub', 'm', 'd' || i, '', 'dead', 1, '0/8', '0/8', i, 't', 'd' || i FROM generate_series(1, 10000) i`, slot)

	plan := explain(t, db, debt.WaitingSQL, slot, "sub", int32(1), "0/8", int64(0), []string{}, 100, int64(1<<20), "key", []string{}, time.Now(), []string{"m"}, 500, true)
	if got := strings.Count(plan, "(actual rows=500 "); got < 2 || strings.Contains(plan, "(actual rows=20000 ") {
		t.Errorf("a read of 500: got\n%s", plan)
	}
	// Of each one its place in the order, its row, its key among those that fail and among the dead.
	if got, most := blocks(t, plan), 500*12; got > most {
		t.Errorf("a read of 500 takes %d blocks, want at most %d", got, most)
	}
	plan = explain(t, db, debt.LoadSQL, slot, "sub", int32(1), "0/10", int32(1), int64(0))
	if got, most := blocks(t, plan), 100; got > most {
		t.Errorf("a start takes %d blocks in addition to its page, want at most %d:\n%s", got, most, plan)
	}
	plan = explain(t, db, debt.BlockedSQL, slot, "sub", int64(11))
	if got, most := blocks(t, plan), 100; got > most {
		t.Errorf("the first 11 blocked keys take %d blocks, want at most %d:\n%s", got, most, plan)
	}
}
