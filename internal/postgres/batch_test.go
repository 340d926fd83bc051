package postgres_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// oneSession is a pool of a single session, in which each thing happens after the other.
func oneSession(db *testdb.DB, mode string) *postgres.Pool {
	return db.Open("pool_max_conns=1", "default_query_exec_mode="+mode)
}

func sessionOf(t *testing.T, pool *postgres.Pool) (pid uint32) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// modes are those that the options of a connection and a pooler lead to.
var modes = []string{"cache_statement", "cache_describe", "exec", "simple_protocol"}

func TestInBatch_isOneTransactionInWhichEachStatementSeesTheOnesBefore(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			db := testdb.NewEmpty(t)
			pool := oneSession(db, mode)
			db.Exec(`CREATE TABLE public.numbers (n bigint, written_in xid8 DEFAULT pg_current_xact_id())`)
			var sum int64
			err := postgres.InBatch(t.Context(), pool, func(batch *pgx.Batch) error {
				batch.Queue(`INSERT INTO public.numbers VALUES ($1)`, 41)
				batch.Queue(`INSERT INTO public.numbers SELECT max(n) + 1 FROM public.numbers`)
				batch.Queue(`SELECT sum(n)::bigint FROM public.numbers`).QueryRow(func(row pgx.Row) error { return row.Scan(&sum) })
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if committed := db.Int(`SELECT sum(n)::bigint FROM public.numbers`); sum != 83 || committed != 83 {
				t.Errorf("the numbers add up to %d, and to %d afterwards, want 83", sum, committed)
			}
			if transactions := db.Int(`SELECT count(DISTINCT written_in) FROM public.numbers`); transactions != 1 {
				t.Errorf("written in %d transactions, want 1", transactions)
			}
		})
	}
}

func TestInBatch_leavesNothingBehindAndTheSessionUsable(t *testing.T) {
	queue := func(statements ...string) func(*pgx.Batch) error {
		return func(batch *pgx.Batch) error {
			for _, sql := range statements {
				batch.Queue(sql)
			}
			return nil
		}
	}
	const (
		good     = `INSERT INTO public.numbers VALUES (1)`
		negative = `INSERT INTO public.numbers VALUES (-1)` // against a check
		again    = `INSERT INTO public.numbers VALUES (7)`  // against a constraint that is looked at by the commit
		nowhere  = `INSERT INTO public.elsewhere VALUES (1)`
	)
	refused := errors.New("refused")
	isRefused := func(err error) bool { return errors.Is(err, refused) }
	tests := []struct {
		name  string
		queue func(*pgx.Batch) error
		want  func(error) bool
	}{
		{"first statement", queue(negative, good), hasCode("23514")},
		{"statement between good ones", queue(good, negative, good), hasCode("23514")},
		{"commit", queue(good, again), hasCode("23505")},
		{"a table that is not there", queue(good, nowhere), hasCode("42P01")},
		{"queue itself", func(*pgx.Batch) error { return refused }, isRefused},
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			db := testdb.NewEmpty(t)
			db.Exec(`CREATE TABLE public.numbers (n bigint CHECK (n > 0) UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
			db.Exec(`INSERT INTO public.numbers VALUES (7)`)
			pool := oneSession(db, mode)
			session := sessionOf(t, pool)
			for _, test := range tests {
				if err := postgres.InBatch(t.Context(), pool, test.queue); !test.want(err) {
					t.Errorf("%s: the error is %v", test.name, err)
				}
				if rows := db.Int(`SELECT count(*) FROM public.numbers`); rows != 1 {
					t.Errorf("%s: %d rows, want the one that was there", test.name, rows)
				}
				if got := sessionOf(t, pool); got != session {
					t.Errorf("%s: the session was given up", test.name)
					session = got
				}
			}
		})
	}
}

func hasCode(code string) func(error) bool {
	return func(err error) bool { return postgres.Code(err) == code }
}

func TestInBatch_leavesNothingBehindWhenAValueCannotBeSent(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			db := testdb.NewEmpty(t)
			db.Exec(`CREATE TABLE public.numbers (n bigint)`)
			pool := oneSession(db, mode)
			err := postgres.InBatch(t.Context(), pool, func(batch *pgx.Batch) error {
				batch.Queue(`INSERT INTO public.numbers VALUES (1)`)
				batch.Queue(`INSERT INTO public.numbers VALUES ($1)`, struct{}{})
				return nil
			})
			if err == nil {
				t.Error("it was sent")
			}
			if _, err := pool.Exec(t.Context(), `INSERT INTO public.numbers VALUES (2)`); err != nil {
				t.Errorf("the next statement: %v", err)
			}
			if got, want := db.Texts(`SELECT n::text FROM public.numbers`), []string{"2"}; !slices.Equal(got, want) {
				t.Errorf("numbers are %q, want %q", got, want)
			}
		})
	}
}

func TestInBatch_givesUpASessionWhoseTransactionIsUnfinished(t *testing.T) {
	db := testdb.NewEmpty(t)
	db.Exec(`CREATE TABLE public.numbers (n bigint)`)
	pool := oneSession(db, "cache_statement")
	ctx, cancel := context.WithCancel(t.Context())
	holder, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is rolled back below
	if _, err := holder.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		ended <- postgres.InBatch(ctx, pool, func(batch *pgx.Batch) error {
			batch.Queue(`INSERT INTO public.numbers VALUES (1)`)
			batch.Queue(`SELECT pg_advisory_xact_lock(1)`)
			return nil
		})
	}()
	for db.Int(`SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
			WHERE d.datname = current_database() AND locktype = 'advisory' AND NOT granted`) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the batch never waited")
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want that of the context", err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The next one has a session, and no transaction of someone else.
	if _, err := pool.Exec(t.Context(), `INSERT INTO public.numbers VALUES (2)`); err != nil {
		t.Fatal(err)
	}
	if rows := db.Int(`SELECT count(*) FROM public.numbers WHERE n = 2`); rows != 1 {
		t.Errorf("%d rows, want 1", rows)
	}
}
