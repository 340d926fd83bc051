package advice_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// harness is a database of a relay among neighbours. The slot has the name of the database.
type harness struct {
	*testdb.DB
	*testdb.Neighbours
	t    *testing.T
	slot string
	role string
}

// A statement is one that walpost prints, and what it changes on a server with neighbours: that, and nothing else.
type statement struct {
	name string // of the function, and what is special
	// before prepares what the statement fixes.
	before []string
	print  func(h *harness) advice.Statement
	// changes are those of testdb.Changes, "{db}" being the name of the database and "{role}" of the role.
	changes []string
	// refused is part of the server's error; "" where the statement succeeds.
	refused string
	// from15 are further changes from Postgres 15 on.
	from15 []string
	// from is the first major version that knows the statement; before it, it is refused.
	from int64
}

var outbox = pgx.Identifier{"public", "outbox"}

// setup is what a relay that has run leaves behind.
var setup = []string{
	`CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`,
	`SELECT pg_create_logical_replication_slot('{db}', 'pgoutput')`,
	`INSERT INTO walpost.slots (slot, system_id, timeline, state) VALUES ('{db}', '1', 1, 'ready')`,
	`INSERT INTO walpost.subscribers (slot, name) VALUES ('{db}', 'ours')`,
	`INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 'x', '{}')`,
}

