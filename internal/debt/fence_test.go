package debt_test

import (
	"errors"
	"testing"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/testdb"
)

// A record that goes back says that the database has, unless it is the relay that has begun it anew.
func TestFence_knowsARecordThatBeginsAnewFromADatabaseThatHasGoneBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, confirmed, state) VALUES ($1, '1', 1, '0/500', 'ready')`, slot)
	fence := debt.NewFence(slot)
	if err := fence.Lead(t.Context(), db.Pool, "us"); err != nil {
		t.Fatal(err)
	}
	check := func(what string, want error) {
		t.Helper()
		if err := fence.Check(t.Context(), db.Pool); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	write := func(confirmed string) {
		db.Exec(`UPDATE walpost.slots SET confirmed = $2::text::pg_lsn WHERE slot = $1`, slot, confirmed)
	}
	check("as it was led", nil)
	write("0/400")
	check("the record is lower", debt.ErrChanged)
	fence.Restart(event.LSN(0x400))
	check("we have made it so", nil)
	fence.Recorded(event.LSN(0x300)) // never back by itself
	write("0/300")
	check("lower once more", debt.ErrChanged)
	fence.Restart(0)
	check("anew from the beginning", nil)
	write("0/0")
	check("at the beginning", nil)
	if err := debt.NewFence(slot).Lead(t.Context(), db.Pool, "another"); err != nil {
		t.Fatal(err)
	}
	check("another has led", debt.ErrFenced)
}
