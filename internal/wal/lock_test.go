package wal_test

import (
	"errors"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/wal"
)

func TestConn_oneSessionAtATimeHasTheLockOfASlot(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	holder := func() int {
		t.Helper()
		pid, err := wal.LockHolder(t.Context(), db.Pool, db.Name)
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	first, second := connect(t, db), connect(t, db)
	if got := holder(); got != 0 {
		t.Errorf("pid %d has the lock before anybody took it", got)
	}
	if err := first.Lock(t.Context(), db.Name); err != nil {
		t.Fatal(err)
	}
	was := holder()
	if was == 0 {
		t.Error("nobody is seen to have the lock")
	}
	if err := second.Lock(t.Context(), db.Name); !errors.Is(err, wal.ErrSlotInUse) {
		t.Errorf("the second got %v, want ErrSlotInUse", err)
	}
	if err := second.Lock(t.Context(), db.Name+"_other"); err != nil {
		t.Errorf("the lock of another slot: %v", err)
	}
	first.Close() // the server may notice a moment later
	if err := second.Lock(t.Context(), db.Name); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
	if got := holder(); got == 0 || got == was {
		t.Errorf("pid %d has the lock, want that of the second", got)
	}
}

// The lock outlives what is done to the slot, and with it goes the right to do it.
func TestConn_dropsAndMakesASlotUnderItsLock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	conn := connect(t, db)
	if err := conn.Lock(t.Context(), db.Name); err != nil {
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
	if slot, err := wal.FindSlot(t.Context(), db.Pool, db.Name); slot != nil || err != nil {
		t.Errorf("found %v, %v, want no slot", slot, err)
	}
	if pid, err := wal.LockHolder(t.Context(), db.Pool, db.Name); pid == 0 || err != nil {
		t.Errorf("pid %d has the lock, %v", pid, err)
	}
}
