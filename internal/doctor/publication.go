package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
)

// publication is a row of pg_publication.
type publication struct {
	oid                              uint32
	insert, update, delete, truncate bool
	viaRoot, allTables               bool
	schemas                          []string // FOR TABLES IN SCHEMA, from 15 on

	foreign string // why it can be another program's; "" where it is ours. Set by judgeOwner
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

// change is the fix that a statement makes, or words where the publication can be another program's: altering it would
// change what that program receives.
func (p *publication) change(sql advice.Statement) *Fix {
	if p.foreign != "" {
		return &Fix{Do: fmt.Sprintf("choose another name with publication (WALPOST_PUBLICATION), and the relay makes that one; this one can be another program's: %s", p.foreign)}
	}
	return &Fix{As: owner, SQL: []advice.Statement{sql}}
}

// judgeOwner finds out whether the publication can be another program's, and of which tables it is. It is ours where
// walpost has recorded that its slot reads it and no other slot of walpost's reads it too; or where it has tables of
// our sources alone and the database has no slot by which another program could read it.
func (c *checker) judgeOwner(ctx context.Context, p *publication) error {
	tables, err := c.allTables(ctx)
	if err != nil {
		return err
	}
	there, err := store.HasSlots(ctx, c.tx)
	if err != nil {
		return err
	}
	var records []store.SlotRecord
	if there {
		if records, err = store.ListSlotRecords(ctx, c.tx); err != nil {
			return err
		}
	}
	recorded := false
	names := []string{c.Slot}
	for _, r := range records {
		names = append(names, r.Name)
		reads := strings.HasPrefix(r.Fingerprint.Publication, fmt.Sprintf("%d:", p.oid))
		switch {
		case reads && r.Name == c.Slot:
			recorded = true
		case reads:
			p.foreign = fmt.Sprintf("slot %q of another relay reads it", r.Name)
			return nil
		}
	}
	if recorded {
		return nil
	}
	extra, err := c.extraTables(ctx, p, tables)
	if err != nil {
		return err
	}
	if p.allTables || len(p.schemas) > 0 || len(extra) > 0 {
		p.foreign = "it has tables of no source, and no relay has read it yet"
		return nil
	}
	others, err := c.texts(ctx, `
		SELECT slot_name::text FROM pg_catalog.pg_replication_slots
		WHERE plugin = 'pgoutput' AND database = pg_catalog.current_database() AND slot_name::text <> ALL ($1) ORDER BY 1`, names)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		p.foreign = "no relay has read it yet, and this database has slots of other programs: " + list(others)
	}
	return nil
}

// extraTables are those of the publication that no source names.
func (c *checker) extraTables(ctx context.Context, p *publication, tables []*outbox.Table) ([]pgx.Identifier, error) {
	oids := []uint32{}
	for _, table := range tables {
		oids = append(oids, table.OID)
	}
	rows, err := c.tx.Query(ctx, `
		SELECT n.nspname::text, c.relname::text
		FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE r.prpubid = $1 AND c.oid <> ALL ($2::oid[])
		  AND NOT EXISTS (SELECT FROM unnest($2::oid[]) AS o WHERE c.oid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(o)))
		ORDER BY 1, 2`, p.oid, oids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (pgx.Identifier, error) {
		name := pgx.Identifier{"", ""}
		return name, row.Scan(&name[0], &name[1])
	})
}

func sanitized(names []pgx.Identifier) string {
	var texts []string
	for _, name := range names {
		texts = append(texts, name.Sanitize())
	}
	return strings.Join(texts, ", ")
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
		return []Finding{skipped(fmt.Sprintf("there is no publication %q yet; the relay makes it", c.Publication))}, nil
	}
	known, err := c.record(ctx)
	if err != nil {
		return nil, err
	}
	fix := c.repair(ctx)
	if known == nil {
		fix = &Fix{Do: "let the person who prepared the slot drop it, make the publication and then the slot; or choose another name with slot (WALPOST_SLOT), and the relay makes both"}
	}
	return []Finding{problem(fmt.Sprintf("publication %q does not exist, but the slot does", c.Publication),
		"rows inserted meanwhile are not in the stream, and for what the slot has still to read the publication does not exist, even once it is made", fix)}, nil
}

const noSource = "the relay stops at the first row of a table that no source names: it may be an outbox that was renamed"

