//go:build soak

package soak

import (
	"context"
	crand "crypto/rand"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// lockedKeys is few, so that writers meet at them.
const lockedKeys = 20

// insertLocked takes the lock of the key's row before it draws an id, so that ids of a key have the order of
// their commits.
const insertLocked = `
	WITH locked AS MATERIALIZED (SELECT key FROM soak.keys WHERE key = $1 FOR UPDATE)
	INSERT INTO outbox (event_id, event_type, partition_key, payload)
	SELECT $2, 'soak.written', key, '{"n": 1}' FROM locked`

// F-06, F-07, F-35: the slot is dropped, invalidated, or moved to a standby that is promoted, with and without it, while eight
// writers write. The relay repairs it each time from the table, and is never told.
func TestSoak_slotIsLostOverAndOverUnderLoad(t *testing.T) {
	server := testdb.NewServer(t, map[string]string{
		// A backlog that is recorded and paid is WAL too, and restart_lsn follows the confirmed position only every
		// 15 s: with less a repair of a busy machine's backlog would lose the slot again.
		"max_slot_wal_keep_size": "128MB", "min_wal_size": "128MB", "max_wal_size": "256MB", "wal_keep_size": "0",
	})
	db := testdb.On(t, server)
	names := []string{"one", "two"}
	db.Exec(strings.ReplaceAll(ledgerTables, "UNLOGGED", "")) // a crash empties unlogged tables
	for _, name := range names {
		behave(db, name, "ok")
	}
	db.Exec(`CREATE TABLE soak.keys AS SELECT 'key-' || n AS key FROM generate_series(1, $1) n`, lockedKeys)
	options := relayOptions{subscribers: names, each: "batch: 100, concurrency: 4"}
	relay := startLedgers(t, db, options)
	relay.AwaitStreaming()

	stop := until(func(ctx context.Context) { writeLocked(ctx, t, db) })
	defer stop()
	repairs := func() int64 { return db.Int(`SELECT count(*) FROM walpost.audit WHERE action = 'repair'`) }
	ways := []func(){
		func() { dropSlot(t, db) },
		func() { invalidateSlot(db, repairs) },
		func() { failOver(t, db, server, false) },
		func() { failOver(t, db, server, true) },
	}
	n := rounds(t, 50)
	for round := range n {
		before := repairs()
		testprogram.Pause(t, randomMoment(500*time.Millisecond))
		ways[round%len(ways)]()
		testprogram.Within(t, 2*time.Minute, "a repair", func() bool { return repairs() > before })
	}
	stop()
	testprogram.Within(t, 2*time.Minute, "everything is marked and nothing is owed", func() bool {
		return db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0 &&
			debttest.Waiting(db) == 0
	})
	relay.Stop()
	wantAll(t, db, names...)
	wantOrder(t, db)
	if told, made := int64(strings.Count(relay.Output(), "repaired: every unpublished row")), repairs(); told != made || made < int64(n) {
		t.Errorf("%d repairs in %d rounds, %d of them told in the log", made, n, told)
	}
	t.Logf("%d losses, %d repairs of %s, %d events, %d came again; a repair took %s s, longest %s s", n, repairs(),
		db.Text(`SELECT string_agg(kind || ': ' || n, ', ') FROM (SELECT what->>'kind' AS kind, count(*) AS n FROM walpost.audit WHERE action = 'repair' GROUP BY 1) k`),
		db.Int(`SELECT count(*) FROM outbox`), repeats(db),
		db.Text(`SELECT round(percentile_cont(0.5) WITHIN GROUP (ORDER BY (what->>'took_seconds')::float)::numeric, 3)::text FROM walpost.audit WHERE action = 'repair'`),
		db.Text(`SELECT round(max((what->>'took_seconds')::numeric), 3)::text FROM walpost.audit WHERE action = 'repair'`))
	endByLosingTheSlot(t, db, options)
}

// writeLocked writes until ctx ends. While the server is away a write fails: whether it committed is told by
// the table.
func writeLocked(ctx context.Context, t *testing.T, db *testdb.DB) {
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			every(ctx, 40*time.Millisecond, func() {
				_, err := db.Pool.Exec(ctx, insertLocked, "key-"+strconv.Itoa(1+rand.N(lockedKeys)), crand.Text())
				var refused *pgconn.PgError
				if errors.As(err, &refused) && refused.Code[:2] != "57" && refused.Code != "25006" && ctx.Err() == nil { // shut down; a standby still
					t.Errorf("write an event: %v", err)
				}
			})
		})
	}
	writers.Wait()
}

// dropSlot drops the slot as soon as no one reads it.
func dropSlot(t *testing.T, db *testdb.DB) {
	testprogram.Eventually(t, "the slot is dropped", func() bool {
		_, err := db.Pool.Exec(t.Context(), `
			SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE slot_name = $1 AND active`, db.Name)
		if err == nil {
			_, err = db.Pool.Exec(t.Context(), `SELECT pg_drop_replication_slot($1)`, db.Name)
		}
		return err == nil
	})
}

// invalidateSlot writes WAL until the slot was lost and repaired.
func invalidateSlot(db *testdb.DB, repairs func() int64) {
	for before := repairs(); repairs() == before; {
		for range 10 {
			db.Exec(`SELECT pg_logical_emit_message(false, 'junk', 'x'), pg_switch_wal()`)
		}
		db.Exec(`CHECKPOINT`)
	}
}

// failOver crashes the server and promotes a standby with the same data.
func failOver(t *testing.T, db *testdb.DB, server *pgserver.Server, slots bool) {
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	testdb.Promote(t, server, slots)
	db.Pool.Reset()
}
