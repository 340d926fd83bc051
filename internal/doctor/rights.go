package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/wal"
)

// missing gathers what the role lacks, so that it is asked for once: people dislike to be sent three times.
type missing struct {
	what []string
	sql  []advice.Statement
}

func (m *missing) add(what string, sql advice.Statement) {
	m.what = append(m.what, what)
	if !slices.Contains(m.sql, sql) {
		m.sql = append(m.sql, sql)
	}
}

// checkRights compares what the relay needs with what its role has. It asks for no more than is needed: where
// only the publication is missing, its owner shall make it, and the relay's role need not own the table.
func checkRights(ctx context.Context, c *checker) ([]Finding, error) {
	var m missing
	if err := c.lacksReplication(ctx, &m); err != nil {
		return nil, err
	}
	var schema bool
	if err := c.tx.QueryRow(ctx, `SELECT pg_catalog.to_regnamespace('walpost') IS NOT NULL`).Scan(&schema); err != nil {
		return nil, err
	}
	if schema { // else the check schema has its say
		if err := c.lacksOwnTables(ctx, &m); err != nil {
			return nil, err
		}
	}
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		if err := c.lacksSource(ctx, &m, table); err != nil {
			return nil, err
		}
	}
	for _, s := range c.Subscribers {
		for _, g := range s.Tables {
			if err := c.lacks(ctx, &m, g.Schema, g.Table, g.Rights, nil); err != nil {
				return nil, err
			}
		}
	}
	if err := c.lacksPublication(ctx, &m, tables); err != nil {
		return nil, err
	}
	if len(m.what) == 0 {
		return nil, nil
	}
	if schema { // the relay works without them, so that they alone are a matter of the check sequences
		if err := c.lacksSequences(ctx, &m); err != nil {
			return nil, err
		}
	}
	return []Finding{problem(fmt.Sprintf("role %q lacks: %s", c.role, strings.Join(m.what, "; ")),
		"the relay would stop at the first of them, or could not record what it has delivered",
		&Fix{As: "a superuser, or the owner of the database and the tables (REPLICATION can be given only by a superuser or, at a managed service, its administrator)", SQL: m.sql})}, nil
}

// lacksReplication believes a connection that works more than the attribute: managed services give the right
// in ways of their own.
func (c *checker) lacksReplication(ctx context.Context, m *missing) error {
	var has, rds bool
	err := c.tx.QueryRow(ctx, `
		SELECT coalesce(bool_or(rolname = $1 AND (rolreplication OR rolsuper)), false), coalesce(bool_or(rolname = 'rds_replication'), false)
		FROM pg_catalog.pg_roles`, c.streamingRole()).Scan(&has, &rds)
	if err != nil || has {
		return err
	}
	conn, err := wal.Connect(ctx, c.ReplicationURL, application)
	if err == nil {
		conn.Close()
		return nil
	}
	if postgres.Code(err) != "42501" { // insufficient_privilege; the check replication-connection reports anything else
		return nil
	}
	sql := advice.AllowReplication(c.streamingRole())
	if rds { // RDS and Aurora: no role can set the attribute, rds_replication stands for it
		sql = advice.GrantReplicationRole(c.streamingRole())
	}
	m.add("REPLICATION", sql)
	return nil
}

func (c *checker) streamingRole() string {
	if c.streaming == "" || c.ReplicationURL == c.DatabaseURL {
		return c.role
	}
	return c.streaming
}

func (c *checker) lacksOwnTables(ctx context.Context, m *missing) error {
	names, err := c.texts(ctx, `
		SELECT c.relname::text FROM pg_catalog.pg_class c WHERE c.relnamespace = pg_catalog.to_regnamespace('walpost') AND c.relkind = 'r'
		ORDER BY 1`)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "migrating" { // only migrations lock it
			continue
		}
		rights := []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
		if strings.HasSuffix(name, "_schema_version") {
			rights = rights[:1]
		}
		if err := c.lacks(ctx, m, "walpost", name, rights, nil); err != nil {
			return err
		}
	}
	return nil
}

