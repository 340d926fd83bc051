package doctor_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/sink/file"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/migrations"
)

// A fault is a misconfiguration, what the doctor has to say about it, and what no SQL can fix.
type fault struct {
	name, check string
	level       doctor.Level
	says        string
	seed        func(*harness)
	// do is what the finding's words tell a person to do; nil where SQL and a restart are enough.
	do func(*harness)
	// retried fixes work only once no slot is being made anywhere on the server, as other tests do at the same time: until its
	// snapshot has been read, VACUUM removes nothing in any database.
	retried bool
	// from is the first major version that knows the thing; before it, the check says ok.
	from int64
}

var (
	databaseFaults = slices.Concat(relayFaults, rightFaults, publicationFaults, sourceFaults, slotFaults)
	serverFaults   = slices.Concat(settingFaults, walFaults)
)

// elsewhere are the checks whose fault, or what fixes it, takes more than one server.
var elsewhere = map[string]string{
	"version":      "TestOutside_aServerThatIsTooOldIsToldAndANewerOneFixesIt",
	"primary":      "TestPrimary_isFoundAsPrinted",
	"tls":          "TestTLS_isWantedOnTheWayToAnotherMachine",
	"clock":        "TestOutside_aClockThatIsOffIsToldAndNTPFixesIt",
	"standby-sync": "TestStandbySync_isFineOnceTheStandbyCopiesTheSlot",
}

// A new check comes with a fault that is made on a real server, and with a proof that what it prints fixes it.
func TestChecks_eachHaveAFaultThatIsFixed(t *testing.T) {
	tried := map[string]bool{}
	for _, f := range slices.Concat(databaseFaults, serverFaults) {
		tried[f.check] = true
	}
	tests := sources(t)
	for check, name := range elsewhere {
		body := tests[name]
		if !strings.Contains(body, strconv.Quote(check)) {
			t.Errorf("%s is no test that makes the check %q", name, check)
		}
		tried[check] = true
	}
	for _, check := range doctor.Checks() {
		if !tried[check] {
			t.Errorf("no test makes the fault that %s looks for", check)
		}
		delete(tried, check)
	}
	for check := range tried {
		t.Errorf("there is no check %s", check)
	}
}

// sources are the functions of this package's tests, whatever their build tags.
func sources(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			if f, is := declaration.(*ast.FuncDecl); is {
				found[f.Name.Name] = string(text[f.Pos()-1 : f.End()-1])
			}
		}
	}
	return found
}

// S-10, S-68, S-49, S-88, S-89, S-104, S-105, S-171, S-183 and S-364, among others.
func TestDoctor_findsEachFaultOfADatabaseAndWhatItPrintsFixesIt(t *testing.T) {
	t.Parallel()
	for _, f := range databaseFaults {
		t.Run(f.check+" "+f.name, func(t *testing.T) {
			t.Parallel()
			f.try(newHarnessOn(t, nil, testdb.New(t)))
		})
	}
}

// Faults of a whole server take turns on it.
func TestDoctor_findsEachFaultOfAServerAndWhatItPrintsFixesIt(t *testing.T) {
	t.Parallel()
	server := newServerWithArguments(t)
	db := testdb.On(t, server)
	for _, f := range settingFaults {
		t.Run(f.check+" "+f.name, func(t *testing.T) {
			t.Cleanup(func() { execute(t, db.DSN, "ALTER ROLE postgres IN DATABASE "+db.Name+" RESET ALL") })
			f.try(newHarnessOn(t, server, db))
		})
	}
	for _, f := range walFaults {
		t.Run(f.check+" "+f.name, func(t *testing.T) { f.try(newHarness(t, server)) })
	}
}

func (f fault) try(h *harness) {
	t := h.t
	if h.db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < f.from {
		if found := h.check(f.check); !fine(found[0]) {
			t.Errorf("on a version that does not know it, the doctor says%s", describe(found))
		}
		return
	}
	f.seed(h)
	asSaid := func(found []doctor.Finding) bool {
		return found[0].Level == f.level && strings.Contains(found[0].Finding, f.says) && found[0].Reason != ""
	}
	found := h.checkUntil(f.check, asSaid)
	if !asSaid(found) {
		t.Fatalf("want %s, %q, and a reason; the doctor says%s", f.level, f.says, describe(found))
	}
	if found[0].Fix == nil || f.do == nil && found[0].Fix.SQL == nil || f.do != nil && found[0].Fix.Do == "" {
		t.Fatalf("no way to fix it:%s", describe(found))
	}
	h.fix(found)
	if f.do != nil {
		f.do(h)
	}
	fixed := func(found []doctor.Finding) bool {
		if f.retried && !fine(found[0]) {
			h.fix(found)
		}
		return fine(found[0])
	}
	if again := h.checkUntil(f.check, fixed); !fixed(again) {
		t.Errorf("fixed by%s\nthe doctor says%s", describe(found), describe(again))
	}
}

// fine reports whether there is nothing to do.
func fine(f doctor.Finding) bool { return f.Level == doctor.OK || f.Level == doctor.Skipped }

func run(statements ...string) func(*harness) {
	return func(h *harness) {
		for _, sql := range statements {
			execute(h.t, h.db.DSN, strings.ReplaceAll(sql, "{db}", h.db.Name))
		}
	}
}

func then(steps ...func(*harness)) func(*harness) {
	return func(h *harness) {
		for _, step := range steps {
			step(h)
		}
	}
}

// set changes a setting of the server for one test, and restarts where it must.
func set(name, value string, restart bool) func(*harness) {
	return func(h *harness) {
		h.t.Cleanup(func() {
			execute(h.t, h.server.DSN("postgres"), "ALTER SYSTEM RESET "+name)
			h.reload(restart)
		})
		execute(h.t, h.server.DSN("postgres"), "ALTER SYSTEM SET "+name+" = "+value)
		h.reload(restart)
	}
}

// arguments restarts the server with arguments that win over its configuration; the server is one of
// newServerWithArguments.
func arguments(args string) func(*harness) {
	return func(h *harness) {
		h.t.Helper()
		if err := os.WriteFile(filepath.Join(h.server.Dir(), "arguments"), []byte(args), 0o644); err != nil {
			h.t.Fatal(err)
		}
		h.restart()
	}
}

