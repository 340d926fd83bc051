package advice

import "github.com/jackc/pgx/v5"

// CreatePublication makes a publication of the tables. It is insert-only: an outbox row is an event once, and updates
// of a table without a replica identity would fail if they were published. The relay runs it, too.
func CreatePublication(name string, tables []pgx.Identifier) Statement {
	sql := "CREATE PUBLICATION " + Quote(name)
	if len(tables) > 0 {
		sql += " FOR TABLE " + list(tables)
	}
	return Statement{sql + " WITH (publish = 'insert', publish_via_partition_root = true)"}
}

// AddTables adds tables to a publication. The relay runs it, too.
func AddTables(publication string, tables []pgx.Identifier) Statement {
	return alter(publication, "ADD TABLE "+list(tables))
}

// DropTables takes tables off a publication.
func DropTables(publication string, tables []pgx.Identifier) Statement {
	return alter(publication, "DROP TABLE "+list(tables))
}

// SetTables lets a publication have exactly these tables, all their rows and columns. One statement leaves no moment in
// which a table is not published.
func SetTables(publication string, tables []pgx.Identifier) Statement {
	return alter(publication, "SET TABLE "+list(tables))
}

// PublishInserts lets a publication carry inserts alone.
func PublishInserts(publication string) Statement {
	return alter(publication, "SET (publish = 'insert')")
}

// PublishViaRoot lets a publication carry the rows of partitions under the name of their root.
func PublishViaRoot(publication string) Statement {
	return alter(publication, "SET (publish_via_partition_root = true)")
}

func alter(publication, what string) Statement {
	return Statement{"ALTER PUBLICATION " + Quote(publication) + " " + what}
}
