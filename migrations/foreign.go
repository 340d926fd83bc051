package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
)

// ErrForeign means that a database belongs to others, so that the tables of the reference service have no place there.
var ErrForeign = errors.New("the tables of the learning platform were not made")

// lessonTables are what migrations/lessons makes.
var lessonTables = []string{
	"public.outbox", "public.lesson_progress", "public.user_achievements", "public.analytics_events", "public.notifications",
	"public.recommendations", "public.learners",
}

// foundSQL says what a database knows of itself: whether each set was ever applied, and the tables of others, in order
// of their names. What walpost made is told by its version tables, not by names.
const foundSQL = `
	SELECT
		pg_catalog.to_regclass('walpost.walpost_schema_version') IS NOT NULL,
		pg_catalog.to_regclass('walpost.lessons_schema_version') IS NOT NULL,
		coalesce((SELECT pg_catalog.array_agg(n.nspname::text || '.' || c.relname::text ORDER BY n.nspname, c.relname)
			FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('walpost', 'pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
				AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')), '{}')`

// CheckLessons returns an error that wraps ErrForeign where the tables of the reference service would be made in a
// database that was set up for something else, and says what to do. asked tells that a person has asked for them: then
// only tables that are in the way count. It changes nothing.
func CheckLessons(ctx context.Context, dsn string, asked bool) error {
	config, err := postgres.DirectConfig(dsn, "walpost/migrate")
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("database_url: %w", postgres.ConnectError(err, dsn))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var walpost, lessons bool
	var others []string
	if err := conn.QueryRow(ctx, foundSQL).Scan(&walpost, &lessons, &others); err != nil {
		return postgres.Mask(fmt.Errorf("migrate: look what is there: %w", err), dsn)
	}
	if lessons {
		return nil
	}
	if taken := both(lessonTables, others); len(taken) > 0 {
		return fmt.Errorf("%w: %s is there already, and walpost did not make it: name it as a source in walpost.yaml, "+
			"or use another database", ErrForeign, strings.Join(taken, ", "))
	}
	const way = "go to the folder of walpost.yaml or name it with --config; --lessons makes them here"
	switch {
	case asked:
	case walpost:
		return fmt.Errorf("%w: this database was set up without the tables of the learning platform, and no file names a source: %s", ErrForeign, way)
	case len(others) > 0:
		return fmt.Errorf("%w: this database has tables of others (%s), and no file names a source: %s", ErrForeign, shortened(others), way)
	}
	return nil
}

// both returns what is in both lists.
func both(a, b []string) []string {
	var found []string
	for _, name := range a {
		for _, other := range b {
			if name == other {
				found = append(found, name)
			}
		}
	}
	return found
}

// shortened names the first of a list.
func shortened(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