func (h *harness) reload(restart bool) {
	if restart {
		h.restart()
		return
	}
	execute(h.t, h.server.DSN("postgres"), "SELECT pg_reload_conf()")
}

var settingFaults = []fault{
	{name: "is down", check: "connection", level: doctor.Problem, says: "connect",
		seed: func(h *harness) {
			if err := h.server.Kill(h.t.Context()); err != nil {
				h.t.Fatal(err)
			}
		},
		do: func(h *harness) {
			if err := h.server.StartAgain(h.t.Context()); err != nil {
				h.t.Fatal(err)
			}
			h.db.Pool.Reset()
		}},
	{name: "is replica", check: "wal-level", level: doctor.Problem, says: `"replica"`, seed: set("wal_level", "replica", true)},
	{name: "is set and waits for a restart", check: "wal-level", level: doctor.Problem, says: `"replica"`,
		seed: then(set("wal_level", "replica", true), run("ALTER SYSTEM SET wal_level = 'logical'", "SELECT pg_reload_conf()")), do: func(*harness) {}},
	{name: "are none", check: "free-slots", level: doctor.Problem, says: "all 1 replication slots of the server are in use: physical (no reader)",
		seed: then(set("max_replication_slots", "1", true), run("SELECT pg_create_physical_replication_slot('physical')"),
			func(h *harness) {
				h.t.Cleanup(func() { execute(h.t, h.server.DSN("postgres"), "SELECT pg_drop_replication_slot('physical')") })
			})},
	{name: "are none", check: "free-senders", level: doctor.Problem, says: "0 of 0 WAL senders", seed: set("max_wal_senders", "0", true)},
	{name: "is off", check: "commit-timestamps", level: doctor.Warning, says: "track_commit_timestamp is off", seed: set("track_commit_timestamp", "off", true)},
	{name: "is off", check: "track-activities", level: doctor.Warning, says: "track_activities is off", seed: set("track_activities", "off", false)},
	{name: "is off for all roles", check: "track-activities", level: doctor.Warning, says: "track_activities is off",
		seed: func(h *harness) {
			h.t.Cleanup(func() { execute(h.t, h.server.DSN("postgres"), "ALTER ROLE ALL RESET track_activities") })
			execute(h.t, h.server.DSN("postgres"), "ALTER ROLE ALL SET track_activities = off")
		}},
	{name: "is off on the command line", check: "track-activities", level: doctor.Warning, says: "track_activities is off",
		seed: func(h *harness) {
			arguments("-c track_activities=off")(h)
			h.t.Cleanup(func() { arguments("")(h) })
		}},
	{name: "is not set", check: "wal-keep-size", level: doctor.Warning, says: "is not set", seed: set("max_slot_wal_keep_size", "-1", false)},
	{name: "is too small for the WAL that is written", check: "wal-keep-size", level: doctor.Warning, says: "max_slot_wal_keep_size is 16 MiB, and ",
		seed: then(set("max_slot_wal_keep_size", "'16MB'", false), run("SELECT pg_logical_emit_message(false, 'junk', repeat('x', 10000000))"))},
	{name: "is more than the server keeps", check: "wal-budget", level: doctor.Warning, says: "wal_budget is 20.0 GiB",
		seed: then(set("max_slot_wal_keep_size", "'15GB'", false), func(h *harness) { h.options.WALBudget = 20 << 30 })},
	{name: "is unlimited and the server is not", check: "wal-budget", level: doctor.Warning, says: "wal_budget is unlimited",
		seed: func(h *harness) { h.options.WALBudget = 1<<63 - 1 }, do: func(h *harness) { h.options.WALBudget = -1 }},
	{name: "takes idle slots away", check: "idle-slot-timeout", level: doctor.Warning, says: "idle_replication_slot_timeout is set",
		seed: set("idle_replication_slot_timeout", "'1d'", false), from: 18},
	{name: "names a standby that is away", check: "standby-slots", level: doctor.Problem, says: "no standby reads: gone",
		seed: set("synchronized_standby_slots", "'gone'", false), from: 17},
}

var relayFaults = []fault{
	{name: "is off for the database", check: "track-activities", level: doctor.Warning, says: "track_activities is off",
		seed: run("ALTER DATABASE {db} SET track_activities = off")},
	{name: "is off for the role", check: "track-activities", level: doctor.Warning, says: "track_activities is off",
		seed: func(h *harness) { h.db.Exec("ALTER ROLE " + h.role("") + " SET track_activities = off") }},
	{name: "is off for the role in the database", check: "track-activities", level: doctor.Warning, says: "track_activities is off",
		seed: func(h *harness) {
			h.db.Exec("ALTER ROLE " + h.role("") + " IN DATABASE " + h.db.Name + " SET track_activities = off")
		}},
	{name: "is off in the connection string", check: "track-activities", level: doctor.Warning, says: "track_activities is off",
		seed: func(h *harness) { h.options.DatabaseURL += "&options=-c%20track_activities%3Doff" },
		do:   func(h *harness) { h.options.DatabaseURL = h.db.DSN }},
	{name: "held by a role that may only connect", check: "advisory-locks", level: doctor.Warning, says: "holds an advisory lock of this slot",
		seed: func(h *harness) { h.end = h.holdLock(h.options.Slot) }, do: func(h *harness) { h.end() }},
	{name: "is longer than drain", check: "handler-timeout", level: doctor.Warning, says: "longer than drain",
		seed: func(h *harness) { h.options.Subscribers[0].Timeout = 30 * time.Second }, do: func(h *harness) { h.options.Drain = time.Minute }},
	{name: "is longer than stall_after", check: "handler-timeout", level: doctor.Warning, says: "longer than stall_after",
		seed: func(h *harness) { h.options.Subscribers[0].StallAfter = time.Second },
		do:   func(h *harness) { h.options.Subscribers[0].StallAfter = time.Minute }},
	{name: "is ten minutes ahead", check: "clock", level: doctor.Warning, says: "10m0s ahead of the server's",
		seed: func(h *harness) { h.options.Now = func() time.Time { return time.Now().Add(10 * time.Minute) } },
		do:   func(h *harness) { h.options.Now = nil }},
	{name: "has no tables", check: "schema", level: doctor.Problem, says: "walpost migrate",
		seed: run("DROP SCHEMA walpost CASCADE", "DROP TABLE outbox, lesson_progress, learners, user_achievements, analytics_events, notifications, recommendations"),
		do: func(h *harness) {
			if err := migrations.Up(h.t.Context(), h.db.DSN, discard, h.options.Migrations...); err != nil {
				h.t.Fatal(err)
			}
		}},
	{name: "has tables of a newer walpost", check: "schema", level: doctor.Problem, says: "ahead",
		seed: run("INSERT INTO walpost.walpost_schema_version (version_id, is_applied) VALUES (9999, true)"),
		do:   run("DELETE FROM walpost.walpost_schema_version WHERE version_id = 9999")},
	{name: "stands behind its table", check: "sequences", level: doctor.Problem, says: "the sequence of \"walpost\".\"audit\".id stands at 0, the table has 41",
		seed: run("INSERT INTO walpost.audit (id, slot, who, action) OVERRIDING SYSTEM VALUE VALUES (41, 's', 'me', 'pause')")},
	{name: "has the wrong password", check: "connection", level: doctor.Problem, says: "password",
		seed: func(h *harness) {
			h.options.DatabaseURL = strings.Replace(h.db.DSN, "://postgres:", "://postgres:no", 1)
		},
		do: func(h *harness) { h.options.DatabaseURL = h.db.DSN }},
	{name: "leads to another database", check: "replication-connection", level: doctor.Problem, says: "replication_url to database \"postgres\"",
		seed: func(h *harness) { h.options.ReplicationURL = strings.Replace(h.db.DSN, h.db.Name, "postgres", 1) }, do: func(h *harness) { h.options.ReplicationURL = "" }},
	{name: "leads nowhere", check: "replication-connection", level: doctor.Problem, says: "127.0.0.1:1",
		seed: func(h *harness) { h.options.ReplicationURL = "postgres://postgres@127.0.0.1:1/x?sslmode=disable" },
		do:   func(h *harness) { h.options.ReplicationURL = "" }},
}

