// Package advice writes the SQL statements that walpost prints for a person to run. It runs none of them.
//
// A printed statement may be run late, in the wrong session, by a script, or line by line. So each one is a single
// statement that succeeds or fails as a whole, and one that removes something names in its own conditions what it may
// remove: a slot of another database, of another plugin, or one that is being read, is never touched. Whether a
// statement is printed at all is decided where the facts are known (package doctor, package relay).
//
// The tests run every statement on a server with neighbours and compare everything before and after.
package advice

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// A Statement is one SQL statement, without a semicolon. Only this package makes one, so that none is printed that the
// tests have not run.
type Statement struct{ sql string }

func (s Statement) String() string { return s.sql }

// MarshalText lets a report in JSON have the statement as a string.
func (s Statement) MarshalText() ([]byte, error) { return []byte(s.sql), nil }

// UnmarshalText reads a statement back from a report.
func (s *Statement) UnmarshalText(text []byte) error {
	s.sql = string(text)
	return nil
}

// Quote writes a name, or a qualified one, as an SQL identifier.
func Quote(names ...string) string { return pgx.Identifier(names).Sanitize() }

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func list(tables []pgx.Identifier) string {
	names := make([]string, len(tables))
	for i, table := range tables {
		names[i] = table.Sanitize()
	}
	return strings.Join(names, ", ")
}
