package wal_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/wal"
)

// S-180: a standby loses a slot for reasons of its own, from 16 on, when standbys have logical slots at all. (On a
// primary: package doctor.)
func TestFindSlot_saysWhyAStandbyHasLostASlot(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lose func(t *testing.T, primary *pgserver.Server, db *testdb.DB)
		want string
	}{
		"rows are gone": {func(_ *testing.T, _ *pgserver.Server, db *testdb.DB) {
			db.Exec(`CREATE TABLE dies (id int)`)
			db.Exec(`DROP TABLE dies`)
			db.Exec(`VACUUM pg_catalog.pg_class, pg_catalog.pg_attribute`)
		}, "without hot_standby_feedback"},
		"the primary's WAL is logical no more": {func(t *testing.T, primary *pgserver.Server, db *testdb.DB) {
			db.Exec(`ALTER SYSTEM SET wal_level = 'replica'`)
			if err := primary.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			db.Pool.Reset()
		}, "no longer logical"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := testdb.NewServer(t, map[string]string{"autovacuum": "off"})
			db := testdb.On(t, primary)
			standby := testdb.NewStandby(t, primary, map[string]string{"hot_standby_feedback": "off"})
			if !makeSlotOnStandby(t, db, standby) {
				return
			}
			test.lose(t, primary, db)
			slot := awaitLostOnStandby(t, connectTo(t, standby.DSN(db.Name)))
			if slot.Invalidation == "" { // 16 does not say
				test.want = "recovery on this standby"
			}
			if got := slot.LostReason(); !strings.Contains(got, test.want) {
				t.Errorf("%+v: %q, want %q in it", slot, got, test.want)
			}
		})
	}
}

// makeSlotOnStandby makes the slot "here"; it reports false on a version whose standbys have none.
func makeSlotOnStandby(t *testing.T, db *testdb.DB, standby *pgserver.Server) bool {
	t.Helper()
	conn := connectTo(t, standby.DSN(db.Name))
	made := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), `SELECT pg_create_logical_replication_slot('here', 'pgoutput')`)
		made <- err
	}()
	if db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < 16 {
		if err := <-made; err == nil || !strings.Contains(err.Error(), "recovery") {
			t.Errorf("a standby without logical slots answers %v", err)
		}
		return false
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-made:
			if err != nil {
				t.Fatal(err)
			}
			return true
		case <-tick.C: // it waits for a record of what runs on the primary
			db.Exec(`SELECT pg_log_standby_snapshot()`)
		}
	}
}

func awaitLostOnStandby(t *testing.T, conn *pgx.Conn) *wal.Slot {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		slot, err := wal.FindSlot(t.Context(), conn, "here")
		if err != nil {
			t.Fatal(err)
		}
		if slot.Lost() {
			return slot
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the slot is not lost")
		case <-tick.C:
		}
	}
}

func connectTo(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}
