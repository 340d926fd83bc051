package wal_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/wal"
)

// S-180: a standby loses a slot for reasons of its own, from 16 on, when standbys have logical slots at all. (On a
// primary: package doctor.)
func TestFindSlot_saysWhyAStandbyHasLostASlot(t *testing.T) {
	t.Parallel()
	primary := testdb.NewServer(t, map[string]string{"autovacuum": "off"})
	db := testdb.On(t, primary)
	standby := testdb.NewStandby(t, primary, map[string]string{"hot_standby_feedback": "off"})
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), standby.DSN(db.Name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
		return conn
	}
	making, asking := connect(), connect()
	made := make(chan error, 1)
	go func() {
		_, err := making.Exec(t.Context(), `SELECT pg_create_logical_replication_slot('here', 'pgoutput')`)
		made <- err
	}()
	if db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < 16 {
		if err := <-made; err == nil || !strings.Contains(err.Error(), "recovery") {
			t.Errorf("a standby without logical slots answers %v", err)
		}
		return
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for waits := true; waits; {
		select {
		case err := <-made:
			if err != nil {
				t.Fatal(err)
			}
			waits = false
		case <-tick.C: // it waits for a record of what runs on the primary
			db.Exec(`SELECT pg_log_standby_snapshot()`)
		}
	}
	db.Exec(`CREATE TABLE dies (id int)`)
	db.Exec(`DROP TABLE dies`)
	db.Exec(`VACUUM pg_catalog.pg_class, pg_catalog.pg_attribute`)
	var slot *wal.Slot
	for {
		var err error
		if slot, err = wal.FindSlot(t.Context(), asking, "here"); err != nil {
			t.Fatal(err)
		}
		if slot.Lost() {
			break
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the slot is not lost")
		case <-tick.C:
		}
	}
	want := "without hot_standby_feedback"
	if slot.Invalidation == "" { // 16 does not say
		want = "recovery on this standby"
	}
	if got := slot.LostReason(); !strings.Contains(got, want) {
		t.Errorf("%+v: %q, want %q in it", slot, got, want)
	}
}
