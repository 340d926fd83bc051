package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// shape is a column type and values of it, each with the text that it has everywhere.
type shape struct {
	name, typ string
	values    [][2]string // SQL, text
}

var shapes = []shape{
	{"uuid", "uuid", [][2]string{{`'0E37DF36-f698-11e6-8dd4-cb9ced3df976'`, "0e37df36-f698-11e6-8dd4-cb9ced3df976"}}},
	{"date", "date", [][2]string{{`'2024-03-10'`, "2024-03-10"}, {`'infinity'`, "infinity"}, {`'0044-03-15 BC'`, "0044-03-15 BC"}}},
	{"time", "time", [][2]string{{`'23:59:59.999999'`, "23:59:59.999999"}, {`'24:00'`, "24:00:00"}}},
	{"timetz", "timetz", [][2]string{{`'12:00-05'`, "12:00:00-05"}}},
	{"interval", "interval", [][2]string{{`'P1M2DT3H'`, "1 mon 2 days 03:00:00"}, {`'-178000000 years'`, "-178000000 years"}}},
	{"timestamp", "timestamp", [][2]string{{`'2024-03-10 01:30'`, "2024-03-10 01:30:00"}}},
	{"timestamptz", "timestamptz", [][2]string{{`'2024-03-10 01:30:00-05'`, "2024-03-10 06:30:00+00"}, {`'-infinity'`, "-infinity"}}},
	{"jsonb", "jsonb", [][2]string{{`'{"b": 1, "a": [null]}'`, `{"a": [null], "b": 1}`}, {`'null'`, "null"}}},
	{"json", "json", [][2]string{{`'{"b":1 , "b":2}'`, `{"b":1 , "b":2}`}}},
	{"numeric", "numeric", [][2]string{{`'NaN'`, "NaN"}, {`1234567890123456789012345678901234567890.000`, "1234567890123456789012345678901234567890.000"}}},
	{"bigint", "bigint", [][2]string{{`9223372036854775807`, "9223372036854775807"}, {`-9223372036854775808`, "-9223372036854775808"}}},
	{"float", "float8", [][2]string{{`0.1::float8 + 0.2::float8`, "0.30000000000000004"}, {`'-Infinity'`, "-Infinity"}}},
	{"bool", "bool", [][2]string{{`true`, "t"}, {`false`, "f"}}},
	{"char", "char(5)", [][2]string{{`'ab'`, "ab   "}}},
	{"inet", "inet", [][2]string{{`'10.0.0.1/32'`, "10.0.0.1"}}},
	{"money", "money", [][2]string{{`12.34::money`, "$12.34"}}},
	{"bytea", "bytea", [][2]string{{`'\xdeadbeef'`, `\xdeadbeef`}, {`'\x00'`, `\x00`}}},
	{"range", "int4range", [][2]string{{`'[1,5)'`, "[1,5)"}}},
	{"ints", "int[]", [][2]string{{`'{1,NULL,3}'`, "{1,NULL,3}"}, {`'{{1,2},{3,4}}'`, "{{1,2},{3,4}}"}, {`'{}'`, "{}"}}},
	{"texts", "text[]", [][2]string{{`'{"x,y",NULL,"q\"z"}'`, `{"x,y",NULL,"q\"z"}`}}},
	{"enum", "mood", [][2]string{{`'sad'`, "sad"}}},
	{"enums", "mood[]", [][2]string{{`'{sad,happy}'`, "{sad,happy}"}}},
	{"domain", "positive", [][2]string{{`7`, "7"}}},
	{"composite", "pair", [][2]string{{`'(1,"a b")'`, `(1,"a b")`}}},
	{"hstore", "hstore", [][2]string{{`'a=>1, b=>NULL'`, `"a"=>"1", "b"=>NULL`}}},
	{"ltree", "ltree", [][2]string{{`'Top.Science'`, "Top.Science"}}},
}

