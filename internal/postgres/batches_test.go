package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// oneSession is a pool of a single session, in which each thing happens after the other.
func oneSession(t *testing.T, db *testdb.DB, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func sessionOf(t *testing.T, pool *pgxpool.Pool) (pid uint32) {
	t.Helper()
	if err := pool.AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error {
		pid = conn.Conn().PgConn().PID()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return pid
}

// modes are those that the options of a connection and a pooler lead to.
var modes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

func TestInTwoBatches_letsTheLastFollowFromTheFirstInOneTransaction(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			db := testdb.NewEmpty(t)
			pool := oneSession(t, db, mode)
			db.Exec(`CREATE TABLE numbers (n bigint, written_in xid8 DEFAULT pg_current_xact_id())`)
			var n int64
			err := postgres.InTwoBatches(t.Context(), pool, func(batch *pgx.Batch) error {
				batch.Queue(`INSERT INTO numbers VALUES (41) RETURNING n`).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
				return nil
			}, func(batch *pgx.Batch) error {
				batch.Queue(`INSERT INTO numbers VALUES ($1)`, n+1)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if sum := db.Int(`SELECT sum(n)::bigint FROM numbers`); sum != 83 {
				t.Errorf("the numbers add up to %d, want 83", sum)
			}
			if transactions := db.Int(`SELECT count(DISTINCT written_in) FROM numbers`); transactions != 1 {
				t.Errorf("written in %d transactions, want 1", transactions)
			}
		})
	}
}

func TestInTwoBatches_leavesNothingBehindAndTheSessionUsable(t *testing.T) {
	queue := func(statements ...string) func(*pgx.Batch) error {
		return func(batch *pgx.Batch) error {
			for _, sql := range statements {
				batch.Queue(sql)
			}
			return nil
		}
	}
	const (
		good     = `INSERT INTO numbers VALUES (1)`
		negative = `INSERT INTO numbers VALUES (-1)` // against a check
		again    = `INSERT INTO numbers VALUES (7)`  // against a constraint that is looked at by the commit
		nowhere  = `INSERT INTO elsewhere VALUES (1)`
	)
	refused := errors.New("refused")
	tests := []struct {
		name        string
		first, last func(*pgx.Batch) error
		want        func(error) bool
	}{
		{"first statement", queue(negative, good), queue(good), hasCode("23514")},
		{"statement behind a good one", queue(good, negative), queue(good), hasCode("23514")},
		{"last batch", queue(good), queue(good, negative, good), hasCode("23514")},
		{"commit", queue(good), queue(again), hasCode("23505")},
		{"a table that is not there", queue(good), queue(nowhere), hasCode("42P01")},
		{"a table that is not there, at once", queue(good, nowhere), queue(good), hasCode("42P01")},
		{"first itself", func(*pgx.Batch) error { return refused }, queue(good), func(err error) bool { return errors.Is(err, refused) }},
		{"last itself", queue(good), func(*pgx.Batch) error { return refused }, func(err error) bool { return errors.Is(err, refused) }},
		{"a result that is refused", func(batch *pgx.Batch) error {
			batch.Queue(good).Exec(func(pgconn.CommandTag) error { return refused })
			return nil
		}, queue(good), func(err error) bool { return errors.Is(err, refused) }},
		{"a transaction that somebody ends", queue(good), queue("ROLLBACK", `SELECT 1/0`), hasCode("22012")},
	}
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			db := testdb.NewEmpty(t)
			db.Exec(`CREATE TABLE numbers (n bigint CHECK (n > 0) UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
			db.Exec(`INSERT INTO numbers VALUES (7)`)
			pool := oneSession(t, db, mode)
			session := sessionOf(t, pool)
			for _, test := range tests {
				if err := postgres.InTwoBatches(t.Context(), pool, test.first, test.last); !test.want(err) {
					t.Errorf("%s: the error is %v", test.name, err)
				}
				if rows := db.Int(`SELECT count(*) FROM numbers`); rows != 1 {
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

func TestInTwoBatches_leavesNothingBehindWhenItsContextEnds(t *testing.T) {
	db := testdb.NewEmpty(t)
	db.Exec(`CREATE TABLE numbers (n bigint)`)
	pool := oneSession(t, db, pgx.QueryExecModeCacheStatement)
	ctx, cancel := context.WithCancel(t.Context())
	err := postgres.InTwoBatches(ctx, pool, func(batch *pgx.Batch) error {
		batch.Queue(`INSERT INTO numbers VALUES (1)`)
		return nil
	}, func(batch *pgx.Batch) error {
		batch.Queue(`INSERT INTO numbers VALUES (2)`)
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v, want that of the context", err)
	}
	// The next one has a session, and no transaction of somebody else.
	if _, err := pool.Exec(t.Context(), `INSERT INTO numbers VALUES (3)`); err != nil {
		t.Fatal(err)
	}
	if rows := db.Int(`SELECT count(*) FROM numbers`); rows != 1 {
		t.Errorf("%d rows, want 1", rows)
	}
}
