package doctor_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/wal"
)

// A refusal is why a relay does not start, and the check that finds it.
type refusal struct {
	// problem is the text of the wal.SetupError as the code has it, with its verbs.
	problem string
	check   string
	seed    func(*harness)
	// from is the first major version that can have it.
	from int64
}

const byRange = `CREATE TABLE outbox (id bigint PRIMARY KEY, event_id text, event_type text, partition_key text, payload jsonb, created_at timestamptz,
	published_at timestamptz) PARTITION BY RANGE (id)`

var refusals = []refusal{
	{problem: `slot %q is a physical slot`, check: "slot", seed: func(h *harness) {
		h.db.Exec("SELECT pg_create_physical_replication_slot($1)", h.db.Name)
		h.t.Cleanup(func() { h.db.Exec("SELECT pg_drop_replication_slot($1)", h.db.Name) })
	}},
	{problem: `slot %q is used by plugin %q`, check: "slot", seed: func(h *harness) { h.slot(h.db.Name, "test_decoding") }},
	{problem: `slot %q belongs to database %q, this is %q: slot names are unique per server`, check: "slot", seed: func(h *harness) {
		other := newHarnessOn(h.t, nil, testdb.New(h.t))
		other.slot(other.db.Name, "pgoutput")
		h.options.Slot = other.db.Name
	}},
	{problem: `slot %q is temporary and belongs to another session`, check: "slot", seed: func(h *harness) {
		if _, err := h.connect().Exec(h.t.Context(), "SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)", h.db.Name); err != nil {
			h.t.Fatal(err)
		}
	}},
	{problem: `publication %q does not publish %s`, check: "publication-tables", seed: run("CREATE PUBLICATION walpost WITH (publish = 'insert')")},
	{problem: `publication %q does not publish inserts`, check: "publication-operations", seed: run("CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'update')")},
	{problem: `publication %q leaves out rows of %s unless %s: they would reach no subscriber, and be owed to none`, check: "publication-filter",
		seed: run("CREATE PUBLICATION walpost FOR TABLE outbox WHERE (event_type <> 'test') WITH (publish = 'insert')"), from: 15},
	{problem: `publication %q does not exist, but its slot does: a slot brings nothing of a publication that is younger`, check: "publication",
		seed: func(h *harness) { h.slot(h.db.Name, "pgoutput") }},
	{problem: `a source's table cannot be published`, check: "source-table", seed: run("ALTER TABLE outbox SET UNLOGGED")},
	{problem: `err.Error()`, check: "source-table", seed: run("ALTER TABLE outbox DROP COLUMN event_type")},
	{problem: `the role may not create publication %q`, check: "rights", seed: func(h *harness) {
		role := h.role("REPLICATION")
		run("GRANT USAGE ON SCHEMA walpost TO "+role, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walpost TO "+role,
			"GRANT SELECT, UPDATE, DELETE ON outbox TO "+role)(h)
	}},
	{problem: `role %q may not use replication`, check: "rights", seed: func(h *harness) {
		role := h.role("")
		run("GRANT USAGE ON SCHEMA walpost TO "+role, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walpost TO "+role,
			"GRANT SELECT, UPDATE, DELETE ON outbox TO "+role)(h)
	}},
	{problem: `slot %q marks the rows of %s already, and a mark stands for the subscribers of one slot`, check: "start",
		seed: then((*harness).relay, func(h *harness) { h.options.Slot += "_new" })},
	{problem: `source %q: %s inherits from %s, and its rows do not come in the stream of that`, check: "start",
		seed: then((*harness).relay, run("CREATE TABLE outbox_2027 (PRIMARY KEY (id)) INHERITS (outbox)"))},
	{problem: `source %q: the partition %s is unlogged, and its rows are in no WAL`, check: "start",
		seed: run("DROP TABLE outbox", byRange, "CREATE UNLOGGED TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (100)", makePublication)},
	{problem: `source %q: %s.%s is a partition of %s, which publication %q carries: its rows come under that name, and to no subscriber of this source`, check: "start",
		seed: func(h *harness) {
			run("DROP TABLE outbox", byRange, "CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (100)",
				"CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)")(h)
			h.options.Sources[0].Table = "outbox_1"
		}},
	{problem: `subscriber %q is to take over from %q, and both are known to the slot: which position and which debt are meant?`, check: "start",
		seed: bothNamesKnown},
	{problem: `sources are to take over what is recorded under former names (%v), and a new name has records of the same events already`, check: "start",
		seed: then((*harness).relay, func(h *harness) {
			h.db.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence) VALUES ($1, 'taking', 'lessons', '1', ''), ($1, 'taking', 'courses', '1', '')`, h.db.Name)
			h.options.Sources[0].Name = "courses"
		})},
	{problem: `%s, and walpost did not make it, so it does not replace it`, check: "start",
		seed: then(dropped, run("UPDATE walpost.slots SET ours = false"))},
	{problem: `%s. What committed after %v may be missing from the stream; rows of the tables that are unpublished: %d`, check: "start",
		seed: then(dropped, func(h *harness) { h.options.StopOnLoss = true })},
	{problem: `%s. Rows of source %q are not marked when they are delivered, so no one knows which of them are missing after %v`, check: "start",
		seed: then(func(h *harness) { h.options.Sources[0].Mark = false }, dropped)},
}

// refusedElsewhere are the refusals that need a server of their own, or a moment that no test can choose.
var refusedElsewhere = map[string]string{
	`wal_level is %q, not "logical"`:                        "settingFaults: wal-level",
	`all %d replication slots of the server are in use: %v`: "settingFaults: free-slots",
	`the replication connection goes through a pooler`:      "TestDoctor_wantsADirectConnectionForTheStream",
	`all replication slots of the server are in use`:        "another session has taken the last one since it was looked at",
	`a source's table does not exist`:                       "it was dropped since it was looked at",
	`the role may not use replication`:                      "it has lost the right since it connected",
}

// S-210: a relay refuses to start, and the doctor says that nothing is wrong: whatever the relay refuses, a check finds.
func TestDoctor_findsWhateverARelayRefusesToStartWith(t *testing.T) {
	t.Parallel()
	for _, r := range refusals {
		t.Run(r.problem, func(t *testing.T) {
			t.Parallel()
			h := newHarnessOn(t, nil, testdb.New(t))
			if h.db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < r.from {
				return
			}
			r.seed(h)
			var setup *wal.SetupError
			if err := h.startRelay(); !errors.As(err, &setup) || !as(r.problem, setup.Problem) {
				t.Fatalf("the relay ended with %v, want a refusal: %s", err, r.problem)
			}
			found := h.check(r.check)
			if !slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Level == doctor.Problem && f.Fix != nil }) {
				t.Errorf("the relay says %v\nthe doctor says%s", setup, describe(found))
			}
		})
	}
}

