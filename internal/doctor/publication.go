package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// publication is a row of pg_publication.
type publication struct {
	oid                              uint32
	insert, update, delete, truncate bool
	viaRoot, allTables               bool
	schemas                          []string // FOR TABLES IN SCHEMA, from 15 on
}

func (c *checker) publication(ctx context.Context) (*publication, error) {
	schemas := "NULL::text[]"
	if c.version >= 150000 {
		schemas = `ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_publication_namespace s JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid
			WHERE s.pnpubid = p.oid ORDER BY 1)`
	}
	var p publication
	err := c.tx.QueryRow(ctx, `
		SELECT oid, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, puballtables, `+schemas+`
		FROM pg_catalog.pg_publication p WHERE pubname = $1`, c.Publication).
		Scan(&p.oid, &p.insert, &p.update, &p.delete, &p.truncate, &p.viaRoot, &p.allTables, &p.schemas)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up publication %q: %w", c.Publication, err)
	}
	return &p, nil
}

// owner is who may change the publication.
const owner = "the owner of the publication and of the tables"

func (c *checker) alter(what string) *Fix {
	return &Fix{As: owner, SQL: []string{"ALTER PUBLICATION " + quote(c.Publication) + " " + what}}
}

func checkPublication(ctx context.Context, c *checker) ([]Finding, error) {
	p, err := c.publication(ctx)
	if err != nil || p != nil {
		return nil, err
	}
	slot, err := c.slot(ctx)
	if err != nil {
		return nil, err
	}
	if slot == nil {
		return []Finding{ok(fmt.Sprintf("there is no publication %q yet; the relay makes it", c.Publication))}, nil
	}
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	fix := c.dropSlot(wal.CreatePublication(c.Publication, identifiers(tables)))
	fix.As = owner + ", while no relay runs"
	return []Finding{problem(fmt.Sprintf("publication %q does not exist, but the slot does", c.Publication),
		"rows inserted meanwhile are not in the stream, and for what the slot has still to read the publication does not exist, even once it is made", fix)}, nil
}

// remake replaces a publication of too much. It does not exist for what an old slot has still to read.
func (c *checker) remake(ctx context.Context, tables []*outbox.Table) (*Fix, error) {
	sql := []string{"DROP PUBLICATION " + quote(c.Publication), wal.CreatePublication(c.Publication, identifiers(tables))}
	slot, err := c.slot(ctx)
	if err != nil {
		return nil, err
	}
	if slot == nil {
		return &Fix{As: owner, SQL: sql}, nil
	}
	fix := c.dropSlot(sql...)
	fix.As = owner + ", while no relay runs"
	return fix, nil
}

const noSource = "the relay stops at the first row of a table that no source names: it may be an outbox that was renamed"

