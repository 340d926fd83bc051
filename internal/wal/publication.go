package wal

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/postgres"
)

// AddTables adds tables to a publication. Rows of the time before are in the tables and not in the stream.
func AddTables(ctx context.Context, pool *postgres.Pool, name string, tables []pgx.Identifier) error {
	_, err := pool.Exec(ctx, advice.AddTables(name, tables).String(), pgx.QueryExecModeSimpleProtocol)
	switch postgres.Code(err) {
	case "":
		if err == nil {
			return nil
		}
	case "42710": // duplicate_object: another session was faster
		return nil
	case "42501", "55000": // not the owner; a publication of all tables or of a schema
		return NotPublished(name, tables, err)
	}
	return fmt.Errorf("add %s to publication %q: %w", list(tables), name, err)
}

// NotPublished says that a publication lacks tables that it should carry; err is why they cannot be added, nil if that
// is for a person to decide.
func NotPublished(name string, tables []pgx.Identifier, err error) *SetupError {
	return &SetupError{Err: err,
		Problem: fmt.Sprintf("publication %q does not publish %s", name, list(tables)),
		Fix:     "let its owner add them, if it is walpost's; else choose another name with publication (WALPOST_PUBLICATION) and let walpost make it"}
}

func list(tables []pgx.Identifier) string {
	quoted := make([]string, len(tables))
	for i, table := range tables {
		quoted[i] = table.Sanitize()
	}
	return strings.Join(quoted, ", ")
}

// MakePublication makes the publication of the tables. It comes before the slot, always: decoding looks at the catalogue
// as it was at each point of the WAL, so a publication that is younger than the slot does not exist for it.
func MakePublication(ctx context.Context, pool *postgres.Pool, name string, tables []pgx.Identifier) error {
	sql := advice.CreatePublication(name, tables).String()
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

// PublishedTable is a table that a publication carries, and which of its columns; nil where that cannot be said.
type PublishedTable struct {
	Schema, Table string
	Columns       []string
}

// PublishedTables returns the tables that a publication carries. Only from 15 on a publication can leave columns out,
// and the view shows which it carries.
func PublishedTables(ctx context.Context, q Querier, publication string) ([]PublishedTable, error) {
	rows, err := q.Query(ctx, `
		SELECT p.schemaname::text, p.tablename::text,
			(SELECT array_agg(c) FROM jsonb_array_elements_text(pg_catalog.to_jsonb(p) -> 'attnames') c)
		FROM pg_catalog.pg_publication_tables p WHERE p.pubname = $1`, publication)
	if err != nil {
		return nil, fmt.Errorf("look up the tables of publication %q: %w", publication, err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[PublishedTable])
	if err != nil {
		return nil, fmt.Errorf("look up the tables of publication %q: %w", publication, err)
	}
	return tables, nil
}
