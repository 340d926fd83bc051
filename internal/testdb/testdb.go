// Package testdb gives tests real Postgres databases. New is what most tests want: an empty, migrated
// database of their own on a server that all tests of a test binary share. A test that freezes,
// crashes or reconfigures Postgres takes NewServer. Where the server comes from is in cluster.go.
// There is no mock of Postgres here, and no skipping: a test that finds no server fails and says how
// to get one.
package testdb

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/migrations"
)

// A DB is a database that belongs to one test. Its methods fail the test when the query fails, and may
// be called from the test's goroutine only.
type DB struct {
	// DSN leads to the database, as a role that may replicate and create databases.
	DSN string
	// Pool is for the test's own statements, with the settings that its sessions have. It is closed when the test ends.
	Pool *pgxpool.Pool
	// Pinned is for what is tested. It is closed when the test ends.
	Pinned *postgres.Pool
	// Name is the database's name: unique on the server, lower case, and so a good name for a slot,
	// too, since slot names are unique per server and not per database.
	Name string

	t testing.TB
}

// New returns an empty database with both sets of migrations. When the test ends it is dropped, with
// its replication slots and the sessions that are still connected.
func New(t testing.TB) *DB {
	t.Helper()
	adminDSN, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	return newMigrated(t, adminDSN)
}

func databaseName() string { return "walpost_test_" + strings.ToLower(rand.Text()[:10]) }

// NewEmpty is New without migrations.
func NewEmpty(t testing.TB) *DB {
	t.Helper()
	adminDSN, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	return newDB(t, adminDSN)
}

// NewEncoded is New for a database in another encoding. The pool's sessions speak UTF-8 all the same.
func NewEncoded(t testing.TB, encoding string) *DB {
	t.Helper()
	adminDSN, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	return migrate(t, newEncodedDB(t, adminDSN, encoding))
}

// On is New for a server that the test made with NewServer.
func On(t testing.TB, server *pgserver.Server) *DB {
	t.Helper()
	return migrate(t, newDB(t, server.DSN("postgres")))
}

// NewEmptyOn is NewEmpty for a server that the test made with NewServer.
func NewEmptyOn(t testing.TB, server *pgserver.Server) *DB {
	t.Helper()
	return newDB(t, server.DSN("postgres"))
}

// NewServer returns a server that only this test uses and that may be frozen, killed and restarted. It
// starts with the settings of the shared server; settings come on top. It is stopped when the test
// ends. It is a copy: its system identifier is that of the shared server and of all others but NewForeignServer's.
func NewServer(t testing.TB, settings map[string]string) *pgserver.Server {
	t.Helper()
	return newServer(t, startCopy, settings)
}

// NewForeignServer is NewServer with a system identifier of its own.
func NewForeignServer(t testing.TB, settings map[string]string) *pgserver.Server {
	t.Helper()
	return newServer(t, func(ctx context.Context, settings map[string]string) (*pgserver.Server, error) {
		return pgserver.Start(ctx, pgserver.Options{Settings: settings})
	}, settings)
}

func newServer(t testing.TB, start func(context.Context, map[string]string) (*pgserver.Server, error), settings map[string]string) *pgserver.Server {
	t.Helper()
	all := maps.Clone(serverSettings)
	maps.Copy(all, settings)
	server, err := start(t.Context(), all)
	if err != nil {
		t.Fatalf("a server of one's own: %v\n%s", err, howToGetOne)
	}
	stopAtEnd(t, server)
	return server
}

func stopAtEnd(t testing.TB, server *pgserver.Server) {
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		// A walsender whose client hangs may hold a fast stop up; for a test that is no fault.
		if err := server.Stop(ctx); err != nil {
			t.Logf("stop the test's server: %v", err)
		}
	})
}

// Use opens the database's pools with another connection string: for settings of new sessions, or another server.
func (db *DB) Use(dsn string) {
	db.t.Helper()
	pool, err := pgxpool.New(db.t.Context(), dsn)
	if err != nil {
		db.t.Fatal(err)
	}
	db.t.Cleanup(pool.Close)
	db.DSN, db.Pool = dsn, pool
	db.Pinned = db.Open()
}

// Open opens another pool for what is tested, with options of a connection string such as "role=reader". It is closed
// when the test ends.
func (db *DB) Open(options ...string) *postgres.Pool {
	db.t.Helper()
	pool, err := postgres.Open(db.t.Context(), strings.Join(append([]string{db.DSN}, options...), "&"), db.t.Name())
	if err != nil {
		db.t.Fatal(err)
	}
	db.t.Cleanup(pool.Close)
	return pool
}

