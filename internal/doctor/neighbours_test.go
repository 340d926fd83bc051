package doctor_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-46: a configuration points at what belongs to another program. Everything that is printed is run, whatever its level.
var neighbourly = []struct {
	name string
	seed func(*harness, *testdb.Neighbours)
	// says is part of one of the findings.
	says string
	// changes are what the printed statements change in all: testdb.Changes.
	changes []string
	// from is the first major version that knows the thing.
	from int64
}{
	{name: "another database has a slot of the name", says: "belongs to database",
		seed: func(h *harness, n *testdb.Neighbours) { h.options.Slot = n.Slot }},
	{name: "another database has a slot of the name, and the record of ours is still there", says: "belongs to database",
		seed: func(h *harness, n *testdb.Neighbours) {
			h.relay()
			run("UPDATE walpost.slots SET slot = '"+n.Slot+"' WHERE slot = '{db}'", "DROP PUBLICATION walpost")(h)
			h.options.Slot = n.Slot
		}},
	{name: "a physical slot has the name", says: "is a physical slot",
		seed: func(h *harness, n *testdb.Neighbours) { h.options.Slot = n.Physical }},
	{name: "another program of the database has a slot of the name", says: "does not exist, but the slot does",
		seed: func(h *harness, n *testdb.Neighbours) { h.options.Slot = n.Program }},
	{name: "another program's slot of the name is not for failover", says: "not marked for failover", from: 17,
		seed: func(h *harness, n *testdb.Neighbours) { h.options.Slot = n.Program }},
	{name: "columns are mistyped", says: "kind",
		seed: func(h *harness, _ *testdb.Neighbours) { h.relay(); h.options.Sources[0].Columns.Type = "kind" }},
	{name: "the table is mistyped, and there is no such table", says: "there is no table public.outbx",
		seed: func(h *harness, _ *testdb.Neighbours) { h.relay(); h.options.Sources[0].Table = "outbx" }},
	{name: "the schema is mistyped, and there is such a table", says: "were sources when a relay last ran", changes: []string{"+publication walpost table theirs.outbox"},
		seed: func(h *harness, _ *testdb.Neighbours) { h.relay(); h.options.Sources[0].Schema = "theirs" }},
	{name: "the publication is another program's", says: "can be another program's",
		seed: func(h *harness, _ *testdb.Neighbours) { h.options.Publication = "theirs" }},
	{name: "the publication is another program's, has our table alone, and publishes more", says: "can be another program's",
		seed: func(h *harness, _ *testdb.Neighbours) {
			run("CREATE PUBLICATION walpost FOR TABLE outbox")(h)
		}},
	{name: "the publication is that of another relay, too", says: "of another relay reads it",
		seed: func(h *harness, n *testdb.Neighbours) {
			h.relay()
			run("ALTER PUBLICATION walpost ADD TABLE theirs.outbox",
				"UPDATE walpost.slots SET fingerprint = (SELECT fingerprint FROM walpost.slots WHERE slot = '{db}') WHERE slot = '"+n.Relay+"'")(h)
		}},
	{name: "another program's transaction is old", says: "has been open for",
		seed: func(h *harness, _ *testdb.Neighbours) {
			h.options.OldAfter = time.Millisecond
			config, err := postgres.ConnConfig(h.db.DSN)
			if err != nil {
				h.t.Fatal(err)
			}
			config.RuntimeParams["application_name"] = "neighbour"
			conn, err := pgconn.ConnectConfig(h.t.Context(), &config.Config)
			if err != nil {
				h.t.Fatal(err)
			}
			h.t.Cleanup(func() { conn.Close(h.t.Context()) })
			if _, err := conn.Exec(h.t.Context(), "BEGIN; SELECT pg_current_xact_id()").ReadAll(); err != nil {
				h.t.Fatal(err)
			}
			other := h.connect()
			for _, sql := range []string{"BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'half'"} {
				if _, err := other.Exec(h.t.Context(), sql); err != nil {
					h.t.Fatal(err)
				}
			}
			h.t.Cleanup(func() { execute(h.t, h.db.DSN, "ROLLBACK PREPARED 'half'") })
		}},
	{name: "other programs' slots keep WAL", says: "has no reader and keeps", seed: func(h *harness, _ *testdb.Neighbours) { h.wal(4) }},
	{name: "the role of the relay is shared, and a setting is off for all roles", says: "track_activities is off",
		seed: func(h *harness, _ *testdb.Neighbours) {
			h.t.Cleanup(func() {
				execute(h.t, h.db.DSN, "ALTER ROLE ALL RESET track_activities")
				execute(h.t, h.db.DSN, "ALTER ROLE postgres IN DATABASE "+h.db.Name+" RESET ALL")
			})
			run("ALTER ROLE ALL SET track_activities = off")(h)
		}, changes: []string{"+setting of role postgres in {db}"}},
}

