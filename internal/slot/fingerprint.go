package slot

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/store"
)

// ErrNoTable means that there is no table where one is to be published.
var ErrNoTable = errors.New("table is gone")

// ReadPublished reads what the publication carries of the sources. A source's table that is missing is an ErrNoTable; a
// publication that is missing is not an error. Any role can read this.
func ReadPublished(ctx context.Context, q store.Querier, publication string, sources []*outbox.Source) (Published, error) {
	p := Published{Exists: true}
	var oid uint32
	var version int
	var allTables bool
	err := q.QueryRow(ctx, `
		SELECT oid, oid || ':' || xmin, pubinsert, puballtables, pg_catalog.current_setting('server_version_num')::int
		FROM pg_catalog.pg_publication WHERE pubname = $1`, publication).Scan(&oid, &p.Now.Publication, &p.Inserts, &allTables, &version)
	if errors.Is(err, pgx.ErrNoRows) {
		p.Exists, err = false, nil
	}
	if err != nil {
		return p, fmt.Errorf("read publication %q: %w", publication, err)
	}
	// A partition is published by its root.
	entries := `SELECT r.oid, r.xmin FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = $1 AND r.prrelid IN (c.oid, pg_catalog.pg_partition_root(c.oid))`
	filter := `''`
	if version >= 150000 { // FOR TABLES IN SCHEMA, row filters
		filter = `coalesce((SELECT t.rowfilter FROM pg_catalog.pg_publication_tables t WHERE t.pubname = $5 AND t.schemaname = $2 AND t.tablename = $3), '')`
		entries += ` UNION ALL SELECT s.oid, s.xmin FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = $1 AND s.pnnspid = c.relnamespace`
	}
	for _, s := range sources {
		source := store.PublishedSource{Name: s.Name, Schema: s.Schema, Table: s.Table, Messages: s.Messages}
		if s.Table == "" {
			p.Now.Sources = append(p.Now.Sources, source)
			continue
		}
		var carried bool
		var condition string
		err := q.QueryRow(ctx, `
			SELECT c.oid, ARRAY(SELECT e.oid || ':' || e.xmin FROM (`+entries+`) e ORDER BY e.oid),
			       ARRAY(SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE c.relkind = 'p' AND p.isleaf ORDER BY p.relid::oid),
			       $4 OR EXISTS (SELECT FROM pg_catalog.pg_publication_tables t WHERE t.pubname = $5 AND t.schemaname = $2 AND t.tablename = $3),
			       `+filter+`
			FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $2 AND c.relname = $3`, oid, s.Schema, s.Table, allTables, publication).
			Scan(&source.OID, &source.Entries, &source.Partitions, &carried, &condition)
		if errors.Is(err, pgx.ErrNoRows) {
			return p, fmt.Errorf("%w: source %q: there is no table %s.%s in this database", ErrNoTable, s.Name, s.Schema, s.Table)
		}
		if err != nil {
			return p, fmt.Errorf("read what is published of table %s.%s: %w", s.Schema, s.Table, err)
		}
		p.Now.Sources = append(p.Now.Sources, source)
		if !carried {
			p.Missing = append(p.Missing, s.Name)
		}
		if condition != "" {
			if p.Filters == nil {
				p.Filters = make(map[string]string)
			}
			p.Filters[s.Name] = condition
		}
	}
	return p, nil
}
