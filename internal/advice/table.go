package advice

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// SetLogged writes the rows of a table to the WAL.
func SetLogged(table pgx.Identifier) Statement {
	return Statement{"ALTER TABLE " + table.Sanitize() + " SET LOGGED"}
}

// NoInherit separates a table from the one that it inherits from; its rows stay.
func NoInherit(child, parent pgx.Identifier) Statement {
	return Statement{"ALTER TABLE " + child.Sanitize() + " NO INHERIT " + parent.Sanitize()}
}

// AddPublishedColumn adds the column that walpost marks. The rows that are there count as published, those that come
// are not. Two statements would let every row be born published that comes between them, or for ever where the second
// fails; so the default is taken back by the statement that gives it.
func AddPublishedColumn(table pgx.Identifier) Statement {
	return Statement{"ALTER TABLE " + table.Sanitize() + " ADD COLUMN published_at timestamptz DEFAULT now(), ALTER COLUMN published_at SET DEFAULT NULL"}
}

// CountAsPublished sets the published column of rows that were delivered without a mark, so that no repair sends them
// again. condition is one on a row named t.
func CountAsPublished(table pgx.Identifier, set, condition string) Statement {
	return Statement{"UPDATE " + table.Sanitize() + " AS t SET " + set + " WHERE " + condition}
}

// LetRowsWait lets rows come without a value in their published column: it takes away the default, or NOT NULL, or
// both.
func LetRowsWait(table pgx.Identifier, column string, dropDefault, dropNotNull bool) Statement {
	var actions []string
	if dropDefault {
		actions = append(actions, "ALTER COLUMN "+Quote(column)+" DROP DEFAULT")
	}
	if dropNotNull {
		actions = append(actions, "ALTER COLUMN "+Quote(column)+" DROP NOT NULL")
	}
	return Statement{"ALTER TABLE " + table.Sanitize() + " " + strings.Join(actions, ", ")}
}

// DefaultFalse lets rows wait whose published column is a boolean.
func DefaultFalse(table pgx.Identifier, column string) Statement {
	return Statement{"ALTER TABLE " + table.Sanitize() + " ALTER COLUMN " + Quote(column) + " SET DEFAULT false"}
}

// SetReplicaIdentity lets updates of a table without a primary key be published.
func SetReplicaIdentity(table pgx.Identifier) Statement {
	return Statement{"ALTER TABLE " + table.Sanitize() + " REPLICA IDENTITY FULL"}
}

// Vacuum removes the dead rows of a table.
func Vacuum(table pgx.Identifier) Statement {
	return Statement{"VACUUM (ANALYZE) " + table.Sanitize()}
}

// AdvanceSequence lets the sequence of a column stand at the highest number of the column. It never goes back.
func AdvanceSequence(table pgx.Identifier, sequence pgx.Identifier, column string) Statement {
	return Statement{"SELECT setval(" + literal(sequence.Sanitize()) + ", greatest((SELECT last_value FROM " + sequence.Sanitize() + "), (SELECT max(" + Quote(column) + ") FROM " + table.Sanitize() + ")))"}
}
