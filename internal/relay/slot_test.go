package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-15: the slot outlives every connection, and stays while no one reads it.
func TestRelay_makesAPermanentSlotAndKeepsIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := streaming(t, options(t, db, subscribertest.Recording()))
	const made = `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND NOT temporary AND restart_lsn IS NOT NULL`
	if got := db.Int(made, db.Name); got != 1 {
		t.Errorf("%d permanent slots, want 1", got)
	}
	r.shutDown()
	insertAll(db, "a", numbered("away", 3))
	if got := db.Int(made, db.Name); got != 1 {
		t.Errorf("%d permanent slots after a stop, want 1", got)
	}
	sub := subscribertest.Recording()
	streaming(t, options(t, db, sub))
	sub.AwaitDelivered(t, 3)
}

// F-21: there is no heartbeat that could keep WAL; an idle relay lets the server recycle its files.
func TestRelay_letsTheServerRecycleItsWALWhileItIsIdle(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"min_wal_size": "32MB", "max_wal_size": "48MB", "wal_keep_size": "0"}))
	streaming(t, options(t, db, subscribertest.Recording()))
	segment := func() {
		db.Exec(`SELECT pg_logical_emit_message(false, 'junk', 'x'), pg_switch_wal()`)
		db.Exec(`CHECKPOINT`)
	}
	for range 15 {
		segment()
	}
	last := time.Now()
	eventually(t, "a few files of WAL", func() bool {
		// A burst ends a step behind: what the server may let go follows what is confirmed of later WAL.
		if time.Since(last) > time.Second {
			segment()
			last = time.Now()
		}
		return db.Int(`SELECT count(*) FROM pg_ls_waldir()`) <= 5
	})
}

// F-25: a slot that stands keeps vacuum from the system catalogue; a metric says how far.
func TestRelay_showsHowOldTheCatalogueIsThatTheSlotHolds(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	blocked := subscribertest.Blocking()
	defer blocked.Release()
	o := options(t, db, blocked)
	o.WALBudget = relay.Unlimited
	streaming(t, o)
	insert(db, "open", "a")
	blocked.AwaitCalls(t, 1)
	for range 200 {
		db.Exec(`CREATE TEMPORARY TABLE t (x int); DROP TABLE t`)
	}
	eventually(t, "the age", func() bool { return metric(t, o, "walpost_slot_catalog_xmin_age", "") >= 200 })
}

// F-28: a TRUNCATE, an enum and a domain column, other programs' messages and replicated rows.
func TestRelay_passesMessagesThatAreNoEvents(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TYPE mood AS ENUM ('fine'); CREATE DOMAIN amount AS int CHECK (VALUE > 0)`)
	db.Exec(`ALTER TABLE outbox ADD mood mood DEFAULT 'fine', ADD amount amount DEFAULT 1`)
	db.Exec(`CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert, truncate', publish_via_partition_root = true)`)
	sub := keeping(nil)
	o := options(t, db, sub)
	streaming(t, o)
	insert(db, "typed", "a")
	sub.await(t, "typed")
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	db.Exec(`TRUNCATE outbox`)
	db.Exec(`SELECT pg_logical_emit_message(true, 'x', 'y'), pg_logical_emit_message(false, 'x', 'y')`)
	origin := db.Name
	replayed := session(t, db.DSN)
	mustExec(t, replayed, fmt.Sprintf(`SELECT pg_replication_origin_create('%s')`, origin))
	t.Cleanup(func() { db.Exec(`SELECT pg_replication_origin_drop($1)`, origin) })
	mustExec(t, replayed, fmt.Sprintf(`SELECT pg_replication_origin_session_setup('%s')`, origin))
	mustExec(t, replayed, `BEGIN; SELECT pg_replication_origin_xact_setup('0/1', now());
		INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('replicated', 'lesson.completed', 'a', '{}'); COMMIT`)
	mustExec(t, replayed, `SELECT pg_replication_origin_session_reset()`)
	insert(db, "last", "a")
	ev := sub.await(t, "last")
	eventually(t, "the slot has passed all", passed(t, db, ev))
	once(t, sub, []string{"typed", "replicated", "last"})
}
