package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
)

// sequence gives the numbers of a column of one of walpost's tables.
type sequence struct {
	name, table, column string
	last                int64
	readable            bool // by the role; else last says nothing
}

func (c *checker) sequences(ctx context.Context) ([]sequence, error) {
	rows, err := c.tx.Query(ctx, `
		SELECT s.relname::text, c.relname::text, a.attname::text, coalesce(q.last_value, 0),
		       pg_catalog.has_schema_privilege(n.oid, 'USAGE')
		       AND (pg_catalog.has_sequence_privilege(s.oid, 'USAGE') OR pg_catalog.has_sequence_privilege(s.oid, 'SELECT'))
		FROM pg_catalog.pg_depend d
		JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S'
		JOIN pg_catalog.pg_class c ON c.oid = d.refobjid
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_sequences q ON q.schemaname = n.nspname AND q.sequencename = s.relname
		WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass
		  AND d.deptype IN ('a', 'i') AND n.nspname = 'walpost' AND s.relnamespace = n.oid AND c.relname <> 'walpost_schema_version'
		ORDER BY 2, 3`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s sequence, err error) {
		return s, row.Scan(&s.name, &s.table, &s.column, &s.last, &s.readable)
	})
}

// grantRead lets the role read where a sequence stands. Identity columns are filled without that right.
func (c *checker) grantRead(s sequence) advice.Statement {
	return advice.GrantOnSequence(pgx.Identifier{"walpost", s.name}, c.role)
}

// checkSequences compares the sequences of walpost's tables with the numbers that the tables have: a restore or a
// logical copy brings rows, and leaves sequences where they were.
func checkSequences(ctx context.Context, c *checker) ([]Finding, error) {
	sequences, err := c.sequences(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, s := range sequences {
		table := advice.Quote("walpost", s.table)
		if !s.readable {
			f := unknown("the role may not read the sequence of "+table+"."+s.column,
				"a sequence that stands behind its table gives numbers that are taken").about("walpost." + s.table)
			f.Fix = &Fix{As: "the owner of " + table, SQL: []advice.Statement{c.grantRead(s)}}
			found = append(found, f)
			continue
		}
		var highest int64
		if err := c.tx.QueryRow(ctx, "SELECT coalesce(pg_catalog.max("+advice.Quote(s.column)+"), 0) FROM "+table).Scan(&highest); err != nil {
			return nil, err
		}
		if highest <= s.last {
			continue
		}
		found = append(found, problem(fmt.Sprintf("the sequence of %s.%s stands at %d, the table has %d", table, s.column, s.last, highest),
			"what people change is refused without its note, or not seen by the relay, until the numbers grow again; a restore or a copy of the rows alone leaves it so",
			&Fix{As: "the owner of " + table, SQL: []advice.Statement{
				advice.AdvanceSequence(pgx.Identifier{"walpost", s.table}, pgx.Identifier{"walpost", s.name}, s.column)}}).about("walpost."+s.table))
	}
	return found, nil
}