// F-12, F-56: a column of any type, read from the table, from the stream, on a retry and in a dead letter.
func TestRelay_passesEveryTypeAsTheSameTextOnEveryPath(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE TYPE mood AS ENUM ('sad', 'happy');
		CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE TYPE pair AS (n int, s text)`)
	var sources []*outbox.Source
	want := make(map[string]string) // key by id
	write := func(path string) {
		for _, s := range shapes {
			for i, value := range s.values {
				id := fmt.Sprintf("%s-%s-%d", path, s.name, i)
				db.Exec(`INSERT INTO out_`+s.name+` (id, type, key, payload) VALUES ($1, 'any', `+value[0]+`, '{}')`, id)
				want[id] = value[1]
			}
			db.Exec(`INSERT INTO out_`+s.name+` (id, type, payload) VALUES ($1, 'any', '{}')`, path+"-"+s.name+"-null")
			want[path+"-"+s.name+"-null"] = ""
		}
	}
	for _, s := range shapes {
		db.Exec(`CREATE TABLE out_` + s.name + ` (id text PRIMARY KEY, type text NOT NULL, key ` + s.typ + `, payload jsonb, published_at timestamptz)`)
		sources = append(sources, &outbox.Source{Name: s.name, Schema: "public", Table: "out_" + s.name, Mark: true, Ours: true, Columns: outbox.Columns{Key: "key"}})
	}
	write("table")

	retrying := keeping(func(_ context.Context, d subscriber.Delivery) error {
		if d.Attempt == 1 {
			return errors.New("not yet")
		}
		return nil
	})
	refusing := keeping(func(context.Context, subscriber.Delivery) error { return subscriber.Permanent(errors.New("never")) })
	refusing.Named("refusing")
	o := options(t, db, retrying, refusing)
	o.Sources = sources
	streaming(t, o)
	write("stream")
	retrying.AwaitDelivered(t, len(want))

	attempts := make(map[string]int)
	for _, ev := range retrying.events() {
		attempts[ev.ID]++
		if text, ok := want[ev.ID]; !ok || ev.Key != text {
			t.Errorf("attempt %d of %s has key %q, want %q", attempts[ev.ID], ev.ID, ev.Key, text)
		}
		if ev.Invalid != "" {
			t.Errorf("%s is no valid event: %s", ev.ID, ev.Invalid)
		}
	}
	for id := range want {
		if attempts[id] != 2 {
			t.Errorf("%s was attempted %d times, want 2", id, attempts[id])
		}
	}
	eventually(t, "dead letters", func() bool { return db.Int(`SELECT count(*) FROM walpost.owed`) == int64(len(want)) })
	for _, line := range db.Texts(`SELECT event_id || '=' || key FROM walpost.owed WHERE subscriber = 'refusing' AND state = 'dead'`) {
		id, key, _ := strings.Cut(line, "=")
		if key != want[id] {
			t.Errorf("the dead letter of %s has key %q, want %q", id, key, want[id])
		}
	}
}

// F-12: the id may be of any type as well; the row is found by it when it is marked.
func TestRelay_marksRowsWhateverTheTypeOfTheirKey(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	ids := map[string]struct {
		typ     string
		literal string
	}{
		"uuid":   {"uuid", "0e37df36-f698-11e6-8dd4-cb9ced3df976"},
		"ulid":   {"text", "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
		"bigint": {"bigint", "9007199254740993"},
		"quoted": {"varchar(40)", `it's "so" \ {odd}`},
	}
	o := options(t, db)
	o.Sources = nil
	for name, id := range ids {
		db.Exec(`CREATE TABLE out_` + name + ` (id ` + id.typ + ` PRIMARY KEY, type text NOT NULL, payload jsonb, published_at timestamptz)`)
		o.Sources = append(o.Sources, &outbox.Source{Name: name, Schema: "public", Table: "out_" + name, Mark: true})
	}
	sub := keeping(nil)
	o.Subscriptions = options(t, db, sub).Subscriptions
	streaming(t, o)
	var want []string
	for name, id := range ids {
		db.Exec(`INSERT INTO out_` + name + ` VALUES ('` + strings.ReplaceAll(id.literal, "'", "''") + `', 'any', '{}')`)
		want = append(want, id.literal)
	}
	if got := sub.AwaitDelivered(t, len(ids)); !same(got, want) {
		t.Errorf("delivered %q, want %q", got, want)
	}
	for name := range ids {
		eventually(t, "a mark in out_"+name, func() bool {
			return db.Int(`SELECT count(*) FROM out_`+name+` WHERE published_at IS NOT NULL`) == 1
		})
	}
}