func checkPublicationTables(ctx context.Context, c *checker) ([]Finding, error) {
	p, err := c.publication(ctx)
	if err != nil || p == nil {
		return nil, err
	}
	if err := c.judgeOwner(ctx, p); err != nil {
		return nil, err
	}
	tables, err := c.allTables(ctx)
	if err != nil {
		return nil, err
	}
	if p.allTables || len(p.schemas) > 0 {
		what, fix := "all tables of schema "+strings.Join(p.schemas, ", "), p.change(advice.SetTables(c.Publication, identifiers(tables)))
		if p.allTables { // there is no statement for less, and a publication that is dropped is dropped for everyone
			what, fix = "all tables", &Fix{Do: "choose another name with publication (WALPOST_PUBLICATION), and the relay makes that one; drop this one only if no other program reads it"}
		}
		return []Finding{problem(fmt.Sprintf("publication %q has %s", c.Publication, what), noSource, fix)}, nil
	}
	var found []Finding
	var absent []pgx.Identifier
	for _, table := range tables {
		var published bool
		err := c.tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = $1
			       AND (r.prrelid = $2 OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors($2::oid))))`, p.oid, table.OID).Scan(&published)
		if err != nil {
			return nil, err
		}
		if !published {
			absent = append(absent, identifier(table))
		}
	}
	if absent != nil {
		found = append(found, problem(fmt.Sprintf("publication %q lacks %s", c.Publication, sanitized(absent)), "their events are not in the stream", p.change(advice.AddTables(c.Publication, absent))))
	}
	extra, err := c.extraTables(ctx, p, tables)
	if err != nil {
		return nil, err
	}
	known, err := c.record(ctx)
	if err != nil {
		return nil, err
	}
	var former, strange []pgx.Identifier
	for _, name := range extra {
		if known != nil && wasSource(known.Fingerprint, name) {
			former = append(former, name)
		} else {
			strange = append(strange, name)
		}
	}
	if len(former) > 0 {
		// A source whose name was mistyped looks just like a table that was taken off the sources.
		found = append(found, warning(fmt.Sprintf("publication %q has tables that were sources when a relay last ran: %s", c.Publication, sanitized(former)),
			"their rows reach no subscriber: the relay passes over them and counts them (walpost_rows_passed_over_total)",
			&Fix{Do: "if the configuration leaves them out by mistake, correct it; else the owner of the publication takes them off it"}))
	}
	if len(strange) > 0 {
		found = append(found, problem(fmt.Sprintf("publication %q has tables that are no source: %s", c.Publication, sanitized(strange)), noSource, p.change(advice.DropTables(c.Publication, strange))))
	}
	return found, nil
}

// wasSource reports whether a table was that of a source when a relay last ran.
func wasSource(known store.Fingerprint, table pgx.Identifier) bool {
	return slices.ContainsFunc(known.Sources, func(s store.PublishedSource) bool { return s.Schema == table[0] && s.Table == table[1] })
}

func checkPublicationOperations(ctx context.Context, c *checker) ([]Finding, error) {
	p, err := c.publication(ctx)
	if err != nil || p == nil {
		return nil, err
	}
	if p.insert && !p.update && !p.delete && !p.truncate {
		return nil, nil
	}
	if err := c.judgeOwner(ctx, p); err != nil {
		return nil, err
	}
	fix := p.change(advice.PublishInserts(c.Publication))
	if !p.insert {
		return []Finding{problem(fmt.Sprintf("publication %q does not publish inserts", c.Publication), "an inserted row is an event, and there are none then", fix)}, nil
	}
	return []Finding{warning(fmt.Sprintf("publication %q publishes more than inserts", c.Publication), "walpost's own marks and deletes come back to it and are thrown away; and marking needs a replica identity then", fix)}, nil
}

func checkPublicationRoot(ctx context.Context, c *checker) ([]Finding, error) {
	p, err := c.publication(ctx)
	if err != nil || p == nil || p.viaRoot {
		return nil, err
	}
	if err := c.judgeOwner(ctx, p); err != nil {
		return nil, err
	}
	tables, err := c.allTables(ctx)
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
				"the relay knows the root as the source, and no partition", p.change(advice.PublishViaRoot(c.Publication))).about(table.Source.Name))
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
	if err := c.judgeOwner(ctx, p); err != nil {
		return nil, err
	}
	tables, err := c.allTables(ctx)
	if err != nil {
		return nil, err
	}
	extra, err := c.extraTables(ctx, p, tables)
	if err != nil {
		return nil, err
	}
	fix := p.change(advice.SetTables(c.Publication, identifiers(tables)))
	if len(extra) > 0 {
		fix = &Fix{Do: "see the check publication-tables first"}
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
		if filter != "" {
			found = append(found, problem(fmt.Sprintf("rows of %s are left out unless %s", relation(table), filter), "no subscriber would get them, and no one would know, so the relay does not run; without the filter it sends what was left out", fix).about(table.Source.Name))
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
	there, err := c.slot(ctx)
	if err != nil || there == nil {
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
		"rows inserted meanwhile may not be in the stream; they are in the table", c.repair(ctx))}, nil
}
