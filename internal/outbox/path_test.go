package outbox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"

	"github.com/jackc/pgx/v5"
)

// envelopes is a source whose events are known by what stands in their payload.
func envelopes() *outbox.Source {
	return &outbox.Source{Name: "payments", Schema: "public", Table: "o", Mark: true, Columns: outbox.Columns{
		ID: "payload.event_id", Type: "payload.meta.type", Version: "payload.meta.version", Time: "payload.occurred_at", Key: "payload.org_id"}}
}

// envelope values: what a service may write into JSON, and what a broken one does. The first have an id.
var envelopeValues = []string{
	`{"event_id": "e-1", "occurred_at": "2026-01-02T03:04:05Z", "org_id": 9007199254740993, "meta": {"type": "paid", "version": 2}}`,
	`{"event_id": 12345678901234567890.10, "meta": {"type": "paid"}}`,
	`{"event_id": true, "meta": {"type": "it's \"so\" \\ é"}}`,
	`{"event_id": "\u00e9\ud83d\ude00", "meta": {"type": "\ud83d\ude00 \\ud83d \\u0000"}}`,
	`{"event_id": "e-5", "event_id": "e-6", "meta": {"type": "first"}, "meta": {"type": "second"}}`,
	`{"event_id": "e-7", "occurred_at": "` + strings.Repeat("long", 20) + `", "meta": {"type": "paid"}}`,
	`{"event_id": null, "meta": {"type": "paid"}}`,
	`{"event_id": {"a": 1}, "meta": {"type": "paid"}}`,
	`{"event_id": "", "meta": ["type"]}`,
	`{"meta": 7}`,
	`[{"event_id": "in an array"}]`,
	`"event_id"`,
	`null`,
}

// Half a surrogate pair and U+0000 are valid in json: Postgres keeps them and refuses to look into the document.
var unreadableEnvelopes = []string{
	`{"event_id": "e-20", "meta": {"type": "paid"}, "note": "\u0000"}`,
	`{"event_id": "e-21", "meta": {"type": "paid"}, "note": "\\\u0000"}`,
	`{"event_id": "e-22", "meta": {"type": "paid"}, "note": "\ud83d"}`,
	`{"event_id": "e-23", "meta": {"type": "paid"}, "note": "\ude00\ud83d"}`,
	`{"event_id": "e-24", "meta": {"type": "paid"}, "note": "\ud83d\\\ude00"}`,
	`{"event_id": "e-25", "meta": {"type": "paid"}, "note": "\uD83D\uD83D\uDE00"}`,
}

