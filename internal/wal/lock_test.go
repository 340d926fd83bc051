package wal_test

import (
	"errors"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/wal"
)

func TestConn_showsThatItLivesByAKeyThatNoOtherCanHave(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first, second := connect(t, db), connect(t, db)
	if err := first.ShowLife(t.Context(), 42); err != nil {
		t.Fatal(err)
	}
	if err := second.ShowLife(t.Context(), 42); !errors.Is(err, wal.ErrSlotInUse) {
		t.Errorf("the second got %v, want ErrSlotInUse", err)
	}
	if err := second.ShowLife(t.Context(), 43); err != nil {
		t.Errorf("another key: %v", err)
	}
}

// The key outlives what is done to the slot.
func TestConn_dropsAndMakesASlotWhileItShowsThatItLives(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	conn := connect(t, db)
	if err := conn.ShowLife(t.Context(), 42); err != nil {
		t.Fatal(err)
	}
	if err := conn.Drop(t.Context(), db.Name); !errors.Is(err, wal.ErrMissing) {
		t.Errorf("dropping what is not there: %v, want ErrMissing", err)
	}
	for range 2 {
		if _, err := conn.CreateSlot(t.Context(), db.Name); err != nil {
			t.Fatal(err)
		}
		if err := conn.Drop(t.Context(), db.Name); err != nil {
			t.Fatal(err)
		}
	}
	if slot, err := wal.FindSlot(t.Context(), db.Pinned, db.Name); slot != nil || err != nil {
		t.Errorf("found %v, %v, want no slot", slot, err)
	}
	if got := db.Int(`SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE d.datname = current_database() AND locktype = 'advisory' AND objid = 42 AND granted`); got != 1 {
		t.Errorf("%d sessions have the key, want the one", got)
	}
}