// S-46: what the doctor prints touches nothing of a neighbour: seen with a one-liner that ran it, which dropped the slot of
// another service, and took an outbox off its publication because of a mistyped column.
func TestDoctor_printsNoStatementThatTouchesANeighbour(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, sound)
	other := testdb.NewOther(t, server)
	for _, c := range neighbourly {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, server)
			if h.db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < c.from {
				c.says = "before Postgres"
			}
			n := testdb.NewNeighbours(t, other, h.db)
			c.seed(h, n)
			report := doctor.Run(t.Context(), h.options)
			if text := describe(report.Findings); !strings.Contains(text, c.says) {
				t.Errorf("want %q, the doctor says%s", c.says, text)
			}
			before := n.State()
			var printed []string
			for _, f := range report.Findings {
				if f.Fix == nil {
					continue
				}
				for _, sql := range f.Fix.SQL {
					printed = append(printed, sql.String())
					_ = tryToExecute(t, h.db.DSN, sql.String()) // what it changed is compared
				}
			}
			want := []string{}
			for _, change := range c.changes {
				want = append(want, strings.ReplaceAll(change, "{db}", h.db.Name))
			}
			if got := testdb.Changes(before, n.State()); !slices.Equal(got, want) {
				t.Errorf("changed %q, want %q; it ran\n%s", got, want, strings.Join(printed, "\n"))
			}
		})
	}
}

// The page on removing walpost, statement by statement among neighbours.
func TestDocs_removeWalpostAndNothingElse(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, sound)
	h := newHarness(t, server)
	n := testdb.NewNeighbours(t, testdb.NewOther(t, server), h.db)
	h.relay()
	h.slot("old", "pgoutput")
	h.db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, state) VALUES ('old', '1', 1, 'ready')`)
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "## Remove walpost")
	if !found {
		t.Fatal("docs/operating.md has no section Remove walpost")
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of SQL, want 2", len(blocks))
	}
	runBlock := func(block string) []string {
		t.Helper()
		before := n.State()
		statements := []string{block}
		if !strings.HasPrefix(block, "DO ") {
			statements = strings.SplitAfter(strings.TrimSpace(block), ";\n")
		}
		for _, sql := range statements {
			execute(t, h.db.DSN, strings.ReplaceAll(sql, "slot_name = 'walpost'", "slot_name = '"+h.db.Name+"'"))
		}
		return testdb.Changes(before, n.State())
	}
	got := runBlock(blocks[1][1])
	if len(got) != 2 || got[0] != "-slot old" && got[1] != "-slot old" || !strings.Contains(strings.Join(got, " "), "-row walpost.slots (old,") {
		t.Errorf("the old slot's removal changed %q", got)
	}
	for _, change := range runBlock(blocks[0][1]) {
		name, _, _ := strings.Cut(strings.TrimPrefix(change, "-"), " (")
		own := slices.Contains([]string{"slot " + h.db.Name, "publication walpost", "publication walpost table outbox", "schema walpost"}, name)
		if !strings.HasPrefix(change, "-") || !own && !regexp.MustCompile(`^(row|relation|column|sequence|trigger) walpost\.`).MatchString(name) {
			t.Errorf("the removal of walpost changed %q", change)
		}
	}
	if got := h.db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, h.db.Name); got != 0 {
		t.Error("the slot is still there")
	}
}
