package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-17: the database knows what was set up in it. In a folder without the file, migrate changes nothing that was not
// meant.
func TestMigrate_leavesForeignDatabasesAlone(t *testing.T) {
	t.Chdir(t.TempDir())
	migrate := func(db *testdb.DB, args ...string) (int, string) {
		t.Helper()
		code, stdout, stderr := execute(t, map[string]string{"WALPOST_DATABASE_URL": db.DSN}, append([]string{"migrate"}, args...)...)
		return code, stdout + stderr
	}
	tables := func(db *testdb.DB) string {
		return db.Text(`SELECT coalesce(string_agg(schemaname || '.' || tablename, ' ' ORDER BY 1), '') FROM pg_tables
			WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	}

	foreign := testdb.NewEmpty(t)
	foreign.Exec(`CREATE SCHEMA shop; CREATE TABLE shop.orders (id int)`)
	if code, said := migrate(foreign); code != exitUsage || !strings.Contains(said, "shop.orders") || !strings.Contains(said, "--lessons") || !strings.Contains(said, "--config") {
		t.Errorf("a database with tables of others: exit code %d: %s", code, said)
	}
	if got := tables(foreign); got != "shop.orders" {
		t.Errorf("it has changed: %s", got)
	}

	// A table that the learning platform would make is there and is not its own: no flag makes that right.
	taken := testdb.NewEmpty(t)
	taken.Exec(`CREATE TABLE public.outbox (id int)`)
	for _, args := range [][]string{nil, {"--lessons"}} {
		if code, said := migrate(taken, args...); code != exitUsage || !strings.Contains(said, "public.outbox") {
			t.Errorf("its tables are taken, %q: exit code %d: %s", args, code, said)
		}
	}
	if got := tables(taken); got != "public.outbox" {
		t.Errorf("it has changed: %s", got)
	}

	// Set up with a source of its own, then run from another folder.
	if err := os.WriteFile("shop.yaml", []byte("sources: [{name: shop, table: shop.orders}]\nsubscribers: [{name: analytics}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, said := migrate(foreign, "--config=shop.yaml"); code != exitFine {
		t.Fatalf("with its file: exit code %d: %s", code, said)
	}
	before := tables(foreign)
	if code, said := migrate(foreign); code != exitUsage || !strings.Contains(said, "without the tables of the learning platform") {
		t.Errorf("set up without them: exit code %d: %s", code, said)
	}
	if got := tables(foreign); got != before {
		t.Errorf("it has changed: %s, before %s", got, before)
	}
	if code, said := migrate(foreign, "--lessons"); code != exitFine || !strings.Contains(tables(foreign), "public.outbox") {
		t.Errorf("asked for them: exit code %d: %s", code, said)
	}

	empty := testdb.NewEmpty(t)
	if code, said := migrate(empty); code != exitFine || strings.Contains(said, "up to date") {
		t.Errorf("an empty database: exit code %d: %s", code, said)
	}
	empty.Exec(`CREATE TABLE public.learning_notes (id int)`)
	if code, said := migrate(empty); code != exitFine || !strings.Contains(said, "All is up to date.") {
		t.Errorf("again: exit code %d: %s", code, said)
	}
}
