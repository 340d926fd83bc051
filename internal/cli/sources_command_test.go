package cli

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/testdb"
)

// A person points walpost at a table of their own and sees what it makes of it.
func TestSources_saysWhatItFindsAndSuggestsAConfiguration(t *testing.T) {
	t.Chdir(t.TempDir())
	db := testdb.New(t)
	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN}
	db.Exec(`CREATE TABLE payment_outbox (id uuid PRIMARY KEY, org_id uuid, aggregate_id uuid, topic text, event_type text, event_version int,
		partition_key text, payload jsonb, created_at timestamptz, published_at timestamptz)`)
	db.Exec(`CREATE SCHEMA "Shop"; CREATE TABLE "Shop"."My.Events" ("Nr" bigserial PRIMARY KEY, "Kind" text, "Body" jsonb, "CustomerID" bigint, "SentAt" timestamptz, "no" int)`)

	wants := func(t *testing.T, args string, code int, words ...string) string {
		t.Helper()
		got, stdout, stderr := execute(t, env, strings.Split(args, "|")...)
		if got != code {
			t.Errorf("walpost %s: exit code %d, want %d: %s", args, got, code, stderr)
		}
		for _, word := range words {
			if !strings.Contains(strings.Join(strings.Fields(stdout+stderr), " "), word) {
				t.Errorf("walpost %s says\n%s%s\nwant %q in it", args, stdout, stderr, word)
			}
		}
		return stdout
	}
	// Without a file: the source of the learning platform.
	wants(t, "sources", exitFine, "lessons: table public.outbox", "key partition_key varchar by name", "a mark sets published_at, attempts", "has them")
	wants(t, "sources|--table=public.payment_outbox", exitFine, "id id uuid by name", "type event_type text by name", "revision - missing: tried revision",
		"repair reads created_at, id", "not used org_id", "table: public.payment_outbox", "headers: {org_id: org_id}")
	wants(t, "sources|--table=public.nowhere", exitFailed, "NOT UNDERSTOOD", "there is no table public.nowhere")
	wants(t, "sources|--table=nowhere", exitUsage, "is not schema.table")

	strange := wants(t, `sources|--table=Shop."My.Events"`, exitFailed, "NOT UNDERSTOOD", "id - MISSING, and needed: tried event_id, id, seq; perhaps Nr",
		"id: Nr # a guess", "type: Kind # a guess", "payload: Body # a guess", "key: CustomerID # a guess", "published: SentAt # a guess", `table: "Shop.\"My.Events\""`)
	// What is suggested is a configuration, and with it the table is understood.
	_, suggestion, _ := strings.Cut(strange, "walpost.yaml:\n")
	file := filepath.Join(t.TempDir(), "w.yaml")
	if err := os.WriteFile(file, []byte(suggestion), 0o600); err != nil {
		t.Fatal(err)
	}
	wants(t, "config|--config="+file, exitFine, "is fine")
	wants(t, "sources|--config="+file, exitFine, "my_events: table", "id Nr int8 configured", "a mark sets SentAt", "repair reads Nr")

	var parsed struct {
		Sources []doctor.SourceReport `json:"sources"`
	}
	if err := json.Unmarshal([]byte(wants(t, "sources|--json|--table=public.payment_outbox", exitFine)), &parsed); err != nil || len(parsed.Sources) != 1 ||
		parsed.Sources[0].Parts[0].From != "id" || parsed.Sources[0].Suggestion == "" {
		t.Errorf("as JSON: got %+v, %v", parsed, err)
	}
}

