package docs

import (
	"os"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-433: roles.sql takes a right on a function whose parameters differ from Postgres 17 on, and pg_upgrade, which carries
// that over, fails. pg_dump leaves a right out that is the server's default, which is what the page's statement restores.
func TestOperating_givesBackTheRightThatPgUpgradeTripsOver(t *testing.T) {
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	roles, err := os.ReadFile("../../deploy/sql/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "fails at a right that `roles.sql` has taken away")
	_, rest, opened := strings.Cut(rest, "```sql\n")
	statement, _, closed := strings.Cut(rest, "```")
	if !found || !opened || !closed {
		t.Fatal("docs/operating.md does not say what to do before pg_upgrade")
	}
	db := testdb.On(t, testdb.NewServer(t, nil))
	isDefault := func() bool {
		return db.Text(`SELECT bool_and(has = due)::text FROM (SELECT
			(SELECT array_agg(a::text ORDER BY a::text) FROM unnest(coalesce(p.proacl, acldefault('f', p.proowner))) a) AS has,
			(SELECT array_agg(a::text ORDER BY a::text) FROM unnest(acldefault('f', p.proowner)) a) AS due
			FROM pg_proc p WHERE p.proname = 'pg_logical_emit_message') rights`) == "true"
	}
	if !isDefault() {
		t.Fatal("a new server has other rights than its default")
	}
	if err := tryStatement(t, db, string(roles)); err != nil {
		t.Fatal(err)
	}
	if isDefault() {
		t.Fatal("roles.sql takes no right any more; take the statement out of docs/operating.md")
	}
	if err := tryStatement(t, db, statement); err != nil {
		t.Fatal(err)
	}
	if !isDefault() {
		t.Error("what docs/operating.md says before pg_upgrade leaves a right that pg_upgrade trips over")
	}
}
