package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-175: what waits for a lock says so, with the pid and the query that hold it, when all of the pool waits, too.
func TestPool_namesWhoHoldsALockThatItWaitsFor(t *testing.T) {
	db := testdb.New(t)
	pool, err := postgres.Open(t.Context(), db.DSN+"&pool_max_conns=1", "walpost/waits")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	holder, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(context.Background())
	if _, err := holder.Exec(t.Context(), `BEGIN; LOCK TABLE outbox`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := pool.Exec(t.Context(), `UPDATE public.outbox SET attempts = 0`)
		ended <- err
	}()
	told := make(chan postgres.LockWait, 10)
	watching, end := context.WithCancel(t.Context())
	defer end()
	go pool.WatchLockWaits(watching, func(wait postgres.LockWait) { told <- wait })
	select {
	case wait := <-told:
		if !strings.Contains(wait.Query, "UPDATE public.outbox") || !strings.Contains(wait.By, "LOCK TABLE outbox") || !strings.Contains(wait.By, "idle in transaction since") {
			t.Errorf("told %s", wait)
		}
	case <-time.After(time.Minute):
		t.Fatal("no one says that a statement waits")
	}
	if _, err := holder.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(told) != 0 {
		t.Errorf("told again of %s", <-told)
	}
	if waits, err := pool.FindLockWaits(t.Context(), 0); err != nil || len(waits) != 0 {
		t.Errorf("nothing waits any more: %v %v", waits, err)
	}
}

// S-346: a relay's role sees of another role's session neither state nor query: what is told of it has no holes, and says
// who would see more.
func TestPool_saysThatItMayNotSeeWhatHoldsALock(t *testing.T) {
	db := testdb.New(t)
	role := "waits_" + db.Text(`SELECT current_database()`)
	db.Exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'; GRANT UPDATE ON public.outbox TO ` + role)
	t.Cleanup(func() { db.Exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role) })
	config, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := postgres.Open(t.Context(), fmt.Sprintf("host=%s port=%d dbname=%s user=%s password=secret sslmode=disable", config.Host, config.Port, config.Database, role), "walpost/waits")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	holder, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(context.Background())
	if _, err := holder.Exec(t.Context(), `BEGIN; LOCK TABLE outbox`); err != nil {
		t.Fatal(err)
	}
	working, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := pool.Exec(working, `UPDATE public.outbox SET attempts = 0`)
		ended <- err
	}()
	defer func() { end(); <-ended }()
	told := make(chan postgres.LockWait, 10)
	go pool.WatchLockWaits(working, func(wait postgres.LockWait) { told <- wait })
	select {
	case wait := <-told:
		if !strings.Contains(wait.By, "pg_read_all_stats") || strings.Contains(wait.By, "insufficient") || strings.Contains(wait.By, "since") {
			t.Errorf("told %s", wait)
		}
	case <-time.After(time.Minute):
		t.Fatal("no one says that a statement waits")
	}
}