var statements = []statement{
	{name: "DropSlot", print: func(h *harness) advice.Statement { return advice.DropSlot(h.slot) }, changes: []string{"-slot {db}"}},
	{name: "DropSlot of another database", print: func(h *harness) advice.Statement { return advice.DropSlot(h.Slot) }},
	{name: "DropSlot of a physical slot", print: func(h *harness) advice.Statement { return advice.DropSlot(h.Physical) }},
	{name: "DropSlot of another plugin", print: func(h *harness) advice.Statement { return advice.DropSlot(h.slot + "_test") }},
	{name: "DropLeftOverSlot", print: func(h *harness) advice.Statement { return advice.DropLeftOverSlot(h.slot) }, changes: []string{"-slot {db}"}, from: 17},
	{name: "DropLeftOverSlot of another database", print: func(h *harness) advice.Statement { return advice.DropLeftOverSlot(h.Slot) }, from: 17},
	{name: "CreateSlot", before: []string{`SELECT pg_drop_replication_slot('{db}')`},
		print: func(h *harness) advice.Statement { return advice.CreateSlot(h.slot) }, changes: []string{"+slot {db}"}},
	{name: "CreateSlot of a name that is taken", print: func(h *harness) advice.Statement { return advice.CreateSlot(h.Slot) }, refused: "already exists"},
	{name: "MarkForFailover", print: func(h *harness) advice.Statement { return advice.MarkForFailover(h.slot) }, changes: []string{"~slot {db}"}, from: 17},
	{name: "ForgetSlot", print: func(h *harness) advice.Statement {
		return advice.ForgetSlot(h.slot, "walpost.slots", "walpost.subscribers")
	}, changes: []string{"-slot {db}", "-row walpost.slots", "-row walpost.subscribers"}},
	{name: "ForgetSlot of another database", print: func(h *harness) advice.Statement {
		return advice.ForgetSlot(h.Slot, "walpost.slots", "walpost.subscribers")
	}},
	{name: "ForgetSlot of another relay of the database", print: func(h *harness) advice.Statement { return advice.ForgetSlot(h.Relay, "walpost.slots") },
		changes: []string{"-slot {db}_relay", "-row walpost.slots"}},

	{name: "CreatePublication", before: []string{`DROP PUBLICATION walpost`},
		print:   func(*harness) advice.Statement { return advice.CreatePublication("walpost", []pgx.Identifier{outbox}) },
		changes: []string{"+publication walpost", "+publication walpost table outbox"}},
	{name: "CreatePublication of a name that is taken", print: func(*harness) advice.Statement { return advice.CreatePublication("theirs", []pgx.Identifier{outbox}) },
		refused: "already exists"},
	{name: "AddTables", before: []string{`ALTER PUBLICATION walpost DROP TABLE outbox`},
		print:   func(*harness) advice.Statement { return advice.AddTables("walpost", []pgx.Identifier{outbox}) },
		changes: []string{"+publication walpost table outbox"}},
	{name: "DropTables", before: []string{`ALTER PUBLICATION walpost ADD TABLE theirs.orders`},
		print: func(*harness) advice.Statement {
			return advice.DropTables("walpost", []pgx.Identifier{{"theirs", "orders"}})
		},
		changes: []string{"-publication walpost table theirs.orders"}},
	{name: "SetTables", before: []string{`ALTER PUBLICATION walpost SET TABLE outbox WHERE (event_type <> 'x'), theirs.orders`},
		print:   func(*harness) advice.Statement { return advice.SetTables("walpost", []pgx.Identifier{outbox}) },
		changes: []string{"-publication walpost table theirs.orders", "~publication walpost table outbox"}, from: 15},
	{name: "PublishInserts", before: []string{`ALTER PUBLICATION walpost SET (publish = 'insert, update')`},
		print: func(*harness) advice.Statement { return advice.PublishInserts("walpost") }, changes: []string{"~publication walpost"}},
	{name: "PublishViaRoot", before: []string{`ALTER PUBLICATION walpost SET (publish_via_partition_root = false)`},
		print: func(*harness) advice.Statement { return advice.PublishViaRoot("walpost") }, changes: []string{"~publication walpost"}},

	{name: "SetLogged", before: []string{`DROP PUBLICATION walpost`, `ALTER TABLE outbox SET UNLOGGED`}, print: func(*harness) advice.Statement { return advice.SetLogged(outbox) },
		changes: []string{"~relation outbox", "~relation outbox_event_id_key", "~relation outbox_pkey", "~relation idx_outbox_unpublished"},
		from15:  []string{"~relation outbox_id_seq"}}, // before, sequences are always logged
	{name: "NoInherit", before: []string{`CREATE TABLE child (PRIMARY KEY (id)) INHERITS (outbox)`}, print: func(*harness) advice.Statement {
		return advice.NoInherit(pgx.Identifier{"public", "child"}, outbox)
	}}, // what inherits from what is in no row that testdb.Changes compares
	{name: "AddPublishedColumn", before: []string{`ALTER TABLE outbox DROP published_at`}, print: func(*harness) advice.Statement { return advice.AddPublishedColumn(outbox) },
		changes: []string{"+column outbox.published_at", "-row outbox", "+row outbox"}},
	{name: "CountAsPublished", print: func(*harness) advice.Statement {
		return advice.CountAsPublished(outbox, "published_at = now()", "t.published_at IS NULL AND t.created_at < now() + interval '1 hour'")
	}, changes: []string{"-row outbox", "+row outbox"}},
	{name: "LetRowsWait", before: []string{`UPDATE outbox SET published_at = now()`, `ALTER TABLE outbox ALTER published_at SET DEFAULT now(), ALTER published_at SET NOT NULL`},
		print: func(*harness) advice.Statement { return advice.LetRowsWait(outbox, "published_at", true, true) }, changes: []string{"~column outbox.published_at"}},
	{name: "DefaultFalse", before: []string{`ALTER TABLE outbox ADD delivered boolean DEFAULT true`},
		print: func(*harness) advice.Statement { return advice.DefaultFalse(outbox, "delivered") }, changes: []string{"~column outbox.delivered"}},
	{name: "SetReplicaIdentity", print: func(*harness) advice.Statement { return advice.SetReplicaIdentity(outbox) }, changes: []string{"~relation outbox"}},
	{name: "Vacuum", print: func(*harness) advice.Statement { return advice.Vacuum(outbox) }},
	{name: "AdvanceSequence", before: []string{`INSERT INTO walpost.audit (id, slot, who, action) OVERRIDING SYSTEM VALUE VALUES (100, '{db}', 'x', 'x')`},
		print: func(*harness) advice.Statement {
			return advice.AdvanceSequence(pgx.Identifier{"walpost", "audit"}, pgx.Identifier{"walpost", "audit_id_seq"}, "id")
		}, changes: []string{"~sequence walpost.audit_id_seq"}},
	{name: "AdvanceSequence that is ahead", before: []string{`SELECT setval('walpost.audit_id_seq', 100)`},
		print: func(*harness) advice.Statement {
			return advice.AdvanceSequence(pgx.Identifier{"walpost", "audit"}, pgx.Identifier{"walpost", "audit_id_seq"}, "id")
		}},

	{name: "GrantOnSchema", print: func(h *harness) advice.Statement { return advice.GrantOnSchema("walpost", h.role) }, changes: []string{"~schema walpost"}},
	{name: "GrantOnTable", print: func(h *harness) advice.Statement {
		return advice.GrantOnTable([]string{"SELECT", "DELETE"}, []string{"published_at"}, outbox, h.role)
	}, changes: []string{"~column outbox.published_at", "~relation outbox"}},
	{name: "GrantOnSequence", print: func(h *harness) advice.Statement {
		return advice.GrantOnSequence(pgx.Identifier{"walpost", "audit_id_seq"}, h.role)
	}, changes: []string{"~relation walpost.audit_id_seq"}},
	{name: "AllowReplication", print: func(h *harness) advice.Statement { return advice.AllowReplication(h.role) }, changes: []string{"~role {role}"}},
	{name: "GrantReplicationRole", before: []string{`DO $$ BEGIN CREATE ROLE rds_replication; EXCEPTION WHEN duplicate_object THEN END $$`},
		print: func(h *harness) advice.Statement { return advice.GrantReplicationRole(h.role) }, changes: []string{"+member {role} of rds_replication"}},
	{name: "BypassRowSecurity", print: func(h *harness) advice.Statement { return advice.BypassRowSecurity(h.role) }, changes: []string{"~role {role}"}},

	{name: "SetForServer", print: func(*harness) advice.Statement { return advice.SetForServer("max_slot_wal_keep_size", "50GB") },
		changes: []string{"+setting max_slot_wal_keep_size"}},
	{name: "Reload", print: func(*harness) advice.Statement { return advice.Reload() }},
	{name: "SetForRole", before: []string{`ALTER ROLE ALL SET track_activities = off`},
		print: func(h *harness) advice.Statement {
			return advice.SetForRole("track_activities", "on", h.role, h.DB.Name)
		},
		changes: []string{"+setting of role {role} in {db}"}},
}