// S-311: what is printed for a source that is configured is that source, whatever the file says of it.
func TestSources_printsAConfiguredSourceWhole(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	db := testdb.New(t)
	db.Exec(`CREATE TABLE public.o (nr bigint PRIMARY KEY, n2 bigint, kind text, v int, at_type text, at_id text, k text, t text, rev bigint, body jsonb, meta jsonb, w timestamp, sent bool, org text)`)
	db.Exec(`CREATE TABLE public.gone (id bigint PRIMARY KEY, type text, payload jsonb)`)
	if err := os.WriteFile("o.json", []byte(`{"type": "object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := map[string][]string{
		"name": {"o"}, "table": {"public.o"}, "columns": {`{id: nr, type: kind, version: v, aggregate_type: at_type, aggregate_id: at_id, key: k, topic: t, revision: rev, payload: body,
      headers: meta, time: w, order: [n2, nr], published: sent}`},
		"headers": {"{org: org}"}, "mark": {"off"}, "repair": {"all"}, "rows": {"ours", "deleted"}, "retention": {"36h"}, "schema": {"o.json"}, "time_zone": {"Asia/Tokyo"},
	}
	configured := reflect.TypeFor[config.Source]()
	for i := range configured.NumField() {
		name, _, _ := strings.Cut(configured.Field(i).Tag.Get("yaml"), ",")
		if settings[name] == nil && name != "messages" {
			t.Errorf("the test configures no %s:", name)
		}
	}
	whole := func(names ...string) string {
		text := "sources:\n  - "
		for i, name := range names {
			if i > 0 {
				text += "    "
			}
			text += name + ": " + settings[name][0] + "\n"
		}
		return text
	}
	for name, source := range map[string]string{
		"everything":    whole("name", "table", "columns", "headers", "mark", "repair", "schema", "time_zone"),
		"ours":          whole("name", "table", "columns", "rows", "retention"),
		"rows: deleted": "sources:\n  - name: gone\n    table: public.gone\n    rows: deleted\n",
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"WALPOST_DATABASE_URL": db.DSN}
			shown := func(file, text string) string {
				t.Helper()
				file = filepath.Join(folder, file) // in the folder of the schema
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				code, stdout, stderr := execute(t, env, "config", "--show", "--config="+file)
				_, sources, found := strings.Cut(stdout, "\nsources:\n")
				sources, _, _ = strings.Cut(sources, "\nsubscribers:")
				if code != exitFine || !found {
					t.Fatalf("exit code %d of\n%s\n%s%s", code, text, stdout, stderr)
				}
				return sources
			}
			want := shown("given.yaml", source+"subscribers:\n  - name: analytics\n")
			code, stdout, stderr := execute(t, env, "sources", "--config="+filepath.Join(folder, "given.yaml"))
			_, suggestion, _ := strings.Cut(stdout, "walpost.yaml:\n")
			if code != exitFine {
				t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
			}
			if got := shown("printed.yaml", suggestion); got != want {
				t.Errorf("printed\n%s\nwhich is\n%s\nwant\n%s", suggestion, got, want)
			}
		})
	}
}

func TestSources_saysWhichRightsAreNeeded(t *testing.T) {
	t.Chdir(t.TempDir())
	db := testdb.New(t)
	db.Exec(`CREATE TABLE public.o (id bigint PRIMARY KEY, type text, payload jsonb, published_at timestamptz)`)
	name := db.Name + "_relay"
	db.Exec("CREATE ROLE " + name + " LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { db.Exec("DROP OWNED BY " + name + "; DROP ROLE " + name) })
	address, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(name, "secret")
	dsn := address.String()
	code, stdout, stderr := execute(t, map[string]string{"WALPOST_DATABASE_URL": dsn}, "sources", "--table=public.o")
	if code != exitFine {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	want := `GRANT SELECT, UPDATE ("published_at") ON "public"."o" TO "` + name + `";`
	if !strings.Contains(stdout, want) || !strings.Contains(stdout, "lacks SELECT, UPDATE") {
		t.Errorf("got\n%s\nwant %s in it", stdout, want)
	}
	db.Exec(strings.TrimSuffix(want, ";"))
	if _, stdout, _ := execute(t, map[string]string{"WALPOST_DATABASE_URL": dsn}, "sources", "--table=public.o"); !strings.Contains(stdout, "which has them") {
		t.Errorf("after the grant: got\n%s", stdout)
	}
}
