package advice

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// GrantOnSchema lets a role reach the tables of a schema.
func GrantOnSchema(schema, role string) Statement {
	return Statement{"GRANT USAGE ON SCHEMA " + Quote(schema) + " TO " + Quote(role)}
}

// GrantOnTable grants rights on a table, and UPDATE of some of its columns.
func GrantOnTable(rights, updated []string, table pgx.Identifier, role string) Statement {
	return Statement{"GRANT " + Rights(rights, updated) + " ON " + table.Sanitize() + " TO " + Quote(role)}
}

// Rights are the words of GRANT for rights on a table, and UPDATE of some of its columns.
func Rights(rights, updated []string) string {
	words := append([]string{}, rights...)
	if len(updated) > 0 {
		columns := make([]string, len(updated))
		for i, column := range updated {
			columns[i] = Quote(column)
		}
		words = append(words, "UPDATE ("+strings.Join(columns, ", ")+")")
	}
	return strings.Join(words, ", ")
}

// GrantOnSequence lets a role read a sequence.
func GrantOnSequence(sequence pgx.Identifier, role string) Statement {
	return Statement{"GRANT SELECT ON SEQUENCE " + sequence.Sanitize() + " TO " + Quote(role)}
}

// AllowReplication lets a role replicate.
func AllowReplication(role string) Statement {
	return Statement{"ALTER ROLE " + Quote(role) + " REPLICATION"}
}

// GrantReplicationRole lets a role replicate where no role can have the attribute: at RDS and Aurora.
func GrantReplicationRole(role string) Statement {
	return Statement{"GRANT rds_replication TO " + Quote(role)}
}

// BypassRowSecurity lets a role read all rows, whatever policies the tables have.
func BypassRowSecurity(role string) Statement {
	return Statement{"ALTER ROLE " + Quote(role) + " BYPASSRLS"}
}
