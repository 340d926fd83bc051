package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/outbox"
)

// foreign is code of another role that runs as the relay, with all its rights.
type foreign struct {
	What  string // "trigger t on public.outbox"
	Owner string
}

func (f foreign) String() string { return f.What + " (of role " + f.Owner + ")" }

// foreignSQL finds what a statement of walpost on a table, what inherits from it and the types of its columns also
// runs: functions of triggers, checks and generated columns, and rules, where it writes; where it reads, those of
// casts, and of indexes, statistics and partitions, whose constant parts are computed by each role that plans a query. $1 is the
// table, $2 the columns that are set, $3 whether rows are deleted. Code of the role itself, of superusers and of Postgres
// is not foreign.
//
// An expression is made of functions and operators, which pg_depend has but for those of Postgres, and it may convert to
// a type with code of its own: a domain, also inside of an array, a range or a row. Some functions of Postgres run what
// they are given: SQL in a text, a view by its name, the check of a domain by its number. They are volatile or listed, and
// stand in the text of the expression only.
const foreignSQL = `
	WITH RECURSIVE tables AS (
		SELECT $1::oid AS oid UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tables ON i.inhparent = tables.oid
	), triggers AS (
		SELECT t.* FROM pg_catalog.pg_trigger t JOIN tables ON t.tgrelid = tables.oid
		WHERE NOT t.tgisinternal AND t.tgenabled <> 'D'
		  AND (t.tgtype & 8 <> 0 AND $3 OR t.tgtype & 16 <> 0 AND pg_catalog.cardinality($2::text[]) > 0 AND (
		    t.tgattr::text = '' OR EXISTS (SELECT FROM pg_catalog.pg_attribute a
		        WHERE a.attrelid = t.tgrelid AND a.attnum = ANY (t.tgattr) AND a.attname::text = ANY ($2))))
	), expressions AS (
		SELECT 'pg_catalog.pg_class'::pg_catalog.regclass AS class, i.indexrelid AS oid, NULL::int AS sub, 0::oid AS domain, i.indrelid AS of,
		       'index ' || i.indexrelid::pg_catalog.regclass AS what, NULL AS tree
		FROM pg_catalog.pg_index i JOIN tables ON i.indrelid = tables.oid
		UNION ALL
		SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, tables.oid, 0, 0, tables.oid, 'partition key of ' || tables.oid::pg_catalog.regclass, NULL FROM tables
		UNION ALL
		SELECT 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, s.oid, NULL, 0, s.stxrelid, 'statistics ' || s.stxname || ' of ' || s.stxrelid::pg_catalog.regclass, NULL
		FROM pg_catalog.pg_statistic_ext s JOIN tables ON s.stxrelid = tables.oid
		UNION ALL
		SELECT g.class, g.oid, g.sub, 0, a.attrelid, 'generated column ' || a.attname || ' of ' || a.attrelid::pg_catalog.regclass, NULL
		FROM pg_catalog.pg_attribute a JOIN tables ON a.attrelid = tables.oid
		JOIN pg_catalog.pg_attrdef d ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated <> '',
		LATERAL (VALUES ('pg_catalog.pg_attrdef'::pg_catalog.regclass, d.oid, NULL::int),
		                ('pg_catalog.pg_class'::pg_catalog.regclass, a.attrelid, a.attnum::int)) AS g(class, oid, sub) -- the latter on 14
		UNION ALL
		SELECT 'pg_catalog.pg_trigger'::pg_catalog.regclass, t.oid, NULL, 0, t.tgrelid, 'trigger ' || t.tgname || ' on ' || t.tgrelid::pg_catalog.regclass, t.tgqual::text
		FROM triggers t
		UNION ALL
		SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid, NULL, 0, c.conrelid, 'check ' || c.conname || ' of ' || c.conrelid::pg_catalog.regclass, c.conbin::text
		FROM pg_catalog.pg_constraint c JOIN tables ON c.conrelid = tables.oid WHERE c.contype = 'c'
		UNION ALL
		SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid, NULL, c.contypid, 0, 'check ' || c.conname || ' of domain ' || c.contypid::pg_catalog.regtype, c.conbin::text
		FROM pg_catalog.pg_constraint c WHERE c.contype = 'c' AND c.contypid <> 0
	), mentions AS (
		SELECT e.domain, d.refobjid AS oid FROM expressions e
		JOIN pg_catalog.pg_depend d ON d.classid = e.class AND d.objid = e.oid AND (e.sub IS NULL OR d.objsubid = e.sub)
		    AND d.refclassid = 'pg_catalog.pg_type'::pg_catalog.regclass
	), types AS (
		SELECT a.atttypid AS oid FROM pg_catalog.pg_attribute a JOIN tables ON attrelid = tables.oid WHERE a.attnum > 0 AND NOT a.attisdropped
		UNION SELECT m.oid FROM mentions m WHERE m.domain = 0
		UNION SELECT inner_type.oid FROM types, LATERAL (
			SELECT t.typbasetype AS oid FROM pg_catalog.pg_type t WHERE t.oid = types.oid AND t.typtype = 'd'
			UNION ALL SELECT t.typelem FROM pg_catalog.pg_type t WHERE t.oid = types.oid AND t.typelem <> 0
			UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = types.oid OR r.rngmultitypid = types.oid
			UNION ALL SELECT a.atttypid FROM pg_catalog.pg_type t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid
				WHERE t.oid = types.oid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL SELECT m.oid FROM mentions m WHERE m.domain = types.oid
		) inner_type
	), code AS (
		SELECT 'trigger ' || t.tgname || ' on ' || t.tgrelid::pg_catalog.regclass AS what, p.proowner AS owner, p.pronamespace AS space
		FROM triggers t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
		UNION ALL
		SELECT e.what, p.proowner, p.pronamespace
		FROM expressions e JOIN pg_catalog.pg_depend d ON d.classid = e.class AND d.objid = e.oid AND (e.sub IS NULL OR d.objsubid = e.sub)
		    AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass)
		LEFT JOIN pg_catalog.pg_operator o ON d.refclassid = 'pg_catalog.pg_operator'::pg_catalog.regclass AND o.oid = d.refobjid
		JOIN pg_catalog.pg_proc p ON p.oid = coalesce(o.oprcode::oid, d.refobjid)
		WHERE e.domain = 0 OR e.domain IN (SELECT oid FROM types)
		UNION ALL
		SELECT e.what, coalesce(c.relowner, t.typowner), 0
		FROM expressions e LEFT JOIN pg_catalog.pg_class c ON c.oid = e.of LEFT JOIN pg_catalog.pg_type t ON t.oid = e.domain
		WHERE (e.domain = 0 OR e.domain IN (SELECT oid FROM types)) AND EXISTS (
			SELECT FROM pg_catalog.regexp_matches(e.tree, ':funcid ([0-9]+)', 'g') f JOIN pg_catalog.pg_proc p ON p.oid = f[1]::oid
			WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace
			  AND (p.provolatile = 'v' AND p.proname <> ALL ('{clock_timestamp,timeofday,random,random_normal,gen_random_uuid,uuidv4,uuidv7,nextval,currval,lastval}')
			    OR p.proname ~ '_to_xml|^(domain|array|record|range|multirange)_(in|recv)$|^pg_input_'))
		UNION ALL
		SELECT 'cast of ' || c.castsource::pg_catalog.regtype || ' to ' || c.casttarget::pg_catalog.regtype, p.proowner, p.pronamespace
		FROM pg_catalog.pg_cast c JOIN pg_catalog.pg_proc p ON p.oid = c.castfunc
		WHERE c.castsource IN (SELECT oid FROM types) OR c.casttarget IN (SELECT oid FROM types)
		UNION ALL
		SELECT 'rule ' || r.rulename || ' on ' || r.ev_class::pg_catalog.regclass, c.relowner, 0
		FROM pg_catalog.pg_rewrite r JOIN tables ON r.ev_class = tables.oid JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
		WHERE r.ev_enabled <> 'D' AND (r.ev_type = '2' AND pg_catalog.cardinality($2::text[]) > 0 OR r.ev_type = '4' AND $3)
		UNION ALL
		SELECT 'policy ' || p.polname || ' on ' || p.polrelid::pg_catalog.regclass, c.relowner, 0
		FROM pg_catalog.pg_policy p JOIN tables ON p.polrelid = tables.oid JOIN pg_catalog.pg_class c ON c.oid = p.polrelid
		WHERE pg_catalog.row_security_active(p.polrelid)
		  AND (0 = ANY (p.polroles) OR EXISTS (SELECT FROM pg_catalog.unnest(p.polroles) r WHERE pg_catalog.pg_has_role(r, 'USAGE')))
	)
	SELECT DISTINCT code.what, r.rolname::text FROM code JOIN pg_catalog.pg_roles r ON r.oid = code.owner
	WHERE NOT r.rolsuper AND r.rolname <> CURRENT_USER AND code.space <> 'pg_catalog'::pg_catalog.regnamespace
	ORDER BY 1, 2`