func same(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// F-49: numbers are passed on as text, never as floats.
func TestRelay_passesJSONAsTheTextThatPostgresSent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE numbers (id bigint PRIMARY KEY, type text NOT NULL, key bigint, payload jsonb, headers json, published_at timestamptz)`)
	const insertRow = `INSERT INTO numbers VALUES ($1, 'any', 9007199254740993,
		'{"id":9007199254740993,"n":12345678901234567890.123456789,"neg":-9223372036854775808,"e":1e30}',
		'{"id": 9007199254740993,  "e": 1E+30, "e": 0.10}')`
	insertOne := func(id int) { db.Exec(insertRow, id) }
	insertOne(1)
	retrying := keeping(func(_ context.Context, d subscriber.Delivery) error {
		if d.Attempt == 1 {
			return errors.New("not yet")
		}
		return subscriber.Permanent(errors.New("never"))
	})
	streaming(t, oneSource(options(t, db, retrying),
		&outbox.Source{Name: "numbers", Schema: "public", Table: "numbers", Mark: true, Columns: outbox.Columns{Key: "key"}}))
	insertOne(2)
	retrying.AwaitCalls(t, 4)
	payload, headers := db.Text(`SELECT payload::text FROM numbers WHERE id = 1`), db.Text(`SELECT headers::text FROM numbers WHERE id = 1`)
	for i, ev := range retrying.events() {
		if string(ev.Payload) != payload || string(ev.Headers) != headers || ev.Key != "9007199254740993" {
			t.Errorf("attempt %d: key %s, payload %s, headers %s; want payload %s, headers %s", i, ev.Key, ev.Payload, ev.Headers, payload, headers)
		}
	}
	eventually(t, "dead letters that say the same", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE payload = $1 AND headers = $2 AND key = '9007199254740993'`, payload, headers) == 2
	})
}

// F-50: settings of the role that would change how values look.
func TestRelay_isDeafToSettingsOfItsRole(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	name, dsn := role(t, db, "LOGIN SUPERUSER")
	for _, setting := range []string{
		"datestyle = 'German'", "timezone = 'America/New_York'", "bytea_output = 'escape'", "intervalstyle = 'iso_8601'",
		"extra_float_digits = -3", "client_encoding = 'LATIN1'", "search_path = 'elsewhere'", "lc_monetary = 'C'",
		"statement_timeout = '2s'", "client_min_messages = 'error'", "default_transaction_isolation = 'serializable'",
	} {
		db.Exec(`ALTER ROLE ` + name + ` SET ` + setting)
	}
	db.Exec(`CREATE TABLE moments (id text PRIMARY KEY, type text NOT NULL, aggregate_id bytea, event_version interval,
		revision float8, payload jsonb, created_at timestamptz, published_at timestamptz)`)
	write := func(id string) {
		db.Exec(`INSERT INTO moments VALUES ($1, 'any', '\xdeadbeef', 'P1M2D', 0.1::float8 + 0.2::float8, '{"name": "Ω"}', '2024-03-10 01:30:00-05')`, id)
	}
	write("table")
	sub := keeping(nil)
	o := oneSource(options(t, db, sub), &outbox.Source{Name: "moments", Schema: "public", Table: "moments", Mark: true})
	o.Pool, o.ReplicationURL = openPool(t, dsn, 4), dsn
	streaming(t, o)
	write("stream")
	sub.AwaitDelivered(t, 2)
	for _, ev := range sub.events() {
		got := []string{ev.AggregateID, ev.Version, ev.Revision, string(ev.Payload), ev.OccurredAt}
		want := []string{`\xdeadbeef`, "1 mon 2 days", "0.30000000000000004", `{"name": "Ω"}`, "2024-03-10 06:30:00+00"}
		if !slices.Equal(got, want) {
			t.Errorf("%s came as %q, want %q", ev.ID, got, want)
		}
	}
}

