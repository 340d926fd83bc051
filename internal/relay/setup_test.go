package relay_test

import (
	"errors"
	"testing"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/migrations"
)

// F-24: what is wrong is found before anything is made, however often it is tried.
func TestRelay_makesNoSlotWhileItCannotStart(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*testing.T, *testdb.DB, *relay.Options) (words []string){
		"table missing": func(_ *testing.T, db *testdb.DB, _ *relay.Options) []string {
			db.Exec(`DROP TABLE outbox`)
			return []string{"public.outbox", "create it"}
		},
		"column missing": func(_ *testing.T, db *testdb.DB, _ *relay.Options) []string {
			db.Exec(`ALTER TABLE outbox DROP COLUMN event_type`)
			return []string{"event type", "columns.type"}
		},
		"publication of another table": func(_ *testing.T, db *testdb.DB, _ *relay.Options) []string {
			db.Exec(`CREATE PUBLICATION walpost FOR TABLE lesson_progress`)
			// It may belong to another program: no statement that changes it.
			return []string{`publication "walpost" does not publish "public"."outbox"`, "let its owner add them", "WALPOST_PUBLICATION"}
		},
		"publication without inserts": func(_ *testing.T, db *testdb.DB, _ *relay.Options) []string {
			db.Exec(`CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'update')`)
			return []string{`publication "walpost" does not publish inserts`, "let the owner of this one publish inserts", "WALPOST_PUBLICATION"}
		},
		"no right to replicate": func(t *testing.T, db *testdb.DB, o *relay.Options) []string {
			role, dsn := role(t, db, "LOGIN")
			o.ReplicationURL = dsn
			return []string{`ALTER ROLE "` + role + `" REPLICATION`}
		},
		"no right to make the publication": func(t *testing.T, db *testdb.DB, o *relay.Options) []string {
			role, dsn := role(t, db, "LOGIN REPLICATION")
			db.Exec(`GRANT USAGE ON SCHEMA walpost TO ` + role)
			db.Exec(`GRANT SELECT ON ALL TABLES IN SCHEMA walpost, public TO ` + role)
			db.Exec(`GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walpost TO ` + role)
			o.ReplicationURL, o.Pool = dsn, openPool(t, dsn, 4)
			return []string{`CREATE PUBLICATION "walpost" FOR TABLE "public"."outbox" WITH (publish = 'insert'`}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			o := options(t, db, subscribertest.Recording())
			words := spoil(t, db, &o)
			for range 3 {
				again := options(t, db, subscribertest.Recording())
				again.ReplicationURL, again.Pool = o.ReplicationURL, o.Pool
				wantWords(t, start(t, again).refused(), words...)
			}
			wantNoSlot(t, db)
		})
	}
}

// F-24: a creation that broke off leaves at most the slot that the next start takes up. The server notices that
// no one waits for it any more, so the next one begins while the transaction that it waits for is still open.
func TestRelay_makesOneSlotHoweverOftenItsCreationBreaksOff(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil) // a transaction that stays open would hold up the other tests' slots
	db := testdb.On(t, server)
	commit := early(t, db, "early")
	const slots = `SELECT count(*) FROM pg_replication_slots`
	var waiting int64 // pid of the session that makes the slot
	for range 3 {
		line, dsn := newLine(t, db.DSN)
		o := options(t, db, subscribertest.Recording())
		o.Pool, o.ReplicationURL = openPool(t, dsn, 4), dsn
		r := start(t, o)
		eventually(t, "another creation that waits", func() bool {
			before := waiting
			waiting = max(before, db.Int(`SELECT coalesce(max(pid), 0) FROM pg_stat_activity
				WHERE backend_type = 'walsender' AND wait_event = 'transactionid' AND pid <> $1`, before))
			return waiting != before
		})
		if got := db.Int(slots); got != 1 {
			t.Fatalf("%d slots, want 1", got)
		}
		line.end()
		r.stop()
	}
	commit()
	sub := subscribertest.Recording()
	streaming(t, options(t, db, sub))
	if got := sub.AwaitDelivered(t, 1); got[0] != "early" {
		t.Errorf("delivered %v, want the early row", got)
	}
	if got := db.Int(slots); got != 1 {
		t.Errorf("%d slots, want 1", got)
	}
}