// checkForeignCode names what the owners of the sources' tables can make the relay run: it cannot be prevented while the
// relay reads and writes their tables, only confined to a role with few rights.
func checkForeignCode(ctx context.Context, c *checker) ([]Finding, error) {
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	var super bool
	if err := c.tx.QueryRow(ctx, `SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = CURRENT_USER`).Scan(&super); err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range tables {
		code, err := c.foreignCode(ctx, table)
		if err != nil {
			return nil, err
		}
		if len(code) == 0 {
			continue
		}
		var names []string
		for _, f := range code {
			names = append(names, f.String())
		}
		report, means := warning, "it can do whatever role "+advice.Quote(c.role)+" can, and whatever the role of a command can that reads the table"
		if super {
			report, means = problem, "role "+advice.Quote(c.role)+" is a superuser, so the owner of the table is one, too"
		}
		found = append(found, report(fmt.Sprintf("reading, marking or deleting rows of %s runs code of another role: %s", relation(table), strings.Join(names, ", ")), means,
			&Fix{Do: "read that code; drop or disable it if it has no business there, or give its function to the role that the relay has " +
				"or to a superuser; and run the relay as a role with the rights of deploy/sql/roles.sql and no other"}).about(table.Source.Name))
	}
	return found, nil
}

// atReading are the beginnings of what runs, or is computed, also where a table is only read.
var atReading = []string{"index ", "statistics ", "partition key ", "cast ", "policy ", "check "}