// lacksSequences asks for what the check sequences reads.
func (c *checker) lacksSequences(ctx context.Context, m *missing) error {
	sequences, err := c.sequences(ctx)
	if err != nil {
		return err
	}
	for _, s := range sequences {
		if !s.readable {
			m.add("SELECT on sequence walpost."+s.name, c.grantRead(s))
		}
	}
	return nil
}

func (c *checker) lacksSource(ctx context.Context, m *missing, table *outbox.Table) error {
	rights, columns := table.Rights()
	return c.lacks(ctx, m, table.Source.Schema, table.Source.Table, rights, columns)
}

// lacks checks rights on a table and for UPDATE of some of its columns. A table that is not there is
// another check's affair.
func (c *checker) lacks(ctx context.Context, m *missing, schema, table string, rights, updated []string) error {
	var exists, usage bool
	err := c.tx.QueryRow(ctx, `
		SELECT c.oid IS NOT NULL, pg_catalog.has_schema_privilege(n.oid, 'USAGE')
		FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = $2
		WHERE n.nspname = $1
		UNION ALL SELECT false, false LIMIT 1`, schema, table).Scan(&exists, &usage)
	if err != nil || !exists {
		return err
	}
	if !usage {
		what := "USAGE on schema " + schema
		if !slices.Contains(m.what, what) {
			m.add(what, advice.GrantOnSchema(schema, c.role))
		}
	}
	has := func(query string, args ...any) (granted bool, err error) {
		err = c.tx.QueryRow(ctx, `SELECT `+query+` FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $1 AND c.relname = $2`, append([]any{schema, table}, args...)...).Scan(&granted)
		return granted, err
	}
	var wanted []string
	for _, right := range rights {
		granted, err := has(`pg_catalog.has_table_privilege(c.oid, $3)`, right)
		if err != nil {
			return err
		}
		if !granted {
			wanted = append(wanted, right)
		}
	}
	var columns []string
	for _, column := range updated {
		granted, err := has(`pg_catalog.has_column_privilege(c.oid, $3, 'UPDATE')`, column)
		if err != nil {
			return err
		}
		if !granted {
			columns = append(columns, column)
		}
	}
	if wanted != nil || columns != nil {
		m.add(advice.Rights(wanted, columns)+" on "+schema+"."+table, advice.GrantOnTable(wanted, columns, pgx.Identifier{schema, table}, c.role))
	}
	return nil
}

// lacksPublication: a role that may not create the publication needs it prepared.
func (c *checker) lacksPublication(ctx context.Context, m *missing, tables []*outbox.Table) error {
	var exists, create bool
	err := c.tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = $1),
		       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')`, c.Publication).Scan(&exists, &create)
	if err != nil || exists {
		return err
	}
	owner := true
	for _, table := range tables {
		var owns bool
		err := c.tx.QueryRow(ctx, `SELECT pg_catalog.pg_has_role(relowner, 'USAGE') FROM pg_catalog.pg_class WHERE oid = $1`, table.OID).Scan(&owns)
		if err != nil {
			return err
		}
		owner = owner && owns
	}
	if !create || !owner {
		m.add("the right to make publication "+c.Publication+" (CREATE on the database, and owning the tables)", advice.CreatePublication(c.Publication, identifiers(tables)))
	}
	return nil
}

func checkRowSecurity(ctx context.Context, c *checker) ([]Finding, error) {
	tables, err := c.tables(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, table := range tables {
		var active bool
		if err := c.tx.QueryRow(ctx, `SELECT pg_catalog.row_security_active($1::oid)`, table.OID).Scan(&active); err != nil {
			return nil, err
		}
		if active {
			found = append(found, problem(fmt.Sprintf("row level security of %s applies to role %q", relation(table), c.role),
				"a policy could hide rows that wait, so the relay refuses to read the table",
				&Fix{As: "a superuser", SQL: []advice.Statement{advice.BypassRowSecurity(c.role)}}).about(table.Source.Name))
		}
	}
	return found, nil
}
