// Package migrations holds the SQL files that make walpost's tables and brings a database up to them.
// There are two sets with version tables of their own, so that a team with an outbox of its own shape
// never sees the tables of the reference service. It is the only place that changes a schema.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/backendstart/walpost/internal/postgres"
)

//go:embed walpost/*.sql lessons/*.sql
var files embed.FS

// A Set is a folder of migrations that are applied in the order of their numbers.
type Set string

const (
	// Walpost makes the schema walpost, which every relay needs.
	Walpost Set = "walpost"
	// Lessons makes the outbox and the tables of the reference service, in the schema public.
	Lessons Set = "lessons"
)

var (
	// ErrBehind means that the database lacks migrations that this binary needs.
	ErrBehind = errors.New("schema is behind")
	// ErrAhead means that a newer binary has migrated the database.
	ErrAhead = errors.New("schema is ahead")
)

// Up applies what is missing of the sets, in the order given, and logs each migration it applied. Callers
// may run it at the same time, also on different machines: they take turns. dsn
// must lead to Postgres itself and not to a pooler.
//
// Each migration is a transaction; after an error those before it stay applied, and calling Up again
// goes on from there.
func Up(ctx context.Context, dsn string, log *slog.Logger, sets ...Set) error {
	_, err := Apply(ctx, dsn, log, sets...)
	return err
}

// Apply is Up, and returns how many migrations it applied.
func Apply(ctx context.Context, dsn string, log *slog.Logger, sets ...Set) (applied int, err error) {
	config, err := postgres.DirectConfig(dsn, application)
	if err != nil {
		return 0, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()

	watching, end := context.WithCancel(ctx)
	defer end()
	go tellLockWaits(watching, dsn, log)

	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("database_url: %w", postgres.ConnectError(err, dsn))
	}
	defer conn.Close()

	if err := makeSchema(ctx, conn); err != nil {
		return 0, postgres.Mask(err, dsn)
	}
	if err := checkOwners(ctx, conn); err != nil {
		return 0, postgres.Mask(err, dsn)
	}
	if err := awaitTurn(ctx, conn, log); err != nil {
		return 0, postgres.Mask(err, dsn)
	}
	// The turn ends with conn; giving it back is not needed.

	for _, set := range sets {
		n, err := set.up(ctx, db, log)
		applied += n
		if err != nil {
			return applied, postgres.Mask(err, dsn)
		}
	}
	return applied, nil
}

// application is the application_name of the sessions of a migration.
const application = "walpost/migrate"

// tellLockWaits says which statement of a migration waits for a lock, and who holds it, until ctx ends. A short migration
// ends before it connects.
func tellLockWaits(ctx context.Context, dsn string, log *slog.Logger) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return
	}
	pool, err := postgres.OpenOne(ctx, dsn, application)
	if err != nil {
		return // the migration says so itself
	}
	defer pool.Close()
	pool.WatchLockWaits(ctx, func(wait postgres.LockWait) {
		log.Warn("waiting for a lock", "pid", wait.PID, "since", wait.Since, "statement", wait.Query, "held_by", wait.By)
	})
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check returns nil if the database has exactly the migrations of the sets that this binary knows, and
// otherwise an error that wraps ErrBehind or ErrAhead and says what to do. In a transaction it may leave
// a failed statement behind.
func Check(ctx context.Context, db Querier, sets ...Set) error {
	for _, set := range sets {
		want, err := set.version()
		if err != nil {
			return err
		}
		var got int64
		err = db.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+set.table()+" WHERE is_applied").Scan(&got)
		switch code := postgres.Code(err); {
		case code == "42P01" || code == "3F000": // undefined_table, invalid_schema_name
			got = 0
		case code == "42501": // insufficient_privilege
			return fmt.Errorf("check schema %s: %w: grant USAGE on schema walpost and SELECT on %s to this role", set, err, set.table())
		case err != nil:
			return fmt.Errorf("check schema %s: %w", set, err)
		}
		switch {
		case got < want:
			return fmt.Errorf("%w: %s is at version %d, this walpost needs %d: run `walpost migrate`", ErrBehind, set, got, want)
		case got > want:
			return fmt.Errorf("%w: %s is at version %d, this walpost knows %d: use the newer walpost that ran `walpost migrate`", ErrAhead, set, got, want)
		}
	}
	return nil
}

// table is where goose keeps the version of the set: inside walpost's own schema, because not every role
// may create tables in public.
func (s Set) table() string { return "walpost." + string(s) + "_schema_version" }