// readable are the tables whose rows can be read without running code of another role as the role of the doctor, and a
// finding for each of the others: asking about foreign code must not run it.
func (c *checker) readable(ctx context.Context) (tables []*outbox.Table, found []Finding, err error) {
	all, err := c.tables(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, table := range all {
		code, err := c.foreignCode(ctx, table)
		if err != nil {
			return nil, nil, err
		}
		runs := slices.IndexFunc(code, func(f foreign) bool {
			return slices.ContainsFunc(atReading, func(kind string) bool { return strings.HasPrefix(f.What, kind) })
		})
		if runs < 0 {
			tables = append(tables, table)
			continue
		}
		found = append(found, unknown(fmt.Sprintf("no row of %s was looked at", relation(table)),
			"that would run code of another role: "+code[runs].String()+"; see the check foreign-code").about(table.Source.Name))
	}
	return tables, found, nil
}

func (c *checker) foreignCode(ctx context.Context, table *outbox.Table) ([]foreign, error) {
	columns := []string{}
	if table.Marks() {
		columns = table.MarkColumns()
	}
	rows, err := c.tx.Query(ctx, foreignSQL, table.OID, columns, table.Source.Retention > 0)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[foreign])
}

// checkMessages checks who may write logical messages. Where a source is made of them, each is an event.
func checkMessages(ctx context.Context, c *checker) ([]Finding, error) {
	var found []Finding
	for _, source := range c.Sources {
		if source.Messages == "" {
			continue
		}
		open, err := c.texts(ctx, `
			SELECT p.oid::pg_catalog.regprocedure::text FROM pg_catalog.pg_proc p
			WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND p.proname = 'pg_logical_emit_message'
			  AND (p.proacl IS NULL OR EXISTS (SELECT FROM pg_catalog.aclexplode(p.proacl) a WHERE a.grantee = 0 AND a.privilege_type = 'EXECUTE'))
			ORDER BY 1`)
		if err != nil {
			return nil, err
		}
		if len(open) == 0 {
			continue
		}
		found = append(found, warning("every role that can connect may write events of this source: PUBLIC has EXECUTE on "+strings.Join(open, " and "),
			"subscribers get them, signed, like those of the service that the source belongs to",
			&Fix{Do: "as a superuser, let the role of that service execute these functions, and then no longer PUBLIC; see first which other roles of the database call them. docs/doctor.md has the statements"}).about(source.Name))
	}
	return found, nil
}