func checkPublicationTables(ctx context.Context, c *checker) ([]Finding, error) {
	p, err := c.publication(ctx)
	if err != nil || p == nil {
		return nil, err
	}
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	var oids []uint32
	for _, table := range tables {
		oids = append(oids, table.OID)
	}
	if p.allTables || len(p.schemas) > 0 {
		what := "all tables"
		if !p.allTables {
			what = "all tables of schema " + strings.Join(p.schemas, ", ")
		}
		fix, err := c.remake(ctx, tables)
		if err != nil {
			return nil, err
		}
		return []Finding{problem(fmt.Sprintf("publication %q has %s", c.Publication, what), noSource, fix)}, nil
	}
	var found []Finding
	var absent []string
	for i, table := range tables {
		var published bool
		err := c.tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = $1
			       AND (r.prrelid = $2 OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors($2::oid))))`, p.oid, oids[i]).Scan(&published)
		if err != nil {
			return nil, err
		}
		if !published {
			absent = append(absent, quoted(table))
		}
	}
	if absent != nil {
		found = append(found, problem(fmt.Sprintf("publication %q lacks %s", c.Publication, strings.Join(absent, ", ")), "their events are not in the stream", c.alter("ADD TABLE "+strings.Join(absent, ", "))))
	}
	extra, err := c.texts(ctx, `
		SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
		FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE r.prpubid = $1 AND c.oid <> ALL ($2::oid[])
		  AND NOT EXISTS (SELECT FROM unnest($2::oid[]) AS o WHERE c.oid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(o)))
		ORDER BY 1`, p.oid, append([]uint32{}, oids...))
	if err != nil {
		return nil, err
	}
	if len(extra) > 0 {
		found = append(found, problem(fmt.Sprintf("publication %q has tables that are no source: %s", c.Publication, strings.Join(extra, ", ")), noSource, c.alter("DROP TABLE "+strings.Join(extra, ", "))))
	}
	return found, nil
}

func checkPublicationOperations(ctx context.Context, c *checker) ([]Finding, error) {
	p, err := c.publication(ctx)
	if err != nil || p == nil {
		return nil, err
	}
	fix := c.alter("SET (publish = 'insert')")
	switch {
	case !p.insert:
		return []Finding{problem(fmt.Sprintf("publication %q does not publish inserts", c.Publication), "an inserted row is an event, and there are none then", fix)}, nil
	case p.update || p.delete || p.truncate:
		return []Finding{warning(fmt.Sprintf("publication %q publishes more than inserts", c.Publication), "walpost's own marks and deletes come back to it and are thrown away; and marking needs a replica identity then", fix)}, nil
	}
	return nil, nil
}

func checkPublicationRoot(ctx context.Context, c *checker) ([]Finding, error) {
	p, err := c.publication(ctx)
	if err != nil || p == nil || p.viaRoot {
		return nil, err
	}
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range tables {
		var partitioned bool
		if err := c.tx.QueryRow(ctx, `SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = $1`, table.OID).Scan(&partitioned); err != nil {
			return nil, err
		}
		if partitioned {
			found = append(found, problem(relation(table)+" is partitioned, and its rows are published under the names of the partitions",
				"the relay knows the root as the source, and no partition", c.alter("SET (publish_via_partition_root = true)")).about(table.Source.Name))
		}
	}
	return found, nil
}

// checkPublicationFilter: row filters and column lists exist from 15 on.
func checkPublicationFilter(ctx context.Context, c *checker) ([]Finding, error) {
	p, err := c.publication(ctx)
	if err != nil || p == nil || c.version < 150000 {
		return nil, err
	}
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range tables {
		var filter string
		var columns []string
		err := c.tx.QueryRow(ctx, `
			SELECT coalesce(pg_catalog.pg_get_expr(prqual, prrelid), ''),
			       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = prrelid AND a.attnum = ANY (prattrs) ORDER BY a.attnum)
			FROM pg_catalog.pg_publication_rel WHERE prpubid = $1 AND prrelid = $2`, p.oid, table.OID).Scan(&filter, &columns)
		if errors.Is(err, pgx.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, err
		}
		names := quoted(table)
		fix := &Fix{As: owner, SQL: []string{
			"ALTER PUBLICATION " + quote(c.Publication) + " DROP TABLE " + names,
			"ALTER PUBLICATION " + quote(c.Publication) + " ADD TABLE " + names,
		}, Do: "see the check publication-changed then: rows that were left out are in the table"}
		if filter != "" {
			found = append(found, warning(fmt.Sprintf("rows of %s are left out unless %s", relation(table), filter), "they stay unpublished for ever, and no subscriber hears of them", fix).about(table.Source.Name))
		}
		if len(columns) > 0 {
			text := fmt.Sprintf("only the columns %s of %s are published", strings.Join(columns, ", "), relation(table))
			if _, err := table.Layout(columns); err != nil {
				found = append(found, problem(text, err.Error(), fix).about(table.Source.Name))
			} else {
				found = append(found, warning(text, "what an event is made of may be missing", fix).about(table.Source.Name))
			}
		}
	}
	return found, nil
}

// checkPublicationChanged compares with what was published when walpost last compared it. A slot older than its
// publication shows itself here, too.
func checkPublicationChanged(ctx context.Context, c *checker) ([]Finding, error) {
	known, err := c.record(ctx)
	if err != nil || known == nil || known.State != store.SlotReady {
		return nil, err
	}
	p, err := c.publication(ctx)
	if err != nil || p == nil { // the check publication has its say
		return nil, err
	}
	found, err := c.slot(ctx)
	if err != nil || found == nil {
		return nil, err
	}
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	withTables := 0
	for _, source := range c.Sources {
		if source.Table != "" {
			withTables++
		}
	}
	if len(tables) < withTables { // the check source-table has its say
		return nil, nil
	}
	published, err := slot.ReadPublished(ctx, c.tx, c.Publication, c.Sources)
	if err != nil {
		return nil, err
	}
	changed := slot.Compare(known.Fingerprint, published.Now).Changed
	if len(changed) == 0 {
		return nil, nil
	}
	return []Finding{problem("publication or tables were created again or altered since walpost last compared them: "+list(changed),
		"rows inserted meanwhile may not be in the stream; they are in the table", c.dropSlot())}, nil
}
