package store_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/testdb"
)

const slot = "s"

// S-106, among others: a record that goes back says that the database has, unless it is the relay that has begun it again.
func TestFence_knowsARecordThatBeginsAgainFromADatabaseThatHasGoneBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, confirmed, state) VALUES ($1, '1', 1, '0/500', 'ready')`, slot)
	fence := store.NewFence(slot)
	if err := fence.Lead(t.Context(), db.Pinned, "us", 0, false); err != nil {
		t.Fatal(err)
	}
	check := func(what string, want error) {
		t.Helper()
		if err := fence.Check(t.Context(), db.Pinned); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	write := func(confirmed string) {
		db.Exec(`UPDATE walpost.slots SET confirmed = $2::text::pg_lsn, records = records + 1 WHERE slot = $1`, slot, confirmed)
	}
	check("as it was led", nil)
	write("0/400")
	check("the record is lower", store.ErrChanged)
	fence.Restart(event.LSN(0x400))
	check("we have made it so", nil)
	fence.Recorded(event.LSN(0x300)) // never back by itself
	write("0/300")
	check("lower once more", store.ErrChanged)
	fence.Restart(0)
	check("again from the beginning", nil)
	write("0/0")
	check("at the beginning", nil)
	fence.Recorded(0) // while a debt holds the position
	write("0/0")
	check("as often as we have recorded something", nil)
	db.Exec(`UPDATE walpost.slots SET records = 0 WHERE slot = $1`, slot)
	check("fewer records", store.ErrChanged)
	db.Exec(`UPDATE walpost.slots SET records = 100 WHERE slot = $1`, slot)
	check("as many again", nil)
	if err := store.NewFence(slot).Lead(t.Context(), db.Pinned, "another", 0, false); err != nil {
		t.Fatal(err)
	}
	check("another has led", store.ErrFenced)
}

// Who waits for the transactions of the last leadership knows what they have written.
func TestFence_leadsWithWhatTheLastLeadershipHasWrittenLast(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, confirmed, state) VALUES ($1, '1', 1, '0/500', 'ready')`, slot)
	last, next := store.NewFence(slot), store.NewFence(slot)
	if err := last.Lead(t.Context(), db.Pinned, "last", 0, false); err != nil {
		t.Fatal(err)
	}
	led := make(chan error, 1)
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		if err := last.HoldTx(t.Context(), tx); err != nil {
			return err
		}
		go func() { led <- next.Lead(t.Context(), db.Pinned, "next", 0, false) }()
		for waits := false; !waits; {
			err := db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%walpost.fence%')`).Scan(&waits)
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
	if err := next.Check(t.Context(), db.Pinned); err != nil {
		t.Errorf("the next leader finds %v", err)
	}
}

// S-61: two transactions that share the lock of one row make a multixact, and wraparound of those stops the server like that
// of transactions. Each connection has a row of its own.
func TestFence_makesNoMultixact(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, nil)) // the number is that of a whole server
	next := func() int64 {
		db.Exec(`CHECKPOINT`)
		return db.Int(`SELECT next_multixact_id::text::bigint FROM pg_control_checkpoint()`)
	}
	fence := store.NewFence(slot)
	if err := fence.Lead(t.Context(), db.Pinned, "us", 0, false); err != nil {
		t.Fatal(err)
	}
	db.Exec(`CREATE TABLE effects (n int)`)
	before := next()
	var load sync.WaitGroup
	for range 8 {
		pool, err := postgres.Open(t.Context(), db.DSN, t.Name())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		for range 2 {
			load.Go(func() {
				for n := range 50 {
					err := postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
						if n%2 == 0 {
							if err := fence.HoldTx(t.Context(), tx); err != nil {
								return err
							}
						}
						batch := &pgx.Batch{}
						if n%2 == 1 { // as a subscriber does
							store.QueueHold(batch, tx, slot, func(term int64, err error) error {
								if err == nil && term != fence.Term() {
									t.Errorf("term %d, want %d", term, fence.Term())
								}
								return err
							})
						}
						batch.Queue(`INSERT INTO public.effects VALUES ($1)`, n)
						batch.Queue(`SELECT FROM pg_catalog.pg_sleep(0.002)`)
						return tx.SendBatch(t.Context(), batch).Close()
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	load.Wait()
	if got, want := db.Int(`SELECT count(*) FROM effects`), int64(8*2*50); got != want {
		t.Errorf("%d transactions, want %d", got, want)
	}
	if made := next() - before; made != 0 {
		t.Errorf("%d multixacts for 800 transactions of 16 connections at once, want none", made)
	}
}