// Exec runs a statement and returns how many rows it touched.
func (db *DB) Exec(sql string, args ...any) int64 {
	db.t.Helper()
	tag, err := db.Pool.Exec(context.Background(), sql, args...)
	if err != nil {
		db.t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// Int returns the one integer that the query gives.
func (db *DB) Int(sql string, args ...any) int64 {
	db.t.Helper()
	return one[int64](db, sql, args)
}

// Text returns the one value that the query gives, which must be of a text type; NULL is an error.
func (db *DB) Text(sql string, args ...any) string {
	db.t.Helper()
	return one[string](db, sql, args)
}

// Texts returns the one text column that the query gives, a row each.
func (db *DB) Texts(sql string, args ...any) []string {
	db.t.Helper()
	rows, err := db.Pool.Query(context.Background(), sql, args...)
	if err != nil {
		db.t.Fatalf("%s: %v", sql, err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		db.t.Fatalf("%s: %v", sql, err)
	}
	return texts
}

func one[T any](db *DB, sql string, args []any) T {
	db.t.Helper()
	var value T
	if err := db.Pool.QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		db.t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// newMigrated makes a migrated database on the server of adminDSN.
func newMigrated(t testing.TB, adminDSN string) *DB {
	t.Helper()
	var has bool
	admin(t, t.Context(), adminDSN, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", migrated).Scan(&has)
	})
	if !has {
		return migrate(t, newDB(t, adminDSN))
	}
	return copyDB(t, adminDSN, migrated, "UTF8", "")
}

// newDB makes an empty database on the server of adminDSN.
func newDB(t testing.TB, adminDSN string) *DB {
	t.Helper()
	return newEncodedDB(t, adminDSN, "UTF8")
}

func newEncodedDB(t testing.TB, adminDSN, encoding string) *DB {
	t.Helper()
	options := " ENCODING '" + encoding + "'"
	if encoding != "UTF8" { // the server's own locale fits UTF-8
		options += " LOCALE 'C'"
	}
	return copyDB(t, adminDSN, "template0", encoding, options)
}

// copyDB copies a database that has no sessions, which would make the copy fail.
func copyDB(t testing.TB, adminDSN, template, encoding, options string) *DB {
	t.Helper()
	name := databaseName()
	admin(t, t.Context(), adminDSN, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template+options)
		return err
	})
	dsn, err := withDatabase(adminDSN, name)
	if err == nil && encoding != "UTF8" {
		dsn, err = withParam(dsn, "client_encoding", "UTF8")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { drop(t, adminDSN, name) })
	db := &DB{Name: name, t: t}
	db.Use(dsn)
	return db
}

func migrate(t testing.TB, db *DB) *DB {
	t.Helper()
	if err := migrations.Up(t.Context(), db.DSN, slog.New(slog.DiscardHandler), migrations.Walpost, migrations.Lessons); err != nil {
		t.Fatal(err)
	}
	return db
}

// drop removes the database together with its slots. Closing it first keeps a relay that the test left
// running from coming back between the steps. A server that the test has made a standby takes it along.
func drop(t testing.TB, adminDSN, name string) {
	t.Helper()
	ctx, cancel := cleanupContext()
	defer cancel()
	admin(t, ctx, adminDSN, func(ctx context.Context, conn *pgx.Conn) error {
		var standby bool
		if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); standby || err != nil {
			return err
		}
		for _, sql := range []string{
			"ALTER DATABASE " + name + " ALLOW_CONNECTIONS false",
			// pg_terminate_backend waits up to the given milliseconds until the process is gone.
			// All of them, not who reads a slot now: one that was just told to may begin to in a moment.
			"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender') AND datname = '" + name + "'",
			"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '" + name + "'",
			"DROP DATABASE " + name + " WITH (FORCE)",
		} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	})
}

// admin runs fn on a short connection of its own. A server that is down at cleanup is one that the test
// has killed: there is nothing to drop.
func admin(t testing.TB, ctx context.Context, dsn string, fn func(context.Context, *pgx.Conn) error) {
	t.Helper()
	config, err := postgres.ConnConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		if t.Context().Err() != nil && postgres.Unavailable(err) {
			return
		}
		t.Fatal(postgres.ConnectError(err, dsn))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := fn(ctx, conn); err != nil {
		t.Fatal(postgres.Mask(err, dsn))
	}
}

// cleanupContext bounds a cleanup: t.Context has ended by then.
func cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 20*time.Second)
}
