package cli

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
