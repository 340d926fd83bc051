package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/wal"
)

// publication is a row of pg_publication.
type publication struct {
	oid                              uint32
	insert, update, delete, truncate bool
	viaRoot, allTables               bool
	schemas                          []string // FOR TABLES IN SCHEMA, from 15 on
}

func (e *exam) publication(ctx context.Context) (*publication, error) {
	schemas := "NULL::text[]"
	if e.version >= 150000 {
		schemas = `ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_publication_namespace s JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid
			WHERE s.pnpubid = p.oid ORDER BY 1)`
	}
	var p publication
	err := e.tx.QueryRow(ctx, `
		SELECT oid, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, puballtables, `+schemas+`
		FROM pg_catalog.pg_publication p WHERE pubname = $1`, e.Publication).
		Scan(&p.oid, &p.insert, &p.update, &p.delete, &p.truncate, &p.viaRoot, &p.allTables, &p.schemas)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up publication %q: %w", e.Publication, err)
	}
	return &p, nil
}

// owner is who may change the publication.
const owner = "the owner of the publication and of the tables"

func (e *exam) alter(what string) *Mend {
	return &Mend{As: owner, SQL: []string{"ALTER PUBLICATION " + quote(e.Publication) + " " + what}}
}

func checkPublication(ctx context.Context, e *exam) ([]Finding, error) {
	p, err := e.publication(ctx)
	if err != nil || p != nil {
		return nil, err
	}
	slot, err := e.slot(ctx)
	if err != nil {
		return nil, err
	}
	if slot == nil {
		return []Finding{ok(fmt.Sprintf("there is no publication %q yet; the relay makes it", e.Publication))}, nil
	}
	tables, err := e.tables(ctx)
	if err != nil {
		return nil, err
	}
	mend := e.dropSlot(wal.CreatePublication(e.Publication, identifiers(tables)))
	mend.As = owner + ", while no relay runs"
	return []Finding{problem(fmt.Sprintf("publication %q does not exist, but the slot does", e.Publication),
		"rows inserted meanwhile are not in the stream, and for what the slot has still to read the publication does not exist, even once it is made", mend)}, nil
}

// remake replaces a publication of too much. It does not exist for what an old slot has still to read.
func (e *exam) remake(ctx context.Context, tables []*outbox.Table) (*Mend, error) {
	sql := []string{"DROP PUBLICATION " + quote(e.Publication), wal.CreatePublication(e.Publication, identifiers(tables))}
	slot, err := e.slot(ctx)
	if err != nil {
		return nil, err
	}
	if slot == nil {
		return &Mend{As: owner, SQL: sql}, nil
	}
	mend := e.dropSlot(sql...)
	mend.As = owner + ", while no relay runs"
	return mend, nil
}

const noSource = "the relay stops at the first row of a table that no source names: it may be an outbox that was renamed"

