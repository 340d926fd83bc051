package wal

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
)

// PublicationChange is what EnsurePublication had to do.
type PublicationChange struct {
	Made  bool     // there was no publication
	Added []string // tables that had been taken off it, or made again under their old name
}

// EnsurePublication makes the publication of the tables if there is none, and checks the one that is
// there. It comes before the slot, always: decoding looks at the catalogue as it was at each point of
// the WAL, so a publication that is younger than the slot does not exist for it. Tables are written
// "schema.table", quoted.
//
// known tells that the slot was read before, so that the publication was complete once: then a table that
// it lacks is added again. The rows of the time between are in the table and not in the stream.
func EnsurePublication(ctx context.Context, pool *postgres.Pool, name string, tables []pgx.Identifier, slotExists, known bool) (PublicationChange, error) {
	var inserts, viaRoot, all bool
	err := pool.QueryRow(ctx, `SELECT pubinsert, pubviaroot, puballtables FROM pg_catalog.pg_publication WHERE pubname = $1`, name).
		Scan(&inserts, &viaRoot, &all)
	if errors.Is(err, pgx.ErrNoRows) {
		if slotExists && !known {
			return PublicationChange{}, &SetupError{
				Problem: fmt.Sprintf("publication %q does not exist, but its slot does: a slot brings nothing of a publication that is younger", name),
				Fix:     fmt.Sprintf("drop the slot (SELECT pg_drop_replication_slot(…)), make the publication first (%s), then the slot; or let walpost make both", CreatePublication(name, tables))}
		}
		return PublicationChange{Made: true}, makePublication(ctx, pool, name, tables)
	}
	if err != nil {
		return PublicationChange{}, fmt.Errorf("look up publication %q: %w", name, err)
	}
	if !inserts {
		return PublicationChange{}, &SetupError{
			Problem: fmt.Sprintf("publication %q does not publish inserts", name),
			Fix:     fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert')", quote(name))}
	}
	missing, err := unpublished(ctx, pool, name, tables, all)
	if err != nil || len(missing) == 0 {
		return PublicationChange{}, err
	}
	sql := fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", quote(name), strings.Join(missing, ", "))
	if known {
		if _, err = pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err == nil {
			return PublicationChange{Added: missing}, nil
		}
		if code := postgres.Code(err); code != "42501" && code != "55000" { // not the owner; a publication of all tables or of a schema
			return PublicationChange{}, fmt.Errorf("add %s to publication %q: %w", strings.Join(missing, ", "), name, err)
		}
	}
	return PublicationChange{}, &SetupError{Err: err,
		Problem: fmt.Sprintf("publication %q does not publish %s", name, strings.Join(missing, ", ")), Fix: sql}
}

// unpublished lists the tables that the publication does not carry.
func unpublished(ctx context.Context, pool *postgres.Pool, name string, tables []pgx.Identifier, all bool) ([]string, error) {
	var missing []string
	for _, table := range tables {
		var published bool
		err := pool.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM pg_catalog.pg_publication_tables
			               WHERE pubname = $1 AND schemaname = $2 AND tablename = $3)
			    OR ($4 AND EXISTS (SELECT FROM pg_catalog.pg_class c, pg_catalog.pg_namespace n
			               WHERE n.oid = c.relnamespace AND n.nspname = $2 AND c.relname = $3))`,
			name, table[0], table[1], all).Scan(&published)
		if err != nil {
			return nil, fmt.Errorf("look up publication %q: %w", name, err)
		}
		if !published {
			missing = append(missing, table.Sanitize())
		}
	}
	return missing, nil
}

// CreatePublication is the statement that makes a publication of the tables. It is insert-only: an outbox
// row is an event once, and updates of a table without a replica identity would fail if they were
// published.
func CreatePublication(name string, tables []pgx.Identifier) string {
	quoted := make([]string, len(tables))
	for i, table := range tables {
		quoted[i] = table.Sanitize()
	}
	list := ""
	if len(tables) > 0 {
		list = " FOR TABLE " + strings.Join(quoted, ", ")
	}
	return "CREATE PUBLICATION " + quote(name) + list + " WITH (publish = 'insert', publish_via_partition_root = true)"
}

func makePublication(ctx context.Context, pool *postgres.Pool, name string, tables []pgx.Identifier) error {
	sql := CreatePublication(name, tables)
	_, err := pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	switch code := postgres.Code(err); {
	case err == nil:
		return nil
	case code == "42501": // insufficient_privilege
		return &SetupError{Err: err,
			Problem: fmt.Sprintf("the role may not create publication %q", name),
			Fix:     "as the owner of the tables with CREATE on the database: " + sql}
	case code == "42P01", code == "3F000": // undefined_table, invalid_schema_name
		return &SetupError{Err: err, Problem: "a source's table does not exist",
			Fix: "create it (walpost's own: walpost migrate), or correct the source's table"}
	case code == "22023": // invalid_parameter_value: temporary, unlogged, a view or a catalogue
		return &SetupError{Err: err, Problem: "a source's table cannot be published", Fix: "use a permanent, logged table"}
	case code == "42710": // duplicate_object: another relay was faster
		return nil
	}
	return fmt.Errorf("create publication %q: %w", name, err)
}