// S-46
func TestStatements_changeWhatTheySayAndNothingOfANeighbour(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"autovacuum": "off"})
	other := testdb.NewOther(t, server)
	for _, s := range statements {
		t.Run(s.name, func(t *testing.T) {
			db := testdb.On(t, server)
			h := &harness{DB: db, Neighbours: testdb.NewNeighbours(t, other, db), t: t, slot: db.Name, role: db.Name + "_role"}
			db.Exec("CREATE ROLE " + h.role)
			t.Cleanup(func() {
				db.Exec("ALTER ROLE ALL RESET ALL")
				db.Exec("ALTER SYSTEM RESET ALL")
				db.Exec("DROP OWNED BY " + h.role)
				db.Exec("DROP ROLE " + h.role)
			})
			if db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < s.from {
				h.tryOnOldVersion(s)
				return
			}
			if db.Int(`SELECT current_setting('server_version_num')::int / 10000`) >= 15 {
				s.changes = slices.Concat(s.changes, s.from15)
			}
			for _, sql := range slices.Concat(setup, s.before) {
				db.Exec(strings.ReplaceAll(sql, "{db}", db.Name), pgx.QueryExecModeSimpleProtocol)
			}
			before := h.State()
			if err := h.run(s.print(h).String()); err == nil && s.refused != "" || err != nil && (s.refused == "" || !strings.Contains(err.Error(), s.refused)) {
				t.Fatalf("%s: got error %v, want %q", s.print(h), err, s.refused)
			}
			if got, want := h.changes(before), h.named(s.changes); !slices.Equal(got, want) {
				t.Errorf("%s\nchanged %q\nwant    %q", s.print(h), got, want)
			}
		})
	}
}

// tryOnOldVersion runs a statement that the version does not know: it must fail, or find nothing.
func (h *harness) tryOnOldVersion(s statement) {
	h.t.Helper()
	before := h.State()
	if err := h.run(s.print(h).String()); err == nil {
		h.t.Errorf("%s succeeds on a version that does not know it", s.print(h))
	}
	if got := h.changes(before); len(got) > 0 {
		h.t.Errorf("%s\nchanged %q", s.print(h), got)
	}
}

// changes since before. Of rows only the table is named, once.
func (h *harness) changes(before map[string]string) []string {
	h.t.Helper()
	var got []string
	for _, change := range testdb.Changes(before, h.State()) {
		if fields := strings.Fields(change); strings.HasSuffix(fields[0], "row") {
			change = strings.Join(fields[:2], " ")
		}
		got = append(got, change)
	}
	slices.Sort(got)
	return slices.Compact(got)
}

func (h *harness) named(changes []string) []string {
	var named []string
	for _, change := range changes {
		named = append(named, strings.NewReplacer("{db}", h.DB.Name, "{role}", h.role).Replace(change))
	}
	slices.Sort(named)
	return named
}

// run runs a statement as psql would.
func (h *harness) run(sql string) error {
	h.t.Helper()
	config, err := postgres.ConnConfig(h.DSN)
	if err != nil {
		h.t.Fatal(err)
	}
	if strings.HasPrefix(sql, "ALTER_REPLICATION_SLOT") {
		config.RuntimeParams["replication"] = "database"
	}
	conn, err := pgconn.ConnectConfig(h.t.Context(), &config.Config)
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(h.t.Context()))
	_, err = conn.Exec(h.t.Context(), sql).ReadAll()
	return err
}