// theirs makes the outbox another role's, which the statements then run as.
func theirs(statements ...string) func(*harness) {
	return func(h *harness) {
		owner := h.db.Name + "_owner"
		h.db.Exec("CREATE ROLE " + owner + " NOLOGIN")
		h.t.Cleanup(func() { h.db.Exec("DROP OWNED BY " + owner + " CASCADE; DROP ROLE " + owner) })
		run("GRANT CREATE, USAGE ON SCHEMA public TO "+owner, "ALTER TABLE outbox OWNER TO "+owner)(h)
		for _, statement := range statements {
			h.db.Exec("SET ROLE " + owner + "; " + statement + "; RESET ROLE")
		}
	}
}

const (
	theirTrigger = "CREATE FUNCTION public.theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'"
	theirTest    = "CREATE FUNCTION public.fits(v text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true'"
)

var rightFaults = []fault{
	{name: "is a trigger on UPDATE", check: "foreign-code", level: doctor.Problem, says: "trigger spy on public.outbox (of role ",
		seed: theirs(theirTrigger, "CREATE TRIGGER spy BEFORE UPDATE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.theirs()"),
		do:   run("DROP TRIGGER spy ON outbox")},
	{name: "is a trigger on the column", check: "foreign-code", level: doctor.Problem, says: "trigger spy on public.outbox (of role ",
		seed: theirs(theirTrigger, "CREATE TRIGGER spy AFTER UPDATE OF published_at ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.theirs()"),
		do:   run("ALTER TABLE outbox DISABLE TRIGGER spy")},
	{name: "is a trigger on DELETE", check: "foreign-code", level: doctor.Problem, says: "trigger spy on public.outbox (of role ",
		seed: theirs(theirTrigger, "CREATE TRIGGER spy BEFORE DELETE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.theirs()"),
		do:   run("ALTER FUNCTION theirs() OWNER TO postgres")},
	{name: "is a check", check: "foreign-code", level: doctor.Problem, says: "check spy of public.outbox (of role ",
		seed: theirs(theirTest, "ALTER TABLE public.outbox ADD CONSTRAINT spy CHECK (public.fits(event_type))"),
		do:   run("ALTER TABLE outbox DROP CONSTRAINT spy")},
	{name: "is a domain", check: "foreign-code", level: doctor.Problem, says: "of domain public.type_name (of role ",
		seed: theirs(theirTest, "CREATE DOMAIN public.type_name AS text CHECK (public.fits(VALUE))", "ALTER TABLE public.outbox ALTER event_type TYPE public.type_name"),
		do:   run("ALTER TABLE outbox ALTER event_type TYPE text")},
	{name: "is an index", check: "foreign-code", level: doctor.Problem, says: "index public.spy (of role ",
		seed: theirs(theirTest, "CREATE INDEX spy ON public.outbox (public.fits(event_type))"),
		do:   run("DROP INDEX spy")},
	{name: "is an operator in an index", check: "foreign-code", level: doctor.Problem, says: "index public.spy (of role ",
		seed: theirs("CREATE FUNCTION public.same(a text, b text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true'",
			"CREATE OPERATOR public.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = public.same)",
			"CREATE INDEX spy ON public.outbox (id) WHERE event_type OPERATOR(public.===) 'x'"),
		do: run("DROP INDEX spy")},
	{name: "is an index of a table that inherits", check: "foreign-code", level: doctor.Problem, says: "index public.spy (of role ",
		seed: theirs(theirTest, "CREATE TABLE public.heir () INHERITS (public.outbox)", "CREATE INDEX spy ON public.heir (public.fits(event_type))"),
		do:   run("DROP TABLE heir")},
	{name: "is a cast", check: "foreign-code", level: doctor.Problem, says: "cast of public.kind to text (of role ",
		seed: theirs("CREATE TYPE public.kind AS ENUM ('lesson.completed')",
			"CREATE FUNCTION public.written(public.kind) RETURNS text LANGUAGE sql AS $$SELECT 'x'$$",
			"CREATE CAST (public.kind AS text) WITH FUNCTION public.written(public.kind)",
			"ALTER TABLE public.outbox ALTER event_type TYPE public.kind USING 'lesson.completed'"),
		do: run("DROP CAST (kind AS text)")},
	{name: "is in statistics", check: "foreign-code", level: doctor.Problem, says: "statistics spy of public.outbox (of role ",
		seed: theirs(theirTest, "CREATE STATISTICS public.spy ON (public.fits(event_type)), id FROM public.outbox"),
		do:   run("DROP STATISTICS spy")},
	{name: "is SQL in a text that a function of Postgres runs", check: "foreign-code", level: doctor.Problem, says: "check spy of public.outbox (of role ",
		seed: theirs("ALTER TABLE public.outbox ADD CONSTRAINT spy CHECK (published_at IS NULL OR ts_rewrite('a', 'SELECT public.theirs()') IS NOT NULL)"),
		do:   run("ALTER TABLE outbox DROP CONSTRAINT spy")},
	{name: "is a view that a function of Postgres reads", check: "foreign-code", level: doctor.Problem, says: "check spy of public.outbox (of role ",
		seed: theirs("ALTER TABLE public.outbox ADD CONSTRAINT spy CHECK (published_at IS NULL OR table_to_xml('pg_class', false, false, '') IS NOT NULL)"),
		do:   run("ALTER TABLE outbox DROP CONSTRAINT spy")},
	{name: "is a domain that a check converts to", check: "foreign-code", level: doctor.Problem, says: "of domain public.type_name (of role ",
		seed: theirs(theirTest, "CREATE DOMAIN public.type_name AS text CHECK (public.fits(VALUE))",
			"CREATE TYPE public.pair AS (one text, two public.type_name[])",
			"ALTER TABLE public.outbox ADD CONSTRAINT spy CHECK (published_at IS NULL OR aggregate_id::public.pair IS NULL)"),
		do: run("ALTER TABLE outbox DROP CONSTRAINT spy")},
	{name: "is an operator in a generated column", check: "foreign-code", level: doctor.Problem, says: "generated column spy of public.outbox (of role ",
		seed: theirs("CREATE FUNCTION public.same(a timestamptz, b int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true'",
			"CREATE OPERATOR public.=== (LEFTARG = timestamptz, RIGHTARG = int, FUNCTION = public.same)",
			"ALTER TABLE public.outbox ADD spy bool GENERATED ALWAYS AS (published_at OPERATOR(public.===) 1) STORED"),
		do: run("ALTER TABLE outbox DROP spy")},
	{name: "is the condition of a trigger of Postgres's own", check: "foreign-code", level: doctor.Problem, says: "trigger spy on public.outbox (of role ",
		seed: theirs(theirTest, "CREATE TRIGGER spy BEFORE UPDATE ON public.outbox FOR EACH ROW WHEN (public.fits(new.event_type)) EXECUTE FUNCTION suppress_redundant_updates_trigger()"),
		do:   run("DROP TRIGGER spy ON outbox")},
	{name: "is a rule", check: "foreign-code", level: doctor.Problem, says: "rule spy on public.outbox (of role ",
		seed: theirs("CREATE RULE spy AS ON UPDATE TO public.outbox DO ALSO SELECT 1"),
		do:   run("DROP RULE spy ON outbox")},
	{name: "is a policy, for a role without superuser", check: "foreign-code", level: doctor.Warning, says: "policy spy on public.outbox (of role ",
		seed: func(h *harness) {
			theirs("CREATE POLICY spy ON public.outbox USING (true)", "ALTER TABLE public.outbox ENABLE ROW LEVEL SECURITY")(h)
			run("GRANT SELECT ON outbox TO " + h.role(""))(h)
		},
		do: run("DROP POLICY spy ON outbox")},
	{name: "are those of every role", check: "messages-open", level: doctor.Warning, says: "every role that can connect may write events of this source",
		seed: func(h *harness) { h.options.Sources = []*outbox.Source{{Name: "lessons", Messages: "lessons"}} },
		do: func(h *harness) {
			for _, f := range h.db.Texts("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'") {
				run("REVOKE EXECUTE ON FUNCTION " + f + " FROM PUBLIC")(h)
			}
		}},
	{name: "are all missing", check: "rights", level: doctor.Problem, says: "REPLICATION; USAGE on schema walpost; SELECT, INSERT, UPDATE, DELETE on walpost.audit",
		seed: func(h *harness) { h.role("") }},
	{name: "lack DELETE for retention and UPDATE for marks", check: "rights", level: doctor.Problem, says: `lacks: DELETE, UPDATE ("published_at", "attempts") on public.outbox`,
		seed: func(h *harness) {
			run("CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')")(h)
			role := h.role("REPLICATION")
			run("GRANT USAGE ON SCHEMA walpost TO "+role, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walpost TO "+role,
				"GRANT SELECT ON outbox TO "+role, "GRANT SELECT, INSERT ON analytics_events TO "+role)(h)
		}},
	{name: "hides rows", check: "row-security", level: doctor.Problem, says: "row level security of public.outbox applies",
		seed: func(h *harness) {
			run("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "GRANT SELECT ON outbox TO "+h.role(""))(h)
		}},
}

const makePublication = "CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"

var publicationFaults = []fault{
	{name: "is gone", check: "publication", level: doctor.Problem, says: "does not exist, but the slot does",
		seed: then((*harness).relay, run("DROP PUBLICATION walpost")), do: (*harness).relay},
	{name: "lack a source", check: "publication-tables", level: doctor.Problem, says: `lacks "public"."outbox"`,
		seed: run("CREATE PUBLICATION walpost WITH (publish = 'insert')")},
	{name: "are too many", check: "publication-tables", level: doctor.Problem, says: `no source: "public"."notifications"`,
		seed: then((*harness).relay, run("ALTER PUBLICATION walpost ADD TABLE notifications"))},
	{name: "are too many of one that no relay has read", check: "publication-tables", level: doctor.Problem, says: `no source: "public"."notifications"`,
		seed: run("CREATE PUBLICATION walpost FOR TABLE outbox, notifications WITH (publish = 'insert')"), do: anotherPublication},
	{name: "was a source", check: "publication-tables", level: doctor.Warning, says: "has tables that were sources when a relay last ran",
		seed: func(h *harness) {
			h.db.Exec(`CREATE TABLE second (LIKE outbox INCLUDING ALL)`)
			sources := h.options.Sources
			h.options.Sources = append(slices.Clone(sources), &outbox.Source{Name: "second", Schema: "public", Table: "second", Mark: true})
			h.relay()
			h.options.Sources = sources
			h.relay()
		}, do: run("ALTER PUBLICATION walpost DROP TABLE second")},
	{name: "are all", check: "publication-tables", level: doctor.Problem, says: "has all tables",
		seed: run("CREATE PUBLICATION walpost FOR ALL TABLES WITH (publish = 'insert')"), do: anotherPublication},
	{name: "are those of a schema", check: "publication-tables", level: doctor.Problem, says: "all tables of schema public", from: 15,
		seed: then((*harness).relay, run("ALTER PUBLICATION walpost ADD TABLES IN SCHEMA public"))},
	{name: "are those of a schema of one that no relay has read", check: "publication-tables", level: doctor.Problem, says: "all tables of schema public", from: 15,
		seed: run("CREATE PUBLICATION walpost FOR TABLES IN SCHEMA public WITH (publish = 'insert')"), do: anotherPublication},
	{name: "are all, and there is a slot", check: "publication-tables", level: doctor.Problem, says: "has all tables",
		seed: then((*harness).relay, run("DROP PUBLICATION walpost", "CREATE PUBLICATION walpost FOR ALL TABLES WITH (publish = 'insert')")), do: then(anotherPublication, (*harness).relay)},
	{name: "lack inserts", check: "publication-operations", level: doctor.Problem, says: "does not publish inserts",
		seed: run("CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'update')")},
	{name: "are all", check: "publication-operations", level: doctor.Warning, says: "more than inserts",
		seed: run("CREATE PUBLICATION walpost FOR TABLE outbox")},
	{name: "is not published", check: "publication-root", level: doctor.Problem, says: "names of the partitions",
		seed: then(partitioned, run("CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert')"))},
	{name: "leaves rows out", check: "publication-filter", level: doctor.Problem, says: "are left out unless", from: 15,
		seed: run("CREATE PUBLICATION walpost FOR TABLE outbox WHERE (event_type <> 'test') WITH (publish = 'insert')")},
	{name: "leaves columns out", check: "publication-filter", level: doctor.Warning, says: "only the columns id, event_id", from: 15,
		seed: run("CREATE PUBLICATION walpost FOR TABLE outbox (id, event_id, event_type, aggregate_id, partition_key, payload, created_at) WITH (publish = 'insert')")},
	{name: "leaves the key out", check: "publication-filter", level: doctor.Problem, says: "only the columns id, event_id", from: 15,
		seed: run("CREATE PUBLICATION walpost FOR TABLE outbox (id, event_id, event_type, payload, created_at) WITH (publish = 'insert')")},
	{name: "leaves a needed column out", check: "publication-filter", level: doctor.Problem, says: "only the columns id, payload", from: 15,
		seed: run("CREATE PUBLICATION walpost FOR TABLE outbox (id, payload) WITH (publish = 'insert')")},
	{name: "was altered", check: "publication-changed", level: doctor.Problem, says: "created again or altered",
		seed: then((*harness).relay, run("ALTER PUBLICATION walpost DROP TABLE outbox", "ALTER PUBLICATION walpost ADD TABLE outbox")), do: (*harness).relay},
	{name: "is younger than the slot", check: "publication-changed", level: doctor.Problem, says: "created again or altered",
		seed: then((*harness).relay, run("DROP PUBLICATION walpost", makePublication)), do: (*harness).relay},
}

// anotherPublication chooses a name that is free.
func anotherPublication(h *harness) { h.options.Publication = "walpost_2" }

func partitioned(h *harness) {
	run("DROP TABLE outbox", `CREATE TABLE outbox (id bigserial, event_id text, event_type text, partition_key text, payload jsonb,
		created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`,
		"CREATE TABLE outbox_all PARTITION OF outbox DEFAULT")(h)
}

var sourceFaults = []fault{
	{name: "is not there", check: "source-table", level: doctor.Problem, says: "there is no table public.outbox", seed: run("ALTER TABLE outbox RENAME TO elsewhere"),
		do: run("ALTER TABLE elsewhere RENAME TO outbox")},
	{name: "lacks a column", check: "source-table", level: doctor.Problem, says: "event_type", seed: run("ALTER TABLE outbox RENAME event_type TO kind"),
		do: func(h *harness) { h.options.Sources[0].Columns.Type = "kind" }},
	{name: "has no key for its events", check: "source-table", level: doctor.Warning, says: "key", seed: run("ALTER TABLE outbox DROP partition_key, DROP aggregate_id"),
		do: func(h *harness) { h.options.Sources[0].Columns.Key = "payload.user_id" }},
	{name: "has no primary key", check: "source-table", level: doctor.Warning, says: "no primary key", seed: run("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey"),
		do: run("ALTER TABLE outbox ADD PRIMARY KEY (id)")},
	{name: "is unlogged", check: "source-table", level: doctor.Problem, says: "unlogged", seed: run("ALTER TABLE outbox SET UNLOGGED")},
	{name: "has a type that no one takes", check: "event-types", level: doctor.Warning, says: `no subscriber takes events of type "lesson.opened", which public.outbox has`,
		seed: func(h *harness) {
			h.options.Subscribers[0].Filter.Events = []string{"lesson.c*"}
			run(`INSERT INTO outbox (event_id, event_type, payload, published_at) VALUES ('t1', 'lesson.completed', '{}', now()), ('t2', 'lesson.opened', '{}', now())`)(h)
		}, do: func(h *harness) { h.options.Subscribers[0].Filter.Events = []string{"lesson.*"} }},
	{name: "has a pattern that nothing matches", check: "event-types", level: doctor.Warning, says: `no row of late matches "lessn.*" of its events:`,
		seed: func(h *harness) {
			h.options.Subscribers[0].Filter.Events = []string{"lesson.*", "lessn.*"}
			run(`INSERT INTO outbox (event_id, event_type, payload, published_at) VALUES ('t1', 'lesson.completed', '{}', now())`)(h)
		}, do: func(h *harness) { h.options.Subscribers[0].Filter.Events = []string{"lesson.*"} }},
	{name: "has a time without a zone", check: "source-table", level: doctor.Warning, says: `time column "created_at" of public.outbox has no time zone`,
		seed: run("ALTER TABLE outbox ALTER created_at TYPE timestamp"), do: run("ALTER TABLE outbox ALTER created_at TYPE timestamptz USING created_at AT TIME ZONE 'Asia/Tokyo'")},
	{name: "has a time without a zone, which the source can name", check: "source-table", level: doctor.Warning, says: `time column "created_at" of public.outbox has no time zone`,
		seed: run("ALTER TABLE outbox ALTER created_at TYPE timestamp"), do: func(h *harness) { h.options.Sources[0].TimeZone = "Asia/Tokyo" }},
	{name: "lets rows be born published", check: "source-table", level: doctor.Problem, says: "has a default",
		seed: run("ALTER TABLE outbox ALTER published_at SET DEFAULT now()")},
	{name: "lets no row wait", check: "source-table", level: doctor.Problem, says: "cannot be NULL",
		seed: run("ALTER TABLE outbox ALTER published_at SET NOT NULL")},
	{name: "lets rows be born delivered", check: "source-table", level: doctor.Problem, says: "has a default that is not false",
		seed: run("ALTER TABLE outbox DROP published_at, ADD delivered boolean NOT NULL DEFAULT true")},
	{name: "has no published column", check: "source-repair", level: doctor.Warning, says: "no column that says which rows were published",
		seed: run("ALTER TABLE outbox DROP published_at")},
	{name: "is not marked", check: "source-repair", level: doctor.Warning, says: "mark is off",
		seed: func(h *harness) { h.options.Sources[0].Mark = false }, do: func(h *harness) { h.options.Sources[0].Mark = true }},
	{name: "keeps no rows", check: "source-repair", level: doctor.Warning, says: "keeps no rows",
		seed: func(h *harness) { h.options.Sources[0].Deleted = true }, do: func(h *harness) { h.options.Sources[0].Deleted = false }},
	{name: "has no table", check: "source-repair", level: doctor.Warning, says: "logical messages are in no table",
		seed: func(h *harness) { h.options.Sources = []*outbox.Source{{Name: "lessons", Messages: "lessons"}} },
		do: func(h *harness) {
			h.options.Sources = []*outbox.Source{{Name: "lessons", Schema: "public", Table: "outbox", Mark: true}}
		}},
	{name: "writes to a folder that is not there", check: "destinations", level: doctor.Warning, says: "its destination takes nothing now",
		seed: func(h *harness) {
			h.folder = filepath.Join(h.t.TempDir(), "events")
			events, err := file.New(file.Options{Name: "archive", Path: filepath.Join(h.folder, "events.ndjson")})
			if err != nil {
				h.t.Fatal(err)
			}
			h.options.Subscribers = append(h.options.Subscribers, doctor.Subscriber{Name: "archive", Probe: events.Probe})
		},
		do: func(h *harness) {
			if err := os.Mkdir(h.folder, 0o755); err != nil {
				h.t.Fatal(err)
			}
		}},
	{name: "writes where one broker can lose it", check: "destinations", level: doctor.Warning, says: "one broker can lose it",
		seed: func(h *harness) {
			h.options.Subscribers = append(h.options.Subscribers, doctor.Subscriber{Name: "copies", Probe: func(context.Context) error {
				return subscriber.Risk(errors.New("one broker can lose it"))
			}})
		},
		do: func(h *harness) {
			last := len(h.options.Subscribers) - 1
			h.options.Subscribers[last].Probe = func(context.Context) error { return nil }
		}},
	{name: "gives numbers to a receiver", check: "event-ids", level: doctor.Warning, says: "are numbers, and go to billing",
		seed: func(h *harness) {
			h.options.Sources[0].Columns.ID = "id"
			h.options.Subscribers = append(h.options.Subscribers, doctor.Subscriber{Name: "billing", Outside: true, Sources: []string{"lessons"}},
				doctor.Subscriber{Name: "another", Outside: true, Sources: []string{"games"}}, doctor.Subscriber{Name: "mail"})
		},
		do: func(h *harness) { h.options.Sources[0].Columns.ID = "event_id" }},
	{name: "is missing and another publication has the table", check: "replica-identity", level: doctor.Problem, says: "updates of it are published by everything",
		seed: run("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "CREATE PUBLICATION everything FOR ALL TABLES")},
	{name: "is missing and a publication has the schema", check: "replica-identity", level: doctor.Problem, says: "updates of it are published by everything", from: 15,
		seed: run("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "CREATE PUBLICATION everything FOR TABLES IN SCHEMA public")},
	{name: "is missing in a partition", check: "replica-identity", level: doctor.Problem, says: "public.outbox_all has no replica identity",
		seed: then(partitioned, run("ALTER TABLE outbox_all REPLICA IDENTITY NOTHING", "CREATE PUBLICATION other FOR TABLE outbox"))},
	{name: "is full of dead rows", check: "table-bloat", level: doctor.Warning, says: "dead rows", retried: true,
		seed: func(h *harness) {
			// In one session: on 14 each tells at its end what it did, in no certain order.
			run("ALTER TABLE outbox SET (autovacuum_enabled = off); " +
				"INSERT INTO outbox (event_id, event_type, payload) SELECT n, 'x', '{}' FROM generate_series(1, 12000) n; DELETE FROM outbox")(h)
			h.await("the statistics are in", func() bool {
				return h.db.Int("SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = 'outbox'::regclass") > 10_000
			})
		}},
	{name: "has left the configuration", check: "owed-sources", level: doctor.Warning, says: `is owed 2 events of source "games"`, // S-364
		seed: run(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key, copied)
			SELECT '{db}', 'mail', 'games', n, '', 'waiting', 1, '0/8', n, 'x', '', n = 3 FROM generate_series(1, 3) n`),
		do: run(`DELETE FROM walpost.owed WHERE source = 'games'`)},
	{name: "has waited for a day", check: "oldest-unpublished", level: doctor.Warning, says: "has waited for 1d",
		seed: run("INSERT INTO outbox (event_id, event_type, payload, created_at) VALUES ('1', 'x', '{}', now() - interval '1 day')"),
		do:   (*harness).relay},
}

var slotFaults = []fault{
	{name: "is refused because another slot marks the table", check: "start", level: doctor.Problem, says: "marks the rows of public.outbox already",
		seed: then((*harness).relay, func(h *harness) { h.options.Slot += "_new" }), do: run("DELETE FROM walpost.slots WHERE slot = '{db}'")},
	{name: "is refused because a former name is still known", check: "start", level: doctor.Problem, says: `is to take over from "former", and both are known`,
		seed: bothNamesKnown, do: func(h *harness) { h.options.Subscribers[0].RenamedFrom = "" }},
	{name: "is refused where a person has to decide", check: "start", level: doctor.Problem, says: "may be missing from the stream",
		seed: func(h *harness) { dropped(h); h.options.StopOnLoss = true }, do: func(h *harness) { h.options.StopOnLoss = false; h.relay() }},
	{name: "repairs", check: "start", level: doctor.Warning, says: "a relay that starts now repairs: make the slot; record the unpublished rows as debt; stream",
		seed: dropped, do: (*harness).relay},
	{name: "is of another plugin", check: "slot", level: doctor.Problem, says: "plugin", seed: func(h *harness) { h.slot(h.db.Name, "test_decoding") },
		do: func(h *harness) { h.options.Slot += "_2" }},
	{name: "is gone", check: "slot", level: doctor.Warning, says: "is gone", seed: then((*harness).relay, run("SELECT pg_drop_replication_slot('{db}')")),
		do: (*harness).relay},
	{name: "is another program's", check: "slot", level: doctor.Warning, says: "walpost did not make it", seed: func(h *harness) { h.slot(h.db.Name, "pgoutput") },
		do: func(h *harness) { h.options.Slot += "_2" }},
	{name: "is of another database", check: "slot", level: doctor.Problem, says: "belongs to database", seed: func(h *harness) {
		other := newHarnessOn(h.t, nil, testdb.New(h.t))
		other.slot(other.db.Name, "pgoutput")
		h.options.Slot = other.db.Name
	}, do: func(h *harness) { h.options.Slot = h.db.Name }},
	{name: "is temporary", check: "slot", level: doctor.Problem, says: "is temporary and belongs to another session", seed: func(h *harness) {
		if _, err := h.connect().Exec(h.t.Context(), "SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)", h.db.Name); err != nil {
			h.t.Fatal(err)
		}
	}, do: func(h *harness) { h.options.Slot += "_2" }},
	{name: "is another program", check: "slot-reader", level: doctor.Problem, says: `another program reads the slot: "thief"`, seed: steal("thief"), do: func(h *harness) { h.end() }},
	{name: "is another program without a name", check: "slot-reader", level: doctor.Problem, says: "another program reads the slot: without a name", seed: steal(""), do: func(h *harness) { h.end() }},
	{name: "is another program for a role that may little", check: "slot-reader", level: doctor.Problem, says: `"thief"`,
		seed: then(steal("thief"), func(h *harness) { h.role("") }), do: func(h *harness) { h.end() }},
	{name: "was moved by hand", check: "slot-moved", level: doctor.Problem, says: "another program has moved",
		seed: then((*harness).relay, func(h *harness) { h.wal(2) }, run("SELECT pg_replication_slot_advance('{db}', pg_current_wal_lsn())")), do: (*harness).relay},
	{name: "is another one", check: "same-server", level: doctor.Problem, says: "the slot was read from server 42, timeline 1",
		seed: then((*harness).relay, run("UPDATE walpost.slots SET system_id = '42'")), do: (*harness).relay},
	{name: "has another timeline", check: "same-server", level: doctor.Problem, says: "timeline 7",
		seed: then((*harness).relay, run("UPDATE walpost.slots SET timeline = 7")), do: (*harness).relay},
	{name: "is recorded beyond the end of the WAL", check: "positions", level: doctor.Problem, says: "FFFF/0 is recorded as confirmed of slot",
		seed: then((*harness).relay, run("UPDATE walpost.slots SET confirmed = 'FFFF/0'")), do: (*harness).relay},
	{name: "has a subscriber beyond the end of the WAL", check: "positions", level: doctor.Problem, says: "its position FFFF/0 lies beyond",
		seed: then((*harness).relay, run("UPDATE walpost.subscribers SET secured_commit = 'FFFF/0'")), do: (*harness).relay},
	{name: "has a subscriber of another server", check: "positions", level: doctor.Problem, says: "is of server '42'",
		seed: then((*harness).relay, run("UPDATE walpost.subscribers SET system_id = '42'")), do: (*harness).relay},
	{name: "has a subscriber of another epoch", check: "positions", level: doctor.Problem, says: "is of epoch 2, and the slot is in epoch 1",
		seed: then((*harness).relay, run("UPDATE walpost.subscribers SET secured_epoch = 2")), do: (*harness).relay},
	{name: "has a subscriber with more finished than secured", check: "positions", level: doctor.Problem, says: "more of it is said to be finished",
		seed: then((*harness).relay, run("UPDATE walpost.subscribers SET finished_epoch = secured_epoch, finished_ordinal = secured_ordinal, finished_commit = secured_commit + 1")), do: (*harness).relay},
	{name: "is not marked for failover", check: "failover-slot", level: doctor.Warning, says: "not marked for failover", from: 17,
		seed: then(run(makePublication), func(h *harness) { h.slot(h.db.Name, "pgoutput") }, (*harness).relay)},
}

// walFaults are of slots, and of what the whole server keeps for them.
var walFaults = []fault{
	{name: "has been promoted", check: "same-server", level: doctor.Problem, says: "timeline 2",
		seed: then((*harness).relay, promoted), do: (*harness).relay},
	{name: "is lost", check: "slot", level: doctor.Problem, says: "is lost: the server has removed WAL that it needed: it kept more than max_slot_wal_keep_size (wal_removed)",
		seed: then((*harness).relay, lose), do: (*harness).relay},
	{name: "is lost to its idleness", check: "slot", level: doctor.Problem, says: "is lost: no relay read it for as long as idle_replication_slot_timeout allows (idle_timeout)",
		seed: then((*harness).relay, set("idle_replication_slot_timeout", "'1s'", false), awaitLost), do: (*harness).relay, from: 18},
	{name: "is lost and was prepared by a person", check: "slot", level: doctor.Problem, says: "is lost: the server has removed WAL",
		seed: then(run(makePublication), func(h *harness) { h.slot(h.db.Name, "pgoutput") }, (*harness).relay, lose), do: (*harness).relay},
	{name: "is lost and no relay has read it", check: "slot", level: doctor.Warning, says: "walpost did not make it, and it is lost",
		seed: then(func(h *harness) { h.slot(h.db.Name, "pgoutput") }, lose), do: func(h *harness) { h.options.Slot += "_2" }},
	{name: "is near", check: "slot-danger", level: doctor.Warning, says: "is lost when",
		seed: then((*harness).relay, set("max_slot_wal_keep_size", "'240MB'", false), func(h *harness) { h.wal(13) })},
	{name: "is here", check: "slot-danger", level: doctor.Problem, says: "is lost when 0 B more",
		seed: then((*harness).relay, func(h *harness) { h.wal(4) }, set("max_slot_wal_keep_size", "'16MB'", false))},
	{name: "holds everything", check: "old-transaction", level: doctor.Warning, says: "has been open for",
		seed: func(h *harness) { h.options.OldAfter = time.Millisecond; h.open("SELECT pg_current_xact_id()") }, do: func(h *harness) { h.end() }},
	{name: "is prepared", check: "old-transaction", level: doctor.Warning, says: "prepared transaction",
		seed: func(h *harness) {
			h.options.OldAfter = time.Millisecond
			conn := h.connect()
			for _, sql := range []string{"BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'half'"} {
				if _, err := conn.Exec(h.t.Context(), sql); err != nil {
					h.t.Fatal(err)
				}
			}
		}, do: run("ROLLBACK PREPARED 'half'")},
	{name: "are left behind by a new name", check: "other-slots", level: doctor.Warning, says: "is one of walpost's in this database, has no reader and keeps",
		seed: then((*harness).relay, func(h *harness) { h.options.Slot += "_new" }), do: run("SELECT pg_drop_replication_slot('{db}')")},
	{name: "are forgotten", check: "other-slots", level: doctor.Warning, says: "has no reader and keeps",
		seed: func(h *harness) { h.slot(h.db.Name+"_old", "test_decoding"); h.wal(4) }, do: run("SELECT pg_drop_replication_slot('{db}_old')")},
	{name: "is old", check: "catalog-xmin", level: doctor.Warning, says: "keeps rows of the catalogue alive",
		seed: func(h *harness) {
			h.slot(h.db.Name+"_old", "pgoutput")
			burn(h)
		}, do: run("SELECT pg_drop_replication_slot('{db}_old')")},
	{name: "is old in the relay's own slot", check: "catalog-xmin", level: doctor.Warning, says: "keeps rows of the catalogue alive",
		seed: then((*harness).relay, burn), do: func(h *harness) {
			h.await("the relay has caught up", func() bool {
				// The server lets go with what it writes of running transactions, now and then, and with the confirm after that.
				run("CHECKPOINT", "INSERT INTO outbox (event_id, event_type, payload) SELECT 'n' || count(*), 'x', '{}' FROM outbox")(h)
				h.relay()
				return h.check("catalog-xmin")[0].Level == doctor.OK
			})
		}},
}

// dropped takes the slot away that a relay has made.
func dropped(h *harness) {
	h.relay()
	h.db.Exec("SELECT pg_drop_replication_slot($1)", h.db.Name)
}

// bothNamesKnown lets a subscriber be told to take over from one that is still there.
func bothNamesKnown(h *harness) {
	h.relay()
	h.db.Exec("INSERT INTO walpost.subscribers (slot, name) VALUES ($1, 'former')", h.db.Name)
	h.options.Subscribers[0].Name, h.options.Subscribers[0].RenamedFrom = taking, "former"
}

// burn uses up as many transactions as a server of months.
func burn(h *harness) {
	h.db.Exec(`CREATE PROCEDURE burn() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..50100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	h.db.Exec(`CALL burn()`, pgx.QueryExecModeSimpleProtocol)
}

// lose lets the server give up the slot.
func lose(h *harness) {
	set("max_slot_wal_keep_size", "'16MB'", false)(h)
	h.wal(6)
	awaitLost(h)
}

func awaitLost(h *harness) {
	h.await("the slot is lost", func() bool {
		h.db.Exec("CHECKPOINT")
		return h.db.Text("SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1", h.db.Name) == "lost"
	})
}

// steal reads the slot under another name.
func steal(name string) func(*harness) {
	return func(h *harness) {
		h.relay()
		config, err := postgres.ReplicationConfig(h.db.DSN)
		if err != nil {
			h.t.Fatal(err)
		}
		config.RuntimeParams["application_name"] = name
		conn, err := pgconn.ConnectConfig(h.t.Context(), config)
		if err != nil {
			h.t.Fatal(err)
		}
		h.end = func() {
			conn.Close(context.WithoutCancel(h.t.Context()))
			h.await("the slot is free", func() bool {
				return h.db.Int("SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active", h.db.Name) == 0
			})
		}
		h.t.Cleanup(func() { conn.Close(context.WithoutCancel(h.t.Context())) })
		if err := pglogrepl.StartReplication(h.t.Context(), conn, h.db.Name, 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names 'walpost'"}}); err != nil {
			h.t.Fatal(err)
		}
	}
}

// promoted lets the server go on with a new timeline, as after a failover.
func promoted(h *harness) {
	h.t.Helper()
	if err := h.server.Kill(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	testdb.Promote(h.t, h.server, true)
	h.db.Pool.Reset()
}

func (h *harness) connect() *pgx.Conn {
	h.t.Helper()
	conn, err := pgx.Connect(h.t.Context(), h.db.DSN)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close(h.t.Context()) })
	return conn
}

// open begins a transaction and leaves it so.
func (h *harness) open(sql string) {
	h.t.Helper()
	tx, err := h.connect().Begin(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := tx.Exec(h.t.Context(), sql); err != nil {
		h.t.Fatal(err)
	}
	h.end = func() {
		if err := tx.Rollback(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
	}
}
