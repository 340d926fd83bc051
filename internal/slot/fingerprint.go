package slot

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// ErrNoTable means that there is no table where one is to be published.
var ErrNoTable = errors.New("table is gone")

// ReadPublished reads what the publication carries of the sources. A source's table that is missing is an ErrNoTable; a
// publication that is missing is not an error. Any role can read this.
func ReadPublished(ctx context.Context, q store.Querier, publication string, sources []*outbox.Source) (Published, error) {
	p := Published{Exists: true}
	var oid uint32
	var version int
	var allTables, viaRoot bool
	err := q.QueryRow(ctx, `
		SELECT oid, oid || ':' || xmin, pubinsert, puballtables, pubviaroot, pg_catalog.current_setting('server_version_num')::int
		FROM pg_catalog.pg_publication WHERE pubname = $1`, publication).Scan(&oid, &p.Now.Publication, &p.Inserts, &allTables, &viaRoot, &version)
	if errors.Is(err, pgx.ErrNoRows) {
		p.Exists, err = false, nil
	}
	if err != nil {
		return p, fmt.Errorf("read publication %q: %w", publication, err)
	}
	// A partition is published by its root, as long as it belongs to it.
	entries := `SELECT r.oid, r.xmin FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = $1 AND r.prrelid IN (c.oid, pg_catalog.pg_partition_root(c.oid))
		UNION ALL SELECT i.inhrelid, i.xmin FROM pg_catalog.pg_inherits i WHERE c.relispartition AND i.inhrelid IN (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(c.oid) a)`
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
		var root string
		err := q.QueryRow(ctx, `
			SELECT c.oid, ARRAY(SELECT e.oid || ':' || e.xmin FROM (`+entries+`) e ORDER BY e.oid),
			       (SELECT coalesce(json_agg(json_build_object('oid', p.relid::oid::bigint, 'attached',
			           (SELECT string_agg(i.xmin::text, ':' ORDER BY i.inhrelid) FROM pg_catalog.pg_inherits i
			            WHERE i.inhrelid IN (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(p.relid) a))
			           || CASE h.relpersistence WHEN 'p' THEN '' ELSE ' unlogged' END) ORDER BY p.relid::oid), '[]')
			        FROM pg_catalog.pg_partition_tree(c.oid) p JOIN pg_catalog.pg_class h ON h.oid = p.relid WHERE c.relkind = 'p' AND p.isleaf),
			       coalesce((SELECT quote_ident(m.nspname) || '.' || quote_ident(h.relname) FROM pg_catalog.pg_partition_ancestors(c.oid) a
			                 JOIN pg_catalog.pg_class h ON h.oid = a.relid JOIN pg_catalog.pg_namespace m ON m.oid = h.relnamespace
			                 WHERE c.relispartition AND a.relid <> c.oid AND $6
			                   AND ($4 OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = $1 AND r.prrelid = a.relid)) LIMIT 1), ''),
			       $4 OR EXISTS (SELECT FROM pg_catalog.pg_publication_tables t WHERE t.pubname = $5 AND t.schemaname = $2 AND t.tablename = $3),
			       `+filter+`
			FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $2 AND c.relname = $3`, oid, s.Schema, s.Table, allTables, publication, viaRoot).
			Scan(&source.OID, &source.Entries, &source.Leaves, &root, &carried, &condition)
		if errors.Is(err, pgx.ErrNoRows) {
			return p, fmt.Errorf("%w: source %q: there is no table %s.%s in this database", ErrNoTable, s.Name, s.Schema, s.Table)
		}
		if err != nil {
			return p, fmt.Errorf("read what is published of table %s.%s: %w", s.Schema, s.Table, err)
		}
		p.Now.Sources = append(p.Now.Sources, source)
		unstreamed, err := findUnstreamed(ctx, q, s, source.OID)
		if err != nil {
			return p, err
		}
		if unstreamed == nil && root != "" {
			unstreamed = &wal.SetupError{
				Problem: fmt.Sprintf("source %q: %s.%s is a partition of %s, which publication %q carries: its rows come under that name, and to no subscriber of this source",
					s.Name, s.Schema, s.Table, root, publication),
				Fix: fmt.Sprintf("take %s out of the publication, or name it as the source instead", root)}
		}
		if unstreamed != nil {
			p.Unstreamed = append(p.Unstreamed, unstreamed)
		}
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

// findUnstreamed looks for rows that a SELECT from a source's table has and its stream has not; nil where there are none.
//
//   - Rows of tables that inherit from it come under their own names in the stream, or not at all where they were made after
//     the publication. Partitions are published by their root and are none of that.
//   - Rows of an unlogged partition are in no WAL. Of a whole table that is unlogged, the server publishes nothing.
func findUnstreamed(ctx context.Context, q store.Querier, s *outbox.Source, table uint32) (*wal.SetupError, error) {
	const names = `ARRAY(SELECT ARRAY[m.nspname::text, h.relname::text] FROM pg_catalog.pg_class h JOIN pg_catalog.pg_namespace m ON m.oid = h.relnamespace WHERE h.relkind = 'r' AND `
	var children, unlogged [][]string
	err := q.QueryRow(ctx, `
		SELECT `+names+`c.relkind = 'r' AND h.oid IN (SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid) ORDER BY 1),
		       `+names+`c.relkind = 'p' AND h.relpersistence <> 'p' AND h.oid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p) ORDER BY 1)
		FROM pg_catalog.pg_class c WHERE c.oid = $1`, table).Scan(&children, &unlogged)
	parent := pgx.Identifier{s.Schema, s.Table}
	switch {
	case errors.Is(err, pgx.ErrNoRows): // gone meanwhile
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("source %q: look for tables that belong to %s: %w", s.Name, parent.Sanitize(), err)
	case len(children) > 0:
		child := pgx.Identifier(children[0])
		return &wal.SetupError{
			Problem: fmt.Sprintf("source %q: %s inherits from %s, and its rows do not come in the stream of that", s.Name, child.Sanitize(), parent.Sanitize()),
			Fix: fmt.Sprintf("make it a partition of a partitioned table; or %s, and name it as a source of its own if it holds events",
				advice.NoInherit(child, parent))}, nil
	case len(unlogged) > 0:
		leaf := pgx.Identifier(unlogged[0])
		return &wal.SetupError{
			Problem: fmt.Sprintf("source %q: the partition %s is unlogged, and its rows are in no WAL", s.Name, leaf.Sanitize()),
			Fix:     advice.SetLogged(leaf).String()}, nil
	}
	return nil, nil
}
