package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
)

func identifiers(tables []*outbox.Table) []pgx.Identifier {
	names := make([]pgx.Identifier, len(tables))
	for i, table := range tables {
		names[i] = identifier(table)
	}
	return names
}

func checkSourceTables(ctx context.Context, c *checker) ([]Finding, error) {
	var found []Finding
	sources, err := c.knownSources(ctx)
	if err != nil {
		return nil, err
	}
	for _, source := range sources {
		table, err := source.Inspect(ctx, c.tx)
		if err != nil {
			if postgres.Code(err) != "" || postgres.Unavailable(err) || ctx.Err() != nil {
				return nil, err
			}
			found = append(found, problem(err.Error(), "the relay does not know what an event is there", &Fix{Do: "correct the table, or the source in walpost.yaml"}).about(source.Name))
			continue
		}
		for _, text := range table.Warnings() {
			found = append(found, warning(text, "it works, but is surely not meant", &Fix{Do: "correct the table, or the source in walpost.yaml"}).about(source.Name))
		}
		if name := table.ZonelessTime(); name != "" && source.TimeZone == "" {
			found = append(found, warning(fmt.Sprintf("time column %q of %s has no time zone", name, relation(table)),
				"walpost takes it for UTC: where its writers mean another zone, the time of CloudEvents and replay --since are hours off",
				&Fix{Do: "name the zone that the values are in: time_zone: of the source, UTC or one as Asia/Tokyo; or make the column timestamptz (ALTER COLUMN … TYPE timestamptz USING … AT TIME ZONE '…')"}).about(source.Name))
		}
		born, err := c.bornPublished(ctx, table)
		if err != nil {
			return nil, err
		}
		found = append(found, born...)
		var permanent bool
		if err := c.tx.QueryRow(ctx, `SELECT relpersistence = 'p' FROM pg_catalog.pg_class WHERE oid = $1`, table.OID).Scan(&permanent); err != nil {
			return nil, err
		}
		if !permanent {
			found = append(found, problem(relation(table)+" is unlogged or temporary", "its rows are not in the WAL, and do not survive a crash",
				&Fix{As: "the owner of " + relation(table), SQL: []advice.Statement{advice.SetLogged(identifier(table))}}).about(source.Name))
		}
	}
	return found, nil
}

// bornPublished finds what gives each new row a published column that is set: such a row is no event.
func (c *checker) bornPublished(ctx context.Context, table *outbox.Table) ([]Finding, error) {
	if table.Published == "" {
		return nil, nil
	}
	var boolean, given, notNull bool
	err := c.tx.QueryRow(ctx, `
		SELECT bool_or(a.atttypid = 'pg_catalog.bool'::pg_catalog.regtype),
		       coalesce(bool_or(pg_catalog.pg_get_expr(d.adbin, d.adrelid) <> 'false'), false), bool_or(a.attnotnull)
		FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE (a.attrelid = $1 OR a.attrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid))) AND a.attname = $2 AND NOT a.attisdropped`,
		table.OID, table.Published).Scan(&boolean, &given, &notNull)
	if err != nil {
		return nil, err
	}
	const why = "a row whose published column is set when it comes is no event: no subscriber gets it, and a repair does not find it"
	fix := &Fix{As: "the owner of " + relation(table), Do: "rows that were born published are not sent: set the column to NULL (false) where one should be, and start a replay or a repair"}
	switch {
	case boolean && given:
		fix.SQL = []advice.Statement{advice.DefaultFalse(identifier(table), table.Published)}
		return []Finding{problem(fmt.Sprintf("column %q of %s has a default that is not false", table.Published, relation(table)), why, fix).about(table.Source.Name)}, nil
	case !boolean && (given || notNull):
		fix.SQL = []advice.Statement{advice.LetRowsWait(identifier(table), table.Published, given, notNull)}
		what := "has a default"
		if notNull {
			what = "cannot be NULL"
		}
		return []Finding{problem(fmt.Sprintf("column %q of %s %s", table.Published, relation(table), what), why, fix).about(table.Source.Name)}, nil
	}
	return nil, nil
}