// F-24: error 53400 explained with the names of the slots in use.
func TestRelay_namesTheSlotsWhenNoneIsFree(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"max_replication_slots": "1"}))
	db.Exec(`SELECT pg_create_physical_replication_slot('someone_elses')`)
	r := start(t, options(t, db, subscribertest.Recording()))
	wantWords(t, r.refused(), "someone_elses", "max_replication_slots")
	wantNoSlot(t, db)
}

func TestRelay_saysHowToTurnLogicalDecodingOn(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"wal_level": "replica"}))
	r := start(t, options(t, db, subscribertest.Recording()))
	wantWords(t, r.refused(), "wal_level", "ALTER SYSTEM SET wal_level = 'logical'")
}

func TestRelay_leavesSlotsOfOthersAlone(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(t *testing.T, db *testdb.DB) (words []string){
		"another plugin": func(_ *testing.T, db *testdb.DB) []string {
			db.Exec(`SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, db.Name)
			return []string{"test_decoding", "--slot"}
		},
		"physical": func(_ *testing.T, db *testdb.DB) []string {
			db.Exec(`SELECT pg_create_physical_replication_slot($1)`, db.Name)
			return []string{"--slot"}
		},
		"another database": func(t *testing.T, db *testdb.DB) []string {
			other := testdb.NewEmpty(t)
			other.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, db.Name)
			return []string{other.Name, "--slot"}
		},
		"temporary": func(t *testing.T, db *testdb.DB) []string {
			mustExec(t, session(t, db.DSN), `SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)`, db.Name)
			return []string{"temporary"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			words := make(t, db)
			wantWords(t, start(t, options(t, db, subscribertest.Recording())).refused(), words...)
			if got := db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, db.Name); got != 1 {
				t.Errorf("%d slots of that name, want the one that was there", got)
			}
			db.Exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT temporary`, db.Name)
		})
	}
}

// F-63: other slots of the server are none of our business.
func TestRelay_startsNextToSlotsOfEveryKind(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`SELECT pg_create_physical_replication_slot($1)`, db.Name+"_physical")
	db.Exec(`SELECT pg_create_physical_replication_slot($1, true)`, db.Name+"_reserved")
	t.Cleanup(func() {
		db.Exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE $1 || '\__%' AND NOT temporary`, db.Name)
	})
	testdb.NewEmpty(t).Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, db.Name+"_other_database")
	db.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, db.Name+"_never_used")
	mustExec(t, session(t, db.DSN), `SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)`, db.Name+"_temporary")
	sub := subscribertest.Recording()
	o := options(t, db, sub)
	streaming(t, o)
	insert(db, "e", "a")
	sub.AwaitDelivered(t, 1)
	eventually(t, "metrics of our slot", func() bool {
		return metric(t, o, "walpost_slot_active", "") == 1 && metric(t, o, "walpost_slot_wal_status", "status=reserved") == 1
	})
}

func TestRelay_stopsWhenTheSchemaIsBehind(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	r := start(t, options(t, db, subscribertest.Recording()))
	if err := r.wait(); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("relay ended with %v, want ErrBehind", err)
	} else {
		wantWords(t, err, "walpost migrate")
	}
	wantNoSlot(t, db)
}

// The server is not there yet: that is no reason to give up.
func TestRelay_waitsForPostgresAndSaysSo(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	sub := subscribertest.Recording()
	r := start(t, options(t, db, sub))
	eventually(t, "reconnecting", func() bool { return r.Health().State == relay.Reconnecting })
	if h := r.Health(); h.Ready || len(h.Problems) == 0 {
		t.Errorf("health %+v while Postgres is away, want not ready and a reason", h)
	}
	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.awaitStreaming()
	db.Pool.Reset()
	insert(db, "e", "a")
	sub.AwaitDelivered(t, 1)
}