func (s Set) provider(db *sql.DB) (*goose.Provider, error) {
	dir, err := fs.Sub(files, string(s))
	if err != nil {
		return nil, fmt.Errorf("migrations %s: %w", s, err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, dir,
		goose.WithTableName(s.table()), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("migrations %s: %w", s, err)
	}
	return provider, nil
}

func (s Set) up(ctx context.Context, db *sql.DB, log *slog.Logger) (int, error) {
	provider, err := s.provider(db)
	if err != nil {
		return 0, err
	}
	applied, err := provider.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		applied = partial.Applied
	}
	for _, result := range applied {
		log.Info("migration applied", "set", string(s), "file", path.Base(result.Source.Path), "took", result.Duration.Round(time.Millisecond))
	}
	switch {
	case partial != nil:
		return len(applied), fmt.Errorf("migrate %s: %s: %w", s, path.Base(partial.Failed.Source.Path), partial.Err)
	case err != nil:
		return len(applied), fmt.Errorf("migrate %s: %w", s, err)
	}
	return len(applied), nil
}

// version is the number of the last file of the set.
func (s Set) version() (int64, error) {
	names, err := fs.Glob(files, string(s)+"/*.sql")
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("migrations %s: no such set", s)
	}
	version, err := goose.NumericComponent(names[len(names)-1])
	if err != nil {
		return 0, fmt.Errorf("migrations %s: %w", s, err)
	}
	return version, nil
}

// makeSchema comes before the first migration, because goose's version tables live in the schema.
// It asks first: CREATE SCHEMA IF NOT EXISTS wants CREATE on the database even if there is nothing to do.
func makeSchema(ctx context.Context, conn *sql.Conn) error {
	var exists bool
	if err := conn.QueryRowContext(ctx, "SELECT pg_catalog.to_regnamespace('walpost') IS NOT NULL").Scan(&exists); err != nil {
		return fmt.Errorf("migrate: look for schema walpost: %w", err)
	}
	if exists {
		return nil
	}
	_, err := conn.ExecContext(ctx, "CREATE SCHEMA walpost")
	if err != nil && !madeMeanwhile(err) {
		return fmt.Errorf("migrate: create schema walpost (the role needs CREATE on the database): %w", err)
	}
	return nil
}

// foreignSQL finds the first thing in the schema that another role owns. To be a member of that role is enough, but a
// superuser is a member of all.
const foreignSQL = `
	SELECT owned.what, r.rolname::text FROM (
		SELECT 0 AS place, 'schema walpost' AS what, n.nspowner AS owner FROM pg_catalog.pg_namespace n WHERE n.nspname = 'walpost'
		UNION ALL
		SELECT 1, c.oid::pg_catalog.regclass::text, c.relowner FROM pg_catalog.pg_class c
		WHERE c.relnamespace = 'walpost'::pg_catalog.regnamespace
		UNION ALL
		SELECT 2, 'the function of trigger ' || t.tgname || ' on ' || t.tgrelid::pg_catalog.regclass, p.proowner
		FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
		WHERE c.relnamespace = 'walpost'::pg_catalog.regnamespace AND NOT t.tgisinternal
	) owned JOIN pg_catalog.pg_roles r ON r.oid = owned.owner JOIN pg_catalog.pg_roles me ON me.rolname = current_user
	WHERE r.rolname <> me.rolname AND NOT r.rolsuper AND (me.rolsuper OR NOT pg_catalog.pg_has_role(me.oid, r.oid, 'USAGE'))
	ORDER BY owned.place, owned.what LIMIT 1`

// checkOwners refuses a schema that another role has made, or in which it has made something: a trigger of that role
// would run as this one, and the owner of the schema can drop and replace what is in it.
func checkOwners(ctx context.Context, conn *sql.Conn) error {
	var what, owner string
	err := conn.QueryRowContext(ctx, foreignSQL).Scan(&what, &owner)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("migrate: look who owns schema walpost: %w", err)
	}
	return fmt.Errorf("migrate: %s belongs to role %q, whose code could run as this role: migrate as %q if that is its work, or give it to this role or drop it", what, owner, owner)
}

// awaitTurn waits until no other migration runs, and keeps others out while conn is open: it locks a table of its own,
// which only its owner and who may write to it can do. Any role could hold an advisory lock.
func awaitTurn(ctx context.Context, conn *sql.Conn, log *slog.Logger) error {
	_, err := conn.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS walpost.migrating ()")
	if err != nil && !madeMeanwhile(err) {
		return fmt.Errorf("migrate: make the table whose lock lets migrations take turns: %w", err)
	}
	for _, limit := range []string{"1s", "10min"} {
		_, err = conn.ExecContext(ctx, "BEGIN; SET LOCAL lock_timeout = '"+limit+"'; LOCK TABLE walpost.migrating IN SHARE UPDATE EXCLUSIVE MODE")
		if postgres.Code(err) != "55P03" { // lock_not_available
			break
		}
		log.Info("another migration runs; waiting for its end")
		if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	if err != nil {
		return fmt.Errorf("migrate: wait for another migration to end: %w", err)
	}
	return nil
}

// madeMeanwhile reports whether another migration has made the same thing at the same moment.
func madeMeanwhile(err error) bool {
	switch postgres.Code(err) {
	case "23505", "42P06", "42P07", "42710": // unique_violation in the catalogue, duplicate_schema, duplicate_table, duplicate_object
		return true
	}
	return false
}