// S-48: a slot that is being read is not dropped, and then nothing else happens either: the row that stands for it stays.
func TestForgetSlot_doesAllOrNothing(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"autovacuum": "off"})
	other := testdb.NewOther(t, server)
	db := testdb.On(t, server)
	h := &harness{DB: db, Neighbours: testdb.NewNeighbours(t, other, db), t: t, slot: db.Name}
	for _, sql := range setup {
		db.Exec(strings.ReplaceAll(sql, "{db}", db.Name), pgx.QueryExecModeSimpleProtocol)
	}
	config, err := postgres.ReplicationConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	reader.Frontend().SendQuery(&pgproto3.Query{String: `START_REPLICATION SLOT "` + db.Name + `" LOGICAL 0/0 (proto_version '1', publication_names 'walpost')`})
	if err := reader.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.ReceiveMessage(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := h.State()
	if err := h.run(advice.ForgetSlot(h.slot, "walpost.slots", "walpost.subscribers").String()); err == nil || !strings.Contains(err.Error(), "is active") {
		t.Errorf("got error %v, want one that says that the slot is active", err)
	}
	if got := h.changes(before); len(got) > 0 {
		t.Errorf("changed %q", got)
	}
	_ = reader.Close(context.WithoutCancel(t.Context()))
}

// S-47: a row is never born published, neither by half of the statement nor by all of it.
func TestAddPublishedColumn_letsLaterRowsWait(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`ALTER TABLE outbox DROP published_at`)
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('before', 'x', '{}')`)
	db.Exec(advice.AddPublishedColumn(outbox).String())
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('after', 'x', '{}')`)
	if got, want := db.Texts(`SELECT event_id FROM outbox WHERE published_at IS NULL`), []string{"after"}; !slices.Equal(got, want) {
		t.Errorf("%q wait, want %q", got, want)
	}
}

// A new statement comes with a neighbour test.
func TestStatements_areAllTried(t *testing.T) {
	tried := map[string]bool{}
	for _, s := range statements {
		name, _, _ := strings.Cut(s.name, " ")
		tried[name] = true
	}
	made := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is || !f.Name.IsExported() || f.Recv != nil || f.Type.Results == nil {
				continue
			}
			if result, is := f.Type.Results.List[0].Type.(*ast.Ident); is && result.Name == "Statement" {
				made[f.Name.Name] = true
			}
		}
	}
	got, want := slices.Sorted(maps.Keys(tried)), slices.Sorted(maps.Keys(made))
	t.Logf("%d statements can be printed, %d of them are run among neighbours, in %d situations", len(want), len(got), len(statements))
	if !slices.Equal(got, want) {
		t.Errorf("tried among neighbours: %q\nprinted:                %q", got, want)
	}
}

// changing is SQL that changes something, or ends it.
var changing = regexp.MustCompile(`\b(ALTER (TABLE|ROLE|SYSTEM|DATABASE|PUBLICATION)|DROP (TABLE|PUBLICATION|SCHEMA|ROLE|DATABASE)|CREATE PUBLICATION|DELETE FROM|TRUNCATE (TABLE|ONLY)|GRANT [A-Z]{4}|REVOKE [A-Z]{4}|ROLLBACK PREPARED|UPDATE \w+ SET|pg_drop_replication_slot\(|pg_terminate_backend\(|pg_cancel_backend\(|pg_replication_slot_advance\()`)

// printed are the calls and literals whose texts people read.
var printed = []string{"Errorf", "New", "Error", "Warn", "Info", "warning", "problem", "unknown", "SetupError", "Fix", "ok", "Fprintf", "Fprintln", "Sprintf"}

// Elsewhere in the program no text for people has a statement of its own: it would be run by no neighbour test.
func TestStatements_areWrittenHereAlone(t *testing.T) {
	err := filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		for _, other := range []string{"../advice/", "../bench/", "../soak/", "../testdb/", "../testprogram/", "../pgserver/"} {
			if strings.HasPrefix(filepath.ToSlash(file), other) {
				return nil
			}
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		var walk func(n ast.Node, people bool)
		walk = func(n ast.Node, people bool) {
			ast.Inspect(n, func(inner ast.Node) bool {
				switch x := inner.(type) {
				case *ast.BasicLit:
					if people && x.Kind == token.STRING && changing.MatchString(x.Value) && !strings.Contains(x.Value, "…") {
						t.Errorf("%s: a text for people has a statement of its own; let package advice write it: %s", set.Position(x.Pos()), x.Value)
					}
				case *ast.CallExpr:
					if inner != n && !people && slices.Contains(printed, nameOf(x.Fun)) {
						walk(x, true)
						return false
					}
				case *ast.CompositeLit:
					if inner != n && !people && slices.Contains(printed, nameOf(x.Type)) {
						walk(x, true)
						return false
					}
				}
				return true
			})
		}
		walk(parsed, false)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func nameOf(n ast.Expr) string {
	switch x := n.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}