// as reports whether a text can be one of a format.
func as(format, text string) bool {
	if !strings.Contains(format, " ") { // an expression
		return true
	}
	pattern := regexp.MustCompile(`%[a-z]`).ReplaceAllString(regexp.QuoteMeta(format), `(?s:.*)`)
	return regexp.MustCompile("^" + pattern + "$").MatchString(text)
}

// startRelay lets a relay try until it refuses.
func (h *harness) startRelay() error {
	h.t.Helper()
	r, closePool := h.newRelay()
	defer closePool()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	return r.Run(ctx)
}

// A new refusal comes with the check that finds it.
func TestRefusals_areAllFound(t *testing.T) {
	known := map[string]bool{}
	for _, r := range refusals {
		known[r.problem] = true
	}
	for problem := range refusedElsewhere {
		known[problem] = true
	}
	found := problems(t)
	for problem := range known {
		if !slices.Contains(found, problem) {
			t.Errorf("no relay refuses to start with %q", problem)
		}
	}
	for _, problem := range found {
		if !known[problem] {
			t.Errorf("a relay refuses to start with %q, and no test shows that the doctor finds it", problem)
		}
	}
}

// problems are the texts of every wal.SetupError that the relay's packages make.
func problems(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, room := range []string{"wal", "slot", "relay", "store", "outbox", "debt", "replay", "lease", "dispatch"} {
		files, err := filepath.Glob(filepath.Join("..", room, "*.go"))
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
			ast.Inspect(parsed, func(n ast.Node) bool {
				literal, is := n.(*ast.CompositeLit)
				if !is || !isSetupError(literal.Type) {
					return true
				}
				for _, element := range literal.Elts {
					if pair := element.(*ast.KeyValueExpr); pair.Key.(*ast.Ident).Name == "Problem" {
						found = append(found, textOf(pair.Value))
					}
				}
				return true
			})
		}
	}
	if len(found) < 20 {
		t.Fatalf("only %d refusals are found in the code", len(found))
	}
	return found
}

func isSetupError(n ast.Expr) bool {
	if s, is := n.(*ast.SelectorExpr); is {
		n = s.Sel
	}
	name, is := n.(*ast.Ident)
	return is && name.Name == "SetupError"
}

// textOf is the first text of an expression, or err.Error() for that of an error.
func textOf(n ast.Expr) string {
	text := "err.Error()"
	ast.Inspect(n, func(inner ast.Node) bool {
		if l, is := inner.(*ast.BasicLit); is && text == "err.Error()" {
			text, _ = strconv.Unquote(l.Value)
		}
		return true
	})
	return text
}
