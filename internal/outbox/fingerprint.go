package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Fingerprint is a text that changes when what is published changes: when the publication or one of the
// tables is made anew, altered, or taken out and put back. Rows written in between are in the table and
// not in the stream, and no message tells of it (POSTGRES §3).
//
// Any role can read what it is made of. A source of messages has no part in it. A publication or table
// that is missing is an error.
func Fingerprint(ctx context.Context, db DB, publication string, sources []*Source) (string, error) {
	var (
		print    strings.Builder
		oid      uint32
		identity string
		version  int
	)
	err := db.QueryRow(ctx, `
		SELECT oid, oid || ':' || xmin, current_setting('server_version_num')::int
		FROM pg_publication WHERE pubname = $1`, publication).Scan(&oid, &identity, &version)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("fingerprint: there is no publication %q in this database", publication)
	}
	if err != nil {
		return "", fmt.Errorf("fingerprint publication %q: %w", publication, err)
	}
	print.WriteString("publication " + identity)

	// A partition is published by its root.
	entries := `SELECT r.oid, r.xmin FROM pg_publication_rel r WHERE r.prpubid = $1 AND r.prrelid IN (c.oid, pg_partition_root(c.oid))`
	if version >= 150000 { // FOR TABLES IN SCHEMA
		entries += ` UNION ALL SELECT s.oid, s.xmin FROM pg_publication_namespace s WHERE s.pnpubid = $1 AND s.pnnspid = c.relnamespace`
	}
	for _, s := range sources {
		if s.Table == "" {
			continue
		}
		var table, published string
		err := db.QueryRow(ctx, `
			SELECT c.oid::text, (SELECT coalesce(string_agg(e.oid || ':' || e.xmin, ',' ORDER BY e.oid), 'none') FROM (`+entries+`) e)
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $2 AND c.relname = $3`, oid, s.Schema, s.Table).Scan(&table, &published)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", fmt.Errorf("fingerprint: source %q: there is no table %s in this database", s.Name, s.relation())
		}
		if err != nil {
			return "", fmt.Errorf("fingerprint table %s: %w", s.relation(), err)
		}
		print.WriteString("; " + s.relation() + " " + table + " by " + published)
	}
	return print.String(), nil
}
