package migrations_test

import (
	"context"
	"errors"
	"hash/crc32"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3/lock"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/migrations"
)

var both = []migrations.Set{migrations.Walpost, migrations.Lessons}

func TestUp_appliesEachMigrationOnceAndSaysSo(t *testing.T) {
	db := testdb.NewEmpty(t)
	for _, want := range []int{3, 0} {
		var log strings.Builder
		if err := migrations.Up(t.Context(), db.DSN, slog.New(slog.NewTextHandler(&log, nil)), both...); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "migration applied"); got != want {
			t.Errorf("%d migrations logged, want %d:\n%s", got, want, log.String())
		}
	}
	if err := migrations.Check(t.Context(), db.Pinned, both...); err != nil {
		t.Error(err)
	}
}

func TestUp_leavesTheLessonsOutWhenNobodyAsksForThem(t *testing.T) {
	db := testdb.NewEmpty(t)
	if err := migrations.Up(t.Context(), db.DSN, slog.New(slog.DiscardHandler), migrations.Walpost); err != nil {
		t.Fatal(err)
	}
	if got := db.Texts("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'"); len(got) != 0 {
		t.Errorf("public has %v, want nothing", got)
	}
	if err := migrations.Check(t.Context(), db.Pinned, migrations.Walpost); err != nil {
		t.Error(err)
	}
	if err := migrations.Check(t.Context(), db.Pinned, both...); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("got %v, want ErrBehind for the lessons", err)
	}
}

func TestUp_letsConcurrentCallersTakeTurns(t *testing.T) {
	db := testdb.NewEmpty(t)
	var callers sync.WaitGroup
	for range 5 {
		callers.Go(func() {
			if err := migrations.Up(t.Context(), db.DSN, slog.New(slog.DiscardHandler), both...); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if err := migrations.Check(t.Context(), db.Pinned, both...); err != nil {
		t.Error(err)
	}
}

// S-62: any role that can connect can hold any advisory lock.
func TestUp_waitsForNoAdvisoryLock(t *testing.T) {
	db := testdb.NewEmpty(t)
	holder, err := db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	key := int64(crc32.ChecksumIEEE([]byte("walpost migrations")))
	if _, err := holder.Exec(t.Context(), `SELECT pg_advisory_lock($1), pg_advisory_lock($2)`, key, lock.DefaultLockID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := migrations.Up(ctx, db.DSN, slog.New(slog.DiscardHandler), both...); err != nil {
		t.Error(err)
	}
}

// A migration that waits says so, and goes on when the other one has ended.
func TestUp_saysThatItWaitsForAnother(t *testing.T) {
	db := testdb.New(t)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE walpost.migrating IN SHARE UPDATE EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- migrations.Up(t.Context(), db.DSN, slog.New(slog.NewTextHandler(lines(said), nil)), both...)
	}()
	select {
	case line := <-said:
		if !strings.Contains(line, "another migration runs") {
			t.Errorf("it says %q", line)
		}
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// lines gets what is written to a log.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestUp_doesNotCareWhatSearchPathAndTimeoutsTheDatabaseHas(t *testing.T) {
	db := testdb.NewEmpty(t)
	db.Exec("CREATE SCHEMA elsewhere")
	db.Exec("CREATE TABLE elsewhere.outbox (n int)")
	for _, setting := range []string{"search_path = elsewhere, public", "statement_timeout = '1ms'"} {
		db.Exec("ALTER DATABASE " + db.Name + " SET " + setting)
	}
	if err := migrations.Up(t.Context(), db.DSN, slog.New(slog.DiscardHandler), both...); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(db.Texts("SELECT DISTINCT schemaname::text FROM pg_tables WHERE schemaname !~ '^pg_|^information' ORDER BY 1"), " ")
	if want := "elsewhere public walpost"; got != want {
		t.Errorf("tables in schemas %s, want %s", got, want)
	}
	if got := db.Int("SELECT count(*) FROM pg_tables WHERE schemaname = 'elsewhere'"); got != 1 {
		t.Errorf("%d tables in the schema that is none of ours, want 1", got)
	}
}

// F-61: whoever prepared the schema may keep CREATE on the database for themselves.
func TestUp_needsNoRightToCreateASchemaThatIsThere(t *testing.T) {
	db := testdb.NewEmpty(t)
	role := db.Name + "_role"
	db.Exec("CREATE ROLE " + role)
	db.Exec("CREATE SCHEMA walpost AUTHORIZATION " + role)
	t.Cleanup(func() { db.Exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	if err := migrations.Up(t.Context(), db.DSN+"&role="+role, slog.New(slog.DiscardHandler), migrations.Walpost); err != nil {
		t.Error(err)
	}
}

func TestMigrations_canBeTakenBackAndAppliedAgain(t *testing.T) {
	db := testdb.New(t)
	sqlDB := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { sqlDB.Close() })
	for _, set := range both {
		provider, err := migrations.Provider(set, sqlDB)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := provider.DownTo(t.Context(), 0); err != nil {
			t.Errorf("%s down: %v", set, err)
		}
	}
	left := db.Texts("SELECT tablename::text FROM pg_tables WHERE schemaname IN ('public', 'walpost') AND tablename !~ '_schema_version$' AND tablename <> 'migrating'")
	if len(left) != 0 {
		t.Errorf("taken back, and %v are left", left)
	}
	if err := migrations.Up(t.Context(), db.DSN, slog.New(slog.DiscardHandler), both...); err != nil {
		t.Error(err)
	}
}

func TestCheck_saysWhatToDo(t *testing.T) {
	db := testdb.NewEmpty(t)
	err := migrations.Check(t.Context(), db.Pinned, both...)
	if !errors.Is(err, migrations.ErrBehind) || !strings.Contains(err.Error(), "walpost migrate") {
		t.Errorf("empty database: got %v, want ErrBehind and the command", err)
	}
	if err := migrations.Up(t.Context(), db.DSN, slog.New(slog.DiscardHandler), both...); err != nil {
		t.Fatal(err)
	}
	db.Exec("INSERT INTO walpost.lessons_schema_version (version_id, is_applied) VALUES (99, true)")
	if err := migrations.Check(t.Context(), db.Pinned, both...); !errors.Is(err, migrations.ErrAhead) || !strings.Contains(err.Error(), "99") {
		t.Errorf("newer database: got %v, want ErrAhead and its version", err)
	}
}

func TestUp_namesTheServerAndNotThePassword(t *testing.T) {
	err := migrations.Up(t.Context(), "postgres://me:zebra@127.0.0.1:1/db?sslmode=disable", slog.New(slog.DiscardHandler), both...)
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "zebra") {
		t.Errorf("got %v, want the address and no password", err)
	}
}