func checkSourceRepair(ctx context.Context, c *checker) ([]Finding, error) {
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	const why = "after a lost slot it is not known which events were not delivered"
	var found []Finding
	for _, source := range c.Sources {
		if source.Messages != "" {
			found = append(found, warning("logical messages are in no table", why,
				&Fix{Do: "only an outbox table changes that; the program that writes the messages must be able to write them again"}).about(source.Name))
		}
	}
	for _, table := range tables {
		switch {
		case table.Source.Deleted:
			found = append(found, warning(relation(table)+" keeps no rows: its service deletes each in the transaction that inserts it",
				"the WAL alone has its events: what is not delivered or recorded as owed when the slot is lost is gone, no replay can send anything again, and new subscribers have no beginning",
				&Fix{Do: "leave the rows and let retention: delete them, with rows: ours; or accept it, and give the slot room (max_slot_wal_keep_size) and a wal_budget below that; then this warning may stay"}).about(table.Source.Name))
		case table.Published == "":
			found = append(found, warning(relation(table)+" has no column that says which rows were published", why,
				&Fix{As: "the owner of " + relation(table), SQL: []advice.Statement{advice.AddPublishedColumn(identifier(table))}, Do: "restart the relay; only rows that come afterwards can be repaired"}).about(table.Source.Name))
		case !table.Source.Mark:
			found = append(found, warning("mark is off, so walpost does not mark what it has delivered", "after a lost slot every row that no other program has marked is sent again",
				&Fix{Do: "set mark: auto, unless another program marks the rows. " + countAsPublished(table)}).about(table.Source.Name))
		}
	}
	return found, nil
}

// countAsPublished says what to do about rows that were delivered while nothing marked them. It is no statement of the fix:
// where another program marks the rows, it would take them away from that program.
func countAsPublished(table *outbox.Table) string {
	const then = "What was delivered until then stays unpublished, and the next repair would send all of it again: when the relay has restarted and caught up (walpost status), "
	set, condition, id := table.CountAsPublishedSQL("now() - interval '1 hour'")
	if set == "" {
		return then + fmt.Sprintf("set column %q of the rows that were there before it restarted, but for those that walpost owed list has", table.Published)
	}
	return then + fmt.Sprintf("count it as published, as the owner of %s: %s", relation(table),
		advice.CountAsPublished(identifier(table), set, condition+" AND NOT "+debt.OwedByIDSQL(id)))
}

// checkEventIDs finds ids out of a sequence. For walpost an id that comes again is another event, because
// its occurrence differs; a receiver knows the id alone.
func checkEventIDs(ctx context.Context, c *checker) ([]Finding, error) {
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range tables {
		var receivers []string
		for _, s := range c.Subscribers {
			if s.Outside && (len(s.Sources) == 0 || slices.Contains(s.Sources, table.Source.Name)) {
				receivers = append(receivers, s.Name)
			}
		}
		if len(receivers) > 0 && table.NumberedIDs() {
			found = append(found, warning(fmt.Sprintf("the event ids of %s are numbers, and go to %s", relation(table), strings.Join(receivers, ", ")),
				"after a TRUNCATE that restarts identities, a DELETE or a sequence that was set back they come again; walpost delivers them as other events, and a receiver that dedupes on the id drops them",
				&Fix{Do: "map columns.id to a column whose values never come again (UUID, ULID), or let the receivers dedupe on the id and a time in the payload; then this warning may stay"}).about(table.Source.Name))
		}
	}
	return found, nil
}

