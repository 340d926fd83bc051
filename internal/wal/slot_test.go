package wal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testwait"
	"github.com/backendstart/walpost/internal/wal"
)

// eventually waits for what no channel tells.
var eventually = testwait.Eventually

func find(t *testing.T, db *testdb.DB, name string) *wal.Slot {
	t.Helper()
	slot, err := wal.FindSlot(t.Context(), db.Pinned, name)
	if err != nil {
		t.Fatal(err)
	}
	if slot == nil {
		t.Fatalf("slot %q was not found", name)
	}
	return slot
}

// wantSetup checks that an error is one for a person, and what it says.
func wantSetup(t *testing.T, err error, words ...string) {
	t.Helper()
	var setup *wal.SetupError
	if !errors.As(err, &setup) {
		t.Fatalf("got %v, want a SetupError", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

// F-63: NULLs of every kind of slot.
func TestFindSlot_readsSlotsOfEveryKind(t *testing.T) {
	server := testdb.NewServer(t, map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"})
	db, other := testdb.On(t, server), testdb.On(t, server)
	db.Exec(`SELECT pg_create_logical_replication_slot('lost', 'pgoutput')`)
	db.Exec(`CREATE TABLE junk (x text)`)
	eventually(t, "a lost slot", func() bool {
		db.Exec(`INSERT INTO junk VALUES ('x')`)
		db.Exec(`SELECT pg_switch_wal()`)
		db.Exec(`CHECKPOINT`)
		return find(t, db, "lost").Lost()
	})
	db.Exec(`SELECT pg_create_physical_replication_slot('physical')`)
	db.Exec(`SELECT pg_create_logical_replication_slot('never_used', 'pgoutput')`)
	other.Exec(`SELECT pg_create_logical_replication_slot('other_database', 'pgoutput')`)
	db.Exec(`SELECT pg_create_logical_replication_slot('other_plugin', 'test_decoding')`)
	conn, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), `SELECT pg_create_logical_replication_slot('temporary', 'pgoutput', true)`); err != nil {
		t.Fatal(err)
	}

	if slot, err := wal.FindSlot(t.Context(), db.Pinned, "missing"); slot != nil || err != nil {
		t.Errorf("a slot that is not there: %v, %v; want nil, nil", slot, err)
	}
	for _, test := range []struct {
		name, plugin, database, status string
		active, temporary, confirmed   bool
		usable                         bool
	}{
		{"lost", "pgoutput", db.Name, "lost", false, false, true, true},
		{"physical", "", "", "", false, false, false, false},
		{"never_used", "pgoutput", db.Name, "reserved", false, false, true, true},
		{"other_database", "pgoutput", other.Name, "reserved", false, false, true, false},
		{"other_plugin", "test_decoding", db.Name, "reserved", false, false, true, false},
		{"temporary", "pgoutput", db.Name, "reserved", true, true, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			slot := find(t, db, test.name)
			got := fmt.Sprint(slot.Plugin, slot.Database, slot.WALStatus, slot.Active, slot.Temporary, slot.Confirmed != 0, slot.ActivePID != 0)
			want := fmt.Sprint(test.plugin, test.database, test.status, test.active, test.temporary, test.confirmed, test.active)
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if slot.LagBytes < 0 || slot.RetainedBytes < 0 {
				t.Errorf("lag %d, retained %d; want none negative", slot.LagBytes, slot.RetainedBytes)
			}
			if got := slot.Lost(); got != (test.name == "lost") {
				t.Errorf("lost: %v", got)
			}
			if err := slot.Check(); (err == nil) != test.usable {
				t.Errorf("check says %v, want usable: %v", err, test.usable)
			}
			reg := prometheus.NewRegistry()
			wal.NewMetrics(reg, reg, new(wal.Progress)).Observe(time.Now(), slot, nil)
			gathered, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range gathered {
				for _, m := range family.GetMetric() {
					value := m.GetGauge().GetValue()
					if value < 0 && family.GetName() != "walpost_slot_safe_wal_bytes" || value > 1<<50 && family.GetName() != "walpost_slot_seconds_until_lost" {
						t.Errorf("%s is %v", family.GetName(), value)
					}
					if family.GetName() == "walpost_slot_wal_status" {
						if got, want := value == 1, m.GetLabel()[0].GetValue() == test.status; got != want {
							t.Errorf("wal_status %s shown: %v, want %v", m.GetLabel()[0].GetValue(), got, want)
						}
					}
				}
			}
		})
	}
}

func TestPreflight_countsSlotsOnlyWhenOneIsToBeMade(t *testing.T) {
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"max_replication_slots": "1"}))
	if err := wal.Preflight(t.Context(), db.Pinned, false); err != nil {
		t.Errorf("a free slot: %v", err)
	}
	db.Exec(`SELECT pg_create_logical_replication_slot('ours', 'pgoutput')`)
	if err := wal.Preflight(t.Context(), db.Pinned, true); err != nil {
		t.Errorf("our own slot is the last one: %v", err)
	}
	wantSetup(t, wal.Preflight(t.Context(), db.Pinned, false), "[ours]", "max_replication_slots")

	// F-24: and when another one was faster after the check.
	conn := connect(t, db)
	_, err := conn.CreateSlot(t.Context(), "second")
	wantSetup(t, err, "all replication slots", "max_replication_slots")
}

func TestMakePublication_makesOneThatWeWouldAccept(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE SCHEMA "Odd ""one"; CREATE TABLE "Odd ""one"."T.able" (id int)`)
	tables := []pgx.Identifier{{"public", "outbox"}, {`Odd "one`, "T.able"}}
	for range 2 { // the second time it is there
		if err := wal.MakePublication(t.Context(), db.Pinned, `od"d`, tables); err != nil {
			t.Fatal(err)
		}
	}
	got := db.Text(`SELECT concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot) FROM pg_publication WHERE pubname = 'od"d'`)
	if want := "t f f f t"; got != want {
		t.Errorf("publishes insert, update, delete, truncate, via root: %s, want %s", got, want)
	}
	wantSetup(t, wal.MakePublication(t.Context(), db.Pinned, "new", []pgx.Identifier{{"public", "none"}}), "does not exist", "walpost migrate")
	db.Exec(`CREATE UNLOGGED TABLE loose (id int)`)
	wantSetup(t, wal.MakePublication(t.Context(), db.Pinned, "new", []pgx.Identifier{{"public", "loose"}}), "logged table")
}

// A table that was dropped and made again is not in a publication any more.
func TestAddTables_addsATableThatWasMadeAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	tables := []pgx.Identifier{{"public", "outbox"}}
	if err := wal.MakePublication(t.Context(), db.Pinned, "walpost", tables); err != nil {
		t.Fatal(err)
	}
	db.Exec(`DROP TABLE outbox; CREATE TABLE outbox (id int PRIMARY KEY)`)
	for range 2 { // the second time it is there
		if err := wal.AddTables(t.Context(), db.Pinned, "walpost", tables); err != nil {
			t.Fatal(err)
		}
	}
	if got := db.Int(`SELECT count(*) FROM pg_publication_tables WHERE pubname = 'walpost'`); got != 1 {
		t.Errorf("%d tables are published, want 1", got)
	}
	db.Exec(`CREATE PUBLICATION everything FOR ALL TABLES`)
	wantSetup(t, wal.AddTables(t.Context(), db.Pinned, "everything", tables), `does not publish "public"."outbox"`)
}