// What is in the stream, in the table and in the condition of each statement must be one and the same, or a row is not
// marked, or one that is owed is deleted.
func TestPath_leadsToTheSameInStreamTableAndSQL(t *testing.T) {
	for _, test := range []struct {
		typ    string
		values []string
	}{
		{"jsonb", envelopeValues}, {"json", slices.Concat(envelopeValues, unreadableEnvelopes)}, {"document", envelopeValues},
	} {
		t.Run(test.typ, func(t *testing.T) {
			db := testdb.New(t)
			db.Exec(`CREATE DOMAIN document AS jsonb`)
			db.Exec(`CREATE TABLE o (nr bigint PRIMARY KEY, payload ` + test.typ + `, created_at timestamptz, published_at timestamptz)`)
			db.Exec(`CREATE PUBLICATION p FOR TABLE o WITH (publish = 'insert')`)
			source := envelopes()
			source.Retention = time.Hour
			table := inspect(t, db, source)
			stream := openStream(t, db)
			for i, value := range test.values {
				db.Exec(fmt.Sprintf(`INSERT INTO o VALUES (%d, '%s')`, i+1, strings.ReplaceAll(value, "'", "''")))
			}
			db.Exec(`INSERT INTO o VALUES (1000, '{"event_id": "last", "meta": {"type": "last"}}')`)
			streamed, tabled := stream.until(t, table, "last"), unpublished(t, db, table)
			if len(streamed) != len(test.values)+1 || len(tabled) != len(streamed) {
				t.Fatalf("%d rows by stream, %d by table, want %d", len(streamed), len(tabled), len(test.values)+1)
			}
			var all []string
			for i := range streamed {
				tabled[i].CommittedAt = time.Time{}
				if got, want := text(tabled[i]), text(streamed[i]); got != want {
					t.Errorf("by table\n%s, by stream\n%s", got, want)
				}
				all = append(all, streamed[i].ID)
			}
			if first := streamed[0]; first.ID != "e-1" || first.Type != "paid" || first.Version != "2" || first.Key != "9007199254740993" || first.OccurredAt != "2026-01-02T03:04:05Z" {
				t.Errorf("the first: got %s", text(first))
			}
			if streamed[4].ID != "e-6" || streamed[4].Type != "second" {
				t.Errorf("of members with one name the last counts: got id %q, type %q", streamed[4].ID, streamed[4].Type)
			}
			for _, e := range streamed[len(envelopeValues) : len(streamed)-1] {
				if !strings.Contains(e.Invalid, "event id is empty") {
					t.Errorf("a document that Postgres cannot look into: got %s", text(e))
				}
			}
			identities := func(events []*event.Event) (all []string) {
				for _, e := range events {
					all = append(all, e.Identity().String())
				}
				slices.Sort(all)
				return all
			}
			err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
				found, err := table.Find(t.Context(), tx, all)
				if err != nil {
					return err
				}
				var valid []*event.Event
				for _, e := range streamed {
					if !strings.Contains(e.Invalid, "event id") {
						valid = append(valid, e)
					}
				}
				if got, want := identities(found), identities(valid); !slices.Equal(got, want) {
					t.Errorf("found by id: got %q, want %q", got, want)
				}
				repairable, err := table.Repairable(t.Context(), tx, all)
				if err != nil {
					return err
				}
				var got []string
				for _, identity := range repairable {
					got = append(got, identity.String())
				}
				if slices.Sort(got); !slices.Equal(got, identities(valid)) {
					t.Errorf("repairable: got %q, want %q", got, identities(valid))
				}
				types, err := table.RecentTypes(t.Context(), tx, 1000)
				if err != nil || !slices.Contains(types, "paid") || !slices.Contains(types, "last") {
					t.Errorf("types: got %q, %v", types, err)
				}
				counts, err := table.Count(t.Context(), tx, outbox.Choice{Key: "9007199254740993", Type: "paid"}, "s", "x", never, never)
				if err != nil || len(counts) != 1 || counts[0].Rows != 1 {
					t.Errorf("chosen by key and type: got %v, %v", counts, err)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			markAsStreamed(t, db, table, test.typ, streamed)
			db.Exec(`UPDATE o SET published_at = now() - interval '2 hours'`)
			// Retention compares identities in SQL: what is spared stays, and no other row.
			err = postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
				_, _, err := table.Clean(t.Context(), tx, "s", 1000, time.Time{}, func(_, id, occurrence string) (string, string) {
					return `kept AS (SELECT $1::text)`, `(` + id + ` = 'e-1' AND ` + occurrence + ` = '2026-01-02T03:04:05Z')`
				})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if n := db.Int(`SELECT count(*) FROM o`); n != 1 {
				t.Errorf("%d rows are left after retention, want the one that is spared", n)
			}
		})
	}
}

func never(slot, subscriber, source, _, _ string) string {
	return "(" + slot + "::text || " + subscriber + "::text || " + source + "::text) IS NULL"
}

// Another event at the same primary key is another one, also where its id is inside the payload.
func TestMark_leavesARowWithAnotherIDInItsPayloadAlone(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE o (nr bigint PRIMARY KEY, payload json, created_at timestamptz, published_at timestamptz)`)
	source := envelopes()
	source.Columns.Time = ""
	table := inspect(t, db, source)
	insert := `INSERT INTO o VALUES (1, '{"event_id": "%s", "meta": {"type": "paid"}}', '2026-01-01')`
	db.Exec(fmt.Sprintf(insert, "a"))
	before := unpublished(t, db, table)[0]
	db.Exec(`TRUNCATE o`)
	db.Exec(fmt.Sprintf(insert, "b"))
	got := mustMark(t, db, table, outbox.Marked{Row: before.Row, Identity: before.Identity()})
	if got.Marked != 0 || got.Replaced != 1 {
		t.Errorf("got %+v, want nothing marked, because another event stands there", got)
	}
}

func TestInspect_refusesAPathThatSQLCannotFollow(t *testing.T) {
	db := testdb.New(t)
	for _, typ := range []string{"text", "bytea", "hstore"} {
		if typ == "hstore" {
			db.Exec(`CREATE EXTENSION hstore`)
		}
		db.Exec(`CREATE TABLE o (nr bigint PRIMARY KEY, type text, payload ` + typ + `)`)
		source := &outbox.Source{Name: "s", Schema: "public", Table: "o", Columns: outbox.Columns{ID: "payload.event_id"}}
		if _, err := source.Inspect(t.Context(), db.Pinned); err == nil || !strings.Contains(err.Error(), "json and jsonb alone") {
			t.Errorf("%s: got %v", typ, err)
		}
		// What nothing compares can come from a text.
		source.Columns = outbox.Columns{ID: "nr", Key: "payload.user_id", Version: "payload.v"}
		if _, err := source.Inspect(t.Context(), db.Pinned); err != nil {
			t.Errorf("%s: %v", typ, err)
		}
		db.Exec(`DROP TABLE o`)
	}
	db.Exec(`CREATE TABLE o (type text, payload jsonb)`)
	source := &outbox.Source{Name: "s", Schema: "public", Table: "o", Columns: outbox.Columns{ID: "payload.event_id"}}
	if _, err := source.Inspect(t.Context(), db.Pinned); err == nil || !strings.Contains(err.Error(), "add a primary key") {
		t.Errorf("no primary key: got %v", err)
	}
	db.Exec(`DROP TABLE o; CREATE TABLE o (nr bigint PRIMARY KEY, type text, payload jsonb)`)
	for _, columns := range []outbox.Columns{{ID: "payload."}, {ID: "body.id"}, {ID: "nr", Payload: "payload.body"}, {ID: "nr", Published: "payload.at"}} {
		source := &outbox.Source{Name: "s", Schema: "public", Table: "o", Columns: columns}
		if _, err := source.Inspect(t.Context(), db.Pinned); err == nil || !strings.Contains(err.Error(), "no such published column") {
			t.Errorf("%+v: got %v", columns, err)
		}
	}
}

// A path for the time gives no order of rows: the column that tells when they were written does.
func TestUnpublished_isOrderedByTheColumnOfTheTimeWhereTheEventsTimeIsAPath(t *testing.T) {
	server := testdb.NewServer(t, map[string]string{"track_commit_timestamp": "off"})
	db := testdb.On(t, server)
	db.Exec(`CREATE TABLE o (nr uuid PRIMARY KEY DEFAULT gen_random_uuid(), payload jsonb, created_at timestamptz, published_at timestamptz)`)
	for i, at := range []string{"2026-01-03", "2026-01-01", "2026-01-02"} {
		db.Exec(fmt.Sprintf(`INSERT INTO o (payload, created_at) VALUES ('{"event_id": "%d", "occurred_at": "9%d", "meta": {"type": "t"}}', '%s')`, i, i, at))
	}
	if got, want := ids(unpublished(t, db, inspect(t, db, envelopes()))), []string{"1", "2", "0"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	source := envelopes()
	source.Columns.Order = []string{"payload", "created_at"} // several, the first decides
	if got, want := ids(unpublished(t, db, inspect(t, db, source))), []string{"0", "1", "2"}; !slices.Equal(got, want) {
		t.Errorf("by several columns: got %q, want %q", got, want)
	}
	source.Columns.Order = []string{"created_at", "nowhere"}
	if _, err := source.Inspect(t.Context(), db.Pinned); err == nil || !strings.Contains(err.Error(), `columns.order is "nowhere"`) {
		t.Errorf("got %v", err)
	}
}

// Further columns come as headers, in stream and table alike.
func TestHeaders_haveFurtherColumns(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TYPE plan AS ENUM ('free', 'paid')`)
	db.Exec(`CREATE TABLE o (id bigint PRIMARY KEY, type text, payload jsonb, headers json, org_id bigint, plan plan, tags text[], published_at timestamptz)`)
	db.Exec(`CREATE PUBLICATION p FOR TABLE o WITH (publish = 'insert')`)
	table := inspect(t, db, &outbox.Source{Name: "o", Schema: "public", Table: "o", Mark: true,
		Headers: map[string]string{"org_id": "org_id", "plan": "plan", "tags": "tags"}})
	stream := openStream(t, db)
	db.Exec(`INSERT INTO o VALUES
		(1, 't', '{}', '{"correlation_id":  "c-1", "n": 1.50}', 9007199254740993, 'paid', '{"a b",c}'),
		(2, 't', '{}', NULL, 7, NULL, NULL),
		(3, 't', '{}', '{}', NULL, NULL, NULL),
		(4, 't', '{}', '{"plan": "own", "x": {"plan": "inner"}}', NULL, 'free', NULL),
		(5, 't', '{}', '["no object"]', 7, NULL, NULL),
		(6, 'last', '{}', '["no object"]', NULL, NULL, NULL)`)
	want := []string{
		`{"correlation_id": "c-1", "n": 1.50, "org_id": "9007199254740993", "plan": "paid", "tags": "{\"a b\",c}"}`,
		`{"org_id": "7"}`, `{}`, `{"x": {"plan": "inner"}, "plan": "free"}`, `["no object"]`, `["no object"]`,
	}
	streamed, tabled := stream.until(t, table, "last"), unpublished(t, db, table)
	for i, e := range streamed {
		if string(e.Headers) != want[i] || (e.Invalid != "") != (e.ID == "5") {
			t.Errorf("%s: got %s (%s), want %s", e.ID, e.Headers, e.Invalid, want[i])
		}
		if tabled[i].CommittedAt = (time.Time{}); text(tabled[i]) != text(e) {
			t.Errorf("by table %s, by stream %s", text(tabled[i]), text(e))
		}
	}
	if !strings.Contains(streamed[4].Invalid, "no JSON object") {
		t.Errorf("got %q", streamed[4].Invalid)
	}
	source := &outbox.Source{Name: "o", Schema: "public", Table: "o", Headers: map[string]string{"org": "organisation"}}
	if _, err := source.Inspect(t.Context(), db.Pinned); err == nil || !strings.Contains(err.Error(), `headers.org is "organisation"`) {
		t.Errorf("got %v", err)
	}
}

// What docs/configuration.md says of an index on the path is so.
func TestFind_usesAnIndexOnThePath(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE o (nr bigserial PRIMARY KEY, payload jsonb, created_at timestamptz, published_at timestamptz)`)
	db.Exec(`INSERT INTO o (payload) SELECT jsonb_build_object('event_id', 'e-' || n, 'meta', jsonb_build_object('type', 't')) FROM generate_series(1, 5000) n`)
	db.Exec(`CREATE INDEX by_id ON o ((payload ->> 'event_id'))`)
	db.Exec(`ANALYZE o`)
	table := inspect(t, db, envelopes())
	plan := strings.Join(db.Texts(`EXPLAIN SELECT 1 FROM o t WHERE `+outbox.PathIDCondition(table), []string{"e-7"}), "\n")
	if !strings.Contains(plan, "by_id") {
		t.Errorf("the index is not used:\n%s", plan)
	}
}
