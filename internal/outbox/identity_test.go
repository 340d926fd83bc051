package outbox_test

import (
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/testdb"
)

func texts(events []*event.Event) string {
	var all strings.Builder
	for _, e := range events {
		all.WriteString("\n" + text(e))
	}
	return all.String()
}

// markAsStreamed marks the rows of events as the stream brought them, and expects each to be found.
func markAsStreamed(t *testing.T, db *testdb.DB, table *outbox.Table, what string, events []*event.Event) {
	t.Helper()
	var rows []outbox.Marked
	for _, e := range events {
		rows = append(rows, outbox.Marked{Row: e.Row, Identity: e.Identity()})
	}
	if got := mustMark(t, db, table, rows...); got.Marked != len(rows) {
		t.Errorf("%s: the mark and the stream have different identities: got %+v, want %d marked; the events are %s", what, got, len(rows), texts(events))
	}
}

// S-31: what stands at the event's primary key is not always its row.
func TestMark_leavesARowOfAnotherOccurrenceAlone(t *testing.T) {
	for _, test := range []struct{ name, definition, first, second string }{
		{"another time", `id int PRIMARY KEY, type text, payload text, created_at timestamptz, published_at timestamptz`,
			`(1, 't', 'x', '2024-03-10 06:30:00Z')`, `(1, 't', 'x', '2024-03-10 06:30:00.000001Z')`},
		{"a time, and none", `id int PRIMARY KEY, type text, payload text, created_at timestamptz, published_at timestamptz`,
			`(1, 't', 'x', '2024-03-10 06:30:00Z')`, `(1, 't', 'x', NULL)`},
		{"no time, another payload", `id int PRIMARY KEY, type text, payload text, published_at timestamptz`, `(1, 't', 'x')`, `(1, 't', 'y')`},
		{"no time, a payload that is NULL", `id int PRIMARY KEY, type text, payload text, published_at timestamptz`, `(1, 't', '')`, `(1, 't', NULL)`},
		{"no time, another type", `id int PRIMARY KEY, type text, payload text, published_at timestamptz`, `(1, 't', 'x')`, `(1, 'tx', '')`},
		{"another id at the same primary key", `nr int PRIMARY KEY, id text, type text, payload text, published_at timestamptz`,
			`(1, 'a', 't', 'x')`, `(1, 'b', 't', 'x')`},
		{"an id without case", `nr int PRIMARY KEY, id text COLLATE nocase, type text COLLATE nocase, payload text, created_at text COLLATE nocase, published_at timestamptz`,
			`(1, 'a', 't', 'x', 'z')`, `(1, 'A', 't', 'x', 'z')`},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.New(t)
			db.Exec(`CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
			table := foreign(t, db, test.definition)
			db.Exec(`INSERT INTO o VALUES ` + test.first)
			before := unpublished(t, db, table)[0]
			db.Exec(`TRUNCATE o`)
			db.Exec(`INSERT INTO o VALUES ` + test.second)
			got := mustMark(t, db, table, outbox.Marked{Row: before.Row, Identity: before.Identity()})
			if got.Marked != 0 || len(got.Missing) != 1 || got.Replaced != 1 {
				t.Errorf("got %+v, want nothing marked and the row missing, because another event stands there", got)
			}
			now := unpublished(t, db, table)
			if len(now) != 1 || now[0].Identity() == before.Identity() {
				t.Fatalf("unpublished: got %s, want one row, with another identity than %v", texts(now), before.Identity())
			}
			markAsStreamed(t, db, table, test.name, now)
		})
	}
}

// Without a usable id an event has one that is made of its primary key, and its row is marked when a person
// has discarded it.
func TestMark_findsRowsWithoutAUsableID(t *testing.T) {
	db := testdb.New(t)
	for _, key := range []string{"nr", "nr, type"} {
		db.Exec(`DROP TABLE IF EXISTS o`)
		table := foreign(t, db, `nr int, id text, type text, payload text, published_at timestamptz, PRIMARY KEY (`+key+`)`)
		db.Exec(`INSERT INTO o VALUES (1, '', 't', 'x'), (2, repeat('x', 257), 't', 'x'), (3, NULL, 't', 'x'), (4, 'row:9', 't', 'x')`)
		markAsStreamed(t, db, table, key, unpublished(t, db, table))
	}
}

// A time that is no date type can be of any length, and what is owed is found by an index.
func TestOccurrence_ofALongTextIsShort(t *testing.T) {
	db := testdb.New(t)
	table := foreign(t, db, `id int PRIMARY KEY, type text, payload text, created_at text, published_at timestamptz`)
	db.Exec(`INSERT INTO o VALUES (1, 't', 'x', ''), (2, 't', 'x', repeat('é', 32)), (3, 't', 'x', repeat('é', 32) || 'x'), (4, 't', 'x', repeat('y', 5000))`)
	rows := unpublished(t, db, table)
	for _, e := range rows {
		if n := len(e.Occurrence); n != 64 {
			t.Errorf("%s: its occurrence %q has %d bytes, want 64", e.ID, e.Occurrence, n)
		}
	}
	if rows[1].Occurrence != strings.Repeat("é", 32) {
		t.Errorf("got %q, want the text itself", rows[1].Occurrence)
	}
	markAsStreamed(t, db, table, "long", rows)
}

// The stream is UTF-8 whatever the database is.
func TestMark_findsRowsOfADatabaseInAnotherEncoding(t *testing.T) {
	for encoding, text := range map[string]string{"LATIN1": `'caf' || chr(233)`, "SQL_ASCII": `'caf' || chr(195) || chr(169)`} {
		t.Run(encoding, func(t *testing.T) {
			db := testdb.NewEncoded(t, encoding)
			table := foreign(t, db, `id text PRIMARY KEY, type text, payload text, created_at text, published_at timestamptz`)
			db.Exec(`CREATE PUBLICATION p FOR TABLE o WITH (publish = 'insert')`)
			stream := openStream(t, db)
			db.Exec(`INSERT INTO o VALUES (` + text + `, ` + text + `, ` + text + `, ` + text + `), ('2', ` + text + `, ` + text + `, NULL),
				('3', 't', '{}', repeat(` + text + `, 13)), (repeat(` + text + `, 52), 't', '{}', 'now')`)
			db.Exec(`INSERT INTO o VALUES ('last', 'last', '', 'now')`)
			streamed := stream.until(t, table, "last")
			if streamed[0].ID != "café" || streamed[0].Occurrence != "café" || len(streamed) != 5 {
				t.Fatalf("streamed: %s", texts(streamed))
			}
			markAsStreamed(t, db, table, encoding, streamed)
		})
	}
}
