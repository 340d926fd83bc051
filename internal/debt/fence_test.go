package debt_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
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

// Who waits for the transactions of the last leadership knows what they have written.
func TestFence_leadsWithWhatTheLastLeadershipHasWrittenLast(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, confirmed, state) VALUES ($1, '1', 1, '0/500', 'ready')`, slot)
	last, next := debt.NewFence(slot), debt.NewFence(slot)
	if err := last.Lead(t.Context(), db.Pool, "last"); err != nil {
		t.Fatal(err)
	}
	led := make(chan error, 1)
	err := postgres.InTx(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if err := last.Hold(t.Context(), tx); err != nil {
			return err
		}
		go func() { led <- next.Lead(t.Context(), db.Pool, "next") }()
		for waits := false; !waits; {
			err := db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%walpost.leader%')`).Scan(&waits)
			if err != nil {
				return err
			}
		}
		_, err := tx.Exec(t.Context(), `UPDATE walpost.slots SET confirmed = '0/400' WHERE slot = $1`, slot)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-led; err != nil {
		t.Fatal(err)
	}
	if err := next.Check(t.Context(), db.Pool); err != nil {
		t.Errorf("the next leader finds %v", err)
	}
}
