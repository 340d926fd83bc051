package cli

import (
	"cmp"
	"context"
	_ "embed"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

//go:embed testdata/shadows.sql
var shadowsSQL string

// S-80, P13: a role that may create things in a schema of the search path makes its own of everything in pg_catalog that our
// SQL names, with better matches, and database and role put that schema first. No command and no route runs any of it.
func TestProgram_runsNothingThatAnotherRoleHasMade(t *testing.T) {
	t.Chdir(t.TempDir())
	server := testdb.NewServer(t, map[string]string{"log_min_messages": "log", "log_statement": "none"})
	dsn := server.DSN("postgres")
	ctx := t.Context()
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	number := func(sql string, args ...any) (n int64) {
		t.Helper()
		if err := admin.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return n
	}

	words := wordsOfSources(t)
	exec("SET search_path = pg_catalog")
	exec(shadowsSQL)
	var functions, operators, others int64
	exec(`CREATE SCHEMA "postgres"`) // what "$user" stands for
	for _, schema := range []string{"public", "postgres"} {
		functions += number(`SELECT trap.functions($1, $2)`, schema, words)
		operators += number(`SELECT trap.operators($1)`, schema)
		others += number(`SELECT trap.relations($1, $2)`, schema, words) + number(`SELECT trap.types($1)`, schema)
	}
	t.Logf("shadows on version %d: %d functions of %d names, %d operators, %d views and types", number(`SELECT current_setting('server_version_num')::int / 10000`),
		functions, number(`SELECT count(DISTINCT proname) FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname !~ '^operator_'`), operators, others)
	if functions < 500 || operators < 500 || others < 40 {
		t.Fatal("that is too few")
	}
	exec(`ALTER DATABASE postgres SET search_path = '$user', 'public', 'pg_catalog'`)
	exec(`ALTER ROLE postgres SET search_path = '$user', 'public', 'pg_catalog'`)

	sprung := func() []string {
		t.Helper()
		log, err := os.ReadFile(server.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, line := range regexp.MustCompile(`walpost shadow: [^\n]*(\n[^\n]*CONTEXT[^\n]*)?(\n[^\n]*STATEMENT:[^\n]*(\n\t[^\n]*)*)?`).FindAllString(string(log), -1) {
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
		return lines
	}
	// The test of the test: a session like any other falls for it.
	victim, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := victim.Exec(ctx, `SELECT array_position('{1,2}'::int2[], 2::int2), 'a'::text = 'b'::text FROM pg_locks`); err != nil {
		t.Fatal(err)
	}
	victim.Close(ctx)
	before := sprung()
	if !slices.ContainsFunc(before, func(line string) bool { return strings.Contains(line, "array_position(smallint[], smallint)") }) {
		t.Fatalf("the trap does not work: %q", before)
	}

	defer func() {
		if got := sprung(); len(got) > len(before) {
			t.Errorf("%d shadows ran, the first of them:\n%s", len(got)-len(before), strings.Join(got[len(before):min(len(got), len(before)+12)], "\n"))
		}
	}()

	env := map[string]string{"WALPOST_DATABASE_URL": dsn, "WALPOST_AUTH": "dev"}
	ran := map[string]bool{}
	run := func(command string) {
		t.Helper()
		for _, leaf := range commandsOf(reflect.TypeFor[commands](), "") {
			ran[leaf] = ran[leaf] || command == leaf || strings.HasPrefix(command, leaf+" ")
		}
		code, _, stderr := execute(t, env, strings.Fields(command)...)
		if code == exitUsage {
			t.Errorf("walpost %s: %s", command, stderr)
		}
		if strings.Contains(stderr, "SQLSTATE 42") {
			t.Errorf("walpost %s fails: %s", command, stderr)
		}
	}
	run("migrate")
	run("doctor")
	var list []string
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	relay := testprogram.Start(t, list, "relay", "--ops-listen=127.0.0.1:0")
	ops := relay.AwaitStreaming()
	standby := testprogram.Start(t, list, "relay", "--ops-listen=127.0.0.1:0")
	standby.Await("standing by")
	env["WALPOST_OPS_URL"] = ops
	api := testprogram.Start(t, list, "api", "--api-listen=127.0.0.1:0", "--auth=dev").AwaitAPI()
	learner := testprogram.Learner{User: 42}
	var id string
	for range 12 {
		if id, err = learner.Complete(ctx, api); err != nil {
			t.Fatal(err)
		}
	}
	published := `SELECT count(*) FROM public.outbox WHERE published_at IS NULL`
	testprogram.Eventually(t, "all marks", func() bool { return number(published) == 0 })
	// A dead letter for everyone, and one that is not seen before the slot is lost.
	exec(`INSERT INTO public.outbox (event_id, event_type, partition_key, payload) VALUES ('bad', 'lesson.completed', '7', '{}')`)
	testprogram.Eventually(t, "dead letters", func() bool { return number(`SELECT count(*) FROM walpost.owed WHERE state = 'dead'`) == 4 })

	for _, command := range []string{
		"doctor", "doctor --json", "doctor --standby=" + dsn, "sources", "sources --json --table=public.lesson_progress", "status", "status --json", "config", "event " + id, "event bad", "subscribers list",
		"subscribers pause analytics", "owed add --subscriber=analytics --why=test " + id, "owed list", "owed list --json --error=x --since=1h", "owed show bad",
		"deadletters list", "deadletters show bad", "deadletters redrive --event=bad --dry-run", "deadletters discard --event=bad --dry-run",
		"deadletters add --subscriber=analytics --why=test missing", "owed redrive --event=bad --dry-run", "owed redrive --event=bad --subscriber=achievements --why=test --yes",
		"owed discard --event=bad --subscriber=notifications --why=test --dry-run", "owed discard --event=bad --subscriber=notifications --why=test --yes",
		"subscribers resume analytics", "replay start analytics --since=1h --dry-run", "replay analytics --since=1h --again --why=test --yes", "replay analytics --since=1h --detach --rate=1 --why=test --yes",
		"replay list", "replay cancel 2 --why=test", "subscribers forget missing --why=test --yes", "status",
	} {
		run(command)
	}
	for _, path := range []string{"/ready", "/live", "/progress", "/metrics", "/v1/attempts", "/v1/status", "/v1/subscribers", "/v1/owed", "/v1/owed/bad",
		"/v1/replays", "/v1/replays/1", "/v1/events/" + id, "/v1/progress", "/v1/events?source=lessons", "/v1/audit", "/v1/slot", "/v1/slot/history",
		"/v1/repairs", "/v1/doctor", "/v1/sources", "/openapi.json"} {
		visit(t, ops+path)
	}
	for _, path := range []string{"/api/progress", "/api/achievements", "/api/notifications", "/api/recommendations", "/ready", "/live"} {
		visit(t, api+path)
	}

	for _, leaf := range commandsOf(reflect.TypeFor[commands](), "") {
		if first, _, _ := strings.Cut(leaf, " "); !ran[leaf] && withoutDatabase[first] == "" {
			t.Errorf("walpost %s is not run", leaf)
		}
	}

	// Takeover, a lost slot with its repair, and a clean stop.
	relay.Kill()
	standby.AwaitStreaming()
	standby.Stop()
	exec(`SELECT pg_catalog.pg_drop_replication_slot('walpost')`)
	exec(`INSERT INTO public.outbox (event_id, event_type, partition_key, payload) SELECT 'late-' || n, 'lesson.completed', n::text, '{}' FROM generate_series(1, 50) n`)
	again := testprogram.Start(t, list, "relay", "--ops-listen=127.0.0.1:0", "--single")
	again.AwaitStreaming()
	testprogram.Eventually(t, "what was repaired", func() bool {
		return number(`SELECT count(*) FROM walpost.owed WHERE event_id LIKE 'late-%' AND state = 'dead'`) == 200
	})
	again.Stop()
}

// withoutDatabase are the commands that the test does not run as such.
var withoutDatabase = map[string]string{
	"demo": "makes a server of its own", "bench": "makes a server of its own", "api": "the test starts one", "relay": "the test starts some",
	"bench-part": "its parts are processes of a bench, with its server",
	"tail":       "asks the relay alone, at a route that is visited", "top": "asks the relay alone, at routes that are visited", "token": "asks no database", "completion": "asks no database", "version": "asks no database",
}

// commandsOf are the commands of a grammar that have no further ones below them.
func commandsOf(grammar reflect.Type, above string) (leaves []string) {
	for i := range grammar.NumField() {
		field := grammar.Field(i)
		if _, is := field.Tag.Lookup("cmd"); !is {
			continue
		}
		name := strings.TrimSpace(above + " " + cmp.Or(field.Tag.Get("name"), strings.ToLower(field.Name)))
		if below := commandsOf(field.Type, name); len(below) > 0 {
			leaves = append(leaves, below...)
		} else {
			leaves = append(leaves, name)
		}
	}
	return leaves
}

// visit gets a URL as a learner; what it answers is the matter of other tests.
func visit(t *testing.T, address string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{"X-User-Id": {"42"}}})
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode >= 500 && !strings.HasSuffix(address, "/ready") {
		t.Errorf("%s answers %s", address, response.Status)
	}
}

// wordsOfSources are all words in our sources: whatever of pg_catalog our SQL names is among them.
func wordsOfSources(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	word := regexp.MustCompile(`[a-z][a-z0-9_]*`)
	for _, root := range []string{"internal", "migrations", "cmd"} {
		err := filepath.WalkDir(filepath.Join(moduleRoot, root), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".sql") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, w := range word.FindAllString(string(text), -1) {
				found[w] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	words := make([]string, 0, len(found))
	for w := range found {
		words = append(words, w)
	}
	slices.Sort(words)
	return words
}

// moduleRoot is the folder of go.mod, found before a test changes the working directory.
var moduleRoot = func() string {
	root, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return root
}()