func checkPublicationTables(ctx context.Context, e *exam) ([]Finding, error) {
	p, err := e.publication(ctx)
	if err != nil || p == nil {
		return nil, err
	}
	tables, err := e.tables(ctx)
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
		mend, err := e.remake(ctx, tables)
		if err != nil {
			return nil, err
		}
		return []Finding{problem(fmt.Sprintf("publication %q has %s", e.Publication, what), noSource, mend)}, nil
	}
	var found []Finding
	var absent []string
	for i, table := range tables {
		var published bool
		err := e.tx.QueryRow(ctx, `
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
		found = append(found, problem(fmt.Sprintf("publication %q lacks %s", e.Publication, strings.Join(absent, ", ")), "their events are not in the stream", e.alter("ADD TABLE "+strings.Join(absent, ", "))))
	}
	extra, err := e.texts(ctx, `
		SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
		FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE r.prpubid = $1 AND c.oid <> ALL ($2::oid[])
		  AND NOT EXISTS (SELECT FROM unnest($2::oid[]) AS o WHERE c.oid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(o)))
		ORDER BY 1`, p.oid, append([]uint32{}, oids...))
	if err != nil {
		return nil, err
	}
	if len(extra) > 0 {
		found = append(found, problem(fmt.Sprintf("publication %q has tables that are no source: %s", e.Publication, strings.Join(extra, ", ")), noSource, e.alter("DROP TABLE "+strings.Join(extra, ", "))))
	}
	return found, nil
}

func checkPublicationOperations(ctx context.Context, e *exam) ([]Finding, error) {
	p, err := e.publication(ctx)
	if err != nil || p == nil {
		return nil, err
	}
	mend := e.alter("SET (publish = 'insert')")
	switch {
	case !p.insert:
		return []Finding{problem(fmt.Sprintf("publication %q does not publish inserts", e.Publication), "an inserted row is an event, and there are none then", mend)}, nil
	case p.update || p.delete || p.truncate:
		return []Finding{warning(fmt.Sprintf("publication %q publishes more than inserts", e.Publication), "walpost's own marks and deletes come back to it and are thrown away; and marking needs a replica identity then", mend)}, nil
	}
	return nil, nil
}

func checkPublicationRoot(ctx context.Context, e *exam) ([]Finding, error) {
	p, err := e.publication(ctx)
	if err != nil || p == nil || p.viaRoot {
		return nil, err
	}
	tables, err := e.tables(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range tables {
		var partitioned bool
		if err := e.tx.QueryRow(ctx, `SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = $1`, table.OID).Scan(&partitioned); err != nil {
			return nil, err
		}
		if partitioned {
			found = append(found, problem(relation(table)+" is partitioned, and its rows are published under the names of the partitions",
				"the relay knows the root as the source, and no partition", e.alter("SET (publish_via_partition_root = true)")).about(table.Source.Name))
		}
	}
	return found, nil
}

// checkPublicationFilter: row filters and column lists exist from 15 on.
func checkPublicationFilter(ctx context.Context, e *exam) ([]Finding, error) {
	p, err := e.publication(ctx)
	if err != nil || p == nil || e.version < 150000 {
		return nil, err
	}
	tables, err := e.tables(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range tables {
		var filter string
		var columns []string
		err := e.tx.QueryRow(ctx, `
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
		mend := &Mend{As: owner, SQL: []string{
			"ALTER PUBLICATION " + quote(e.Publication) + " DROP TABLE " + names,
			"ALTER PUBLICATION " + quote(e.Publication) + " ADD TABLE " + names,
		}, Do: "see the check publication-changed then: rows that were left out are in the table"}
		if filter != "" {
			found = append(found, warning(fmt.Sprintf("rows of %s are left out unless %s", relation(table), filter), "they stay unpublished for ever, and no subscriber hears of them", mend).about(table.Source.Name))
		}
		if len(columns) > 0 {
			text := fmt.Sprintf("only the columns %s of %s are published", strings.Join(columns, ", "), relation(table))
			if _, err := table.Layout(columns); err != nil {
				found = append(found, problem(text, err.Error(), mend).about(table.Source.Name))
			} else {
				found = append(found, warning(text, "what an event is made of may be missing", mend).about(table.Source.Name))
			}
		}
	}
	return found, nil
}

// checkPublicationChanged compares with what was published when walpost last looked. A slot older than its
// publication shows itself here, too.
func checkPublicationChanged(ctx context.Context, e *exam) ([]Finding, error) {
	known, err := e.record(ctx)
	if err != nil || known == nil || known.state != "ready" {
		return nil, err
	}
	p, err := e.publication(ctx)
	if err != nil || p == nil { // the check publication has its say
		return nil, err
	}
	slot, err := e.slot(ctx)
	if err != nil || slot == nil {
		return nil, err
	}
	tables, err := e.tables(ctx)
	if err != nil {
		return nil, err
	}
	withTables := 0
	for _, source := range e.Sources {
		if source.Table != "" {
			withTables++
		}
	}
	if len(tables) < withTables { // the check source-table has its say
		return nil, nil
	}
	now, err := outbox.Fingerprint(ctx, e.tx, e.Publication, e.Sources)
	if err != nil || now == known.fingerprint {
		return nil, err
	}
	return []Finding{problem("publication or tables were made anew or altered since walpost last looked",
		"rows inserted meanwhile may not be in the stream; they are in the table", e.dropSlot())}, nil
}