// F-54: each insert is one event, whatever the payload; updates and deletes are none.
func TestRelay_makesOneEventOfEachInsertAndNoneOfUpdatesAndDeletes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE facts (id text PRIMARY KEY, type text NOT NULL, partition_key text, payload jsonb, published_at timestamptz)`)
	// Someone else's publication carries everything.
	db.Exec(`CREATE PUBLICATION walpost FOR TABLE facts`)
	sub := keeping(nil)
	r := streaming(t, oneSource(options(t, db, sub), &outbox.Source{Name: "facts", Schema: "public", Table: "facts", Mark: true}))
	payloads := map[string]string{"sql-null": "", "json-null": "null", "object": "{}", "string": `""`, "array": "[]"}
	for id, payload := range payloads {
		if id == "sql-null" {
			db.Exec(`INSERT INTO facts VALUES ($1, 'any', NULL, NULL)`, id)
			continue
		}
		db.Exec(`INSERT INTO facts VALUES ($1, 'any', NULL, $2::text::jsonb)`, id, payload)
	}
	db.Exec(`WITH gone AS (INSERT INTO facts VALUES ('other', 'any', 'k', '{}') RETURNING 1) SELECT * FROM gone`)
	conn := session(t, db.DSN)
	mustExec(t, conn, `BEGIN; INSERT INTO facts VALUES ('short-lived', 'any', 'k', '{}'); DELETE FROM facts WHERE id = 'short-lived'; COMMIT`)
	sub.AwaitDelivered(t, 7)
	eventually(t, "all marks", func() bool { return db.Int(`SELECT count(*) FROM facts WHERE published_at IS NULL`) == 0 })
	db.Exec(`UPDATE facts SET payload = '{"changed": true}'`)
	db.Exec(`DELETE FROM facts WHERE id <> 'object'`)
	db.Exec(`TRUNCATE facts`)
	db.Exec(`INSERT INTO facts VALUES ('last', 'any', 'k', '{}')`)
	last := sub.await(t, "last")
	eventually(t, "the slot has passed all of it", passed(t, db, last))
	r.shutDown()

	seen := make(map[string]*event.Event)
	for _, ev := range sub.events() {
		if seen[ev.ID] != nil {
			t.Errorf("%q came twice", ev.ID)
		}
		seen[ev.ID] = ev
	}
	if len(seen) != 8 {
		t.Errorf("%d events, want 8", len(seen))
	}
	for id, payload := range payloads {
		ev := seen[id]
		if ev == nil {
			t.Errorf("%q did not come", id)
			continue
		}
		if string(ev.Payload) != payload || (ev.Payload == nil) != (id == "sql-null") || ev.Key != "" {
			t.Errorf("%q has payload %q (nil: %v) and key %q, want %q", id, ev.Payload, ev.Payload == nil, ev.Key, payload)
		}
	}
}

// F-55
func TestRelay_refusesAGeneratedKey(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE facts (id text PRIMARY KEY, type text NOT NULL, payload jsonb,
		key text GENERATED ALWAYS AS (payload->>'user') STORED)`)
	r := start(t, oneSource(options(t, db, keeping(nil)),
		&outbox.Source{Name: "facts", Schema: "public", Table: "facts", Columns: outbox.Columns{Key: "key"}}))
	wantWords(t, r.refused(), `"key"`, "generated", "payload.user_id")
	wantNoSlot(t, db)
	// What the message advises works.
	sub := keeping(nil)
	streaming(t, oneSource(options(t, db, sub),
		&outbox.Source{Name: "facts", Schema: "public", Table: "facts", Columns: outbox.Columns{Key: "payload.user"}}))
	db.Exec(`INSERT INTO facts VALUES ('e', 'any', '{"user": "u1"}')`)
	if got := sub.await(t, "e").Key; got != "u1" {
		t.Errorf("key %q, want %q", got, "u1")
	}
}

// F-55: generated columns are in the rows of the table, and in the stream only where a publication of 18 says so.
// Events have nothing of them, and are the same by both ways.
func TestRelay_takesNoNoticeOfGeneratedColumns(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`ALTER TABLE outbox ADD COLUMN kind text GENERATED ALWAYS AS (event_type) STORED`)
	options18 := ""
	if major(db) >= 18 {
		options18 = ", publish_generated_columns = stored"
	}
	db.Exec(`CREATE PUBLICATION walpost FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true` + options18 + `)`)
	insert(db, "by table", "a")
	sub := keeping(nil)
	streaming(t, options(t, db, sub))
	insert(db, "by stream", "a")
	table, stream := sub.await(t, "by table"), sub.await(t, "by stream")
	if table.Type != stream.Type || table.Key != stream.Key || string(table.Payload) != string(stream.Payload) {
		t.Errorf("by table %+v\nby stream %+v", table, stream)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
}

// wantWords checks what an error tells a person.
func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

func wantNoSlot(t *testing.T, db *testdb.DB) {
	t.Helper()
	if got := db.Int(`SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`); got != 0 {
		t.Errorf("%d slots were made, want none", got)
	}
}