// checkReplicaIdentity finds another publication that makes our own marks fail.
// (PostgreSQL manual, "Publication": a replica identity is needed to publish updates)
func checkReplicaIdentity(ctx context.Context, c *checker) ([]Finding, error) {
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	bySchema := "false"
	if c.version >= 150000 {
		bySchema = "EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"
	}
	var found []Finding
	for _, table := range tables {
		if !table.Marks() {
			continue
		}
		rows, err := c.tx.Query(ctx, `
			SELECT n.nspname::text, c.relname::text, string_agg(DISTINCT p.pubname::text, ', ')
			FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace, pg_catalog.pg_publication p
			WHERE (c.oid = $1 OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1::oid))) AND c.relkind = 'r'
			  AND p.pubupdate AND (p.puballtables OR `+bySchema+` OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
			      AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)))))
			  AND NOT (c.relreplident = 'f'
			      OR c.relreplident = 'd' AND EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
			      OR c.relreplident = 'i' AND EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident))
			GROUP BY 1, 2 ORDER BY 1, 2`, table.OID)
		if err != nil {
			return nil, err
		}
		var schema, name, publications string
		_, err = pgx.ForEachRow(rows, []any{&schema, &name, &publications}, func() error {
			found = append(found, problem(fmt.Sprintf("%s.%s has no replica identity, and updates of it are published by %s", schema, name, publications),
				"the server refuses updates of such a table, so no row can be marked and nothing is confirmed",
				&Fix{As: "the owner of the table", SQL: []advice.Statement{advice.SetReplicaIdentity(pgx.Identifier{schema, name})},
					Do: "better still, give the table a primary key, or take it off that publication"}).about(table.Source.Name))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Bloat is judged by the server's own estimates, which cost nothing: more dead rows than live ones, and
// enough of them to matter.
const fewDeadRows = 10_000

func checkTableBloat(ctx context.Context, c *checker) ([]Finding, error) {
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	oids := []uint32{}
	for _, table := range tables {
		oids = append(oids, table.OID)
	}
	rows, err := c.tx.Query(ctx, `
		SELECT s.schemaname::text, s.relname::text, s.n_dead_tup, s.n_live_tup
		FROM pg_catalog.pg_stat_all_tables s
		WHERE (s.schemaname = 'walpost' OR s.relid = ANY ($1::oid[])
		       OR s.relid IN (SELECT t.relid FROM unnest($1::oid[]) AS o, pg_catalog.pg_partition_tree(o) AS t))
		  AND s.n_dead_tup > $2 AND s.n_dead_tup > s.n_live_tup
		ORDER BY 1, 2`, oids, fewDeadRows)
	if err != nil {
		return nil, err
	}
	var found []Finding
	var schema, name string
	var dead, live int64
	_, err = pgx.ForEachRow(rows, []any{&schema, &name, &dead, &live}, func() error {
		found = append(found, warning(fmt.Sprintf("dead rows: about %d, live ones: %d", dead, live), "every read of the table passes over them; autovacuum is off, too slow, or held up by an old transaction or slot",
			&Fix{As: "the owner of " + schema + "." + name, SQL: []advice.Statement{advice.Vacuum(pgx.Identifier{schema, name})},
				Do: "if they are not gone then, see the checks old-transaction and catalog-xmin"}).about(schema+"."+name))
		return nil
	})
	return found, err
}

func checkOldestUnpublished(ctx context.Context, c *checker) ([]Finding, error) {
	tables, found, err := c.readable(ctx)
	if err != nil {
		return nil, err
	}
	var now time.Time
	if err := c.tx.QueryRow(ctx, `SELECT pg_catalog.now()`).Scan(&now); err != nil {
		return nil, err
	}
	for _, table := range tables {
		oldest, err := table.OldestUnpublished(ctx, c.tx)
		if err != nil {
			return nil, err
		}
		if age := now.Sub(oldest); !oldest.IsZero() && age > c.OldAfter {
			found = append(found, warning(fmt.Sprintf("the oldest unpublished row of %s has waited for %s", relation(table), printable.Age(age)),
				"no relay runs, or a subscriber has not had the event; only then is a row marked",
				&Fix{Do: "start the relay, or see with walpost status who is owed, and with walpost deadletters list what waits for a person"}).about(table.Source.Name))
		}
	}
	return found, nil
}

// checkOwedSources names what is owed by reference to rows of a source that has left the configuration: it is not sent, and
// every read of the debt passes over it.
func checkOwedSources(ctx context.Context, c *checker) ([]Finding, error) {
	sources := make([]string, len(c.Sources))
	for i, source := range c.Sources {
		sources[i] = source.Name
	}
	absent, err := debt.AbsentSources(ctx, c.tx, c.Slot, sources)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, subscriber := range slices.Sorted(maps.Keys(absent)) {
		for _, source := range slices.Sorted(maps.Keys(absent[subscriber])) {
			found = append(found, warning(fmt.Sprintf("subscriber %q is owed %s of source %q, which is not in the configuration",
				subscriber, printable.Count(absent[subscriber][source], "event"), source),
				"they are not sent, and each read of its debt passes over them",
				&Fix{Do: "put the source back into walpost.yaml, or discard them: walpost owed discard, with --subscriber and --source"}).about(source))
		}
	}
	return found, nil
}
