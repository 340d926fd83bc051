package outbox_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/testdb"
)

// ours is the source of the reference service.
func ours() *outbox.Source {
	return &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox", Mark: true, Ours: true}
}

func inspect(t *testing.T, db *testdb.DB, source *outbox.Source) *outbox.Table {
	t.Helper()
	table, err := source.Inspect(t.Context(), db.Pinned)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// foreign makes a table public.o from the definition of its columns and inspects it.
func foreign(t *testing.T, db *testdb.DB, definition string) *outbox.Table {
	t.Helper()
	db.Exec(`CREATE TABLE public.o (` + definition + `)`)
	return inspect(t, db, &outbox.Source{Name: "other", Schema: "public", Table: "o", Mark: true})
}

func TestInspect_knowsOurOwnTable(t *testing.T) {
	table := inspect(t, testdb.New(t), ours())
	if !slices.Equal(table.Columns, ourColumns) {
		t.Errorf("columns: got %q, want %q", table.Columns, ourColumns)
	}
	if !slices.Equal(table.Key, []string{"id"}) || table.Published != "published_at" || !table.Marks() || len(table.Warnings()) != 0 {
		t.Errorf("got key %q, published %q, marks %t, warnings %q", table.Key, table.Published, table.Marks(), table.Warnings())
	}
	layout, err := table.Layout(table.Columns)
	if err != nil {
		t.Fatal(err)
	}
	values := make([][]byte, len(ourColumns))
	values[0], values[1], values[2] = []byte("7"), []byte("01J"), []byte("t")
	if e := layout.Event(values); e.Row != "7" || e.ID != "01J" {
		t.Errorf("got row %q of event %q, want the primary key 7 and 01J", e.Row, e.ID)
	}
}

func TestInspect_knowsWhatAPayloadIsByTheTypeOfItsColumn(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE DOMAIN document AS jsonb; CREATE DOMAIN bytes AS bytea`)
	for typ, want := range map[string]event.PayloadType{
		"json": event.JSON, "jsonb": event.JSON, "document": event.JSON, "text": event.Text, "varchar(20)": event.Text, "xml": event.Text,
		"bytea": event.Binary, "bytes": event.Binary,
	} {
		table := foreign(t, db, `id bigint PRIMARY KEY, type text, payload `+typ)
		layout, err := table.Layout(table.Columns)
		if err != nil {
			t.Fatal(err)
		}
		if got := layout.Event([][]byte{[]byte("1"), []byte("t"), []byte("1")}).PayloadType; got != want {
			t.Errorf("%s: got %s, want %s", typ, got, want)
		}
		db.Exec(`DROP TABLE o`)
	}
}

func TestInspect_saysWhatIsWrong(t *testing.T) {
	db := testdb.New(t)
	for _, test := range []struct {
		name, ddl string
		columns   outbox.Columns
		want      string
	}{
		{"no table", ``, outbox.Columns{}, `there is no table public.bad`},
		{"a view", `CREATE VIEW bad AS SELECT 1 AS id, 't' AS type, '' AS payload`, outbox.Columns{}, `is no table`},
		{"no payload", `CREATE TABLE bad (id int PRIMARY KEY, type text)`, outbox.Columns{}, `payload, data`},
		{"a mapped column that is not there", `CREATE TABLE bad (id int PRIMARY KEY, type text, payload json)`, outbox.Columns{Order: []string{"nr"}}, `columns.order is "nr"`},
		{"published is a text", `CREATE TABLE bad (id int PRIMARY KEY, type text, payload json, published_at text)`, outbox.Columns{}, `must be a timestamp or a boolean`},
		// F-55
		{"a generated key", `CREATE TABLE bad (id int PRIMARY KEY, type text, payload jsonb, k text GENERATED ALWAYS AS (payload->>'user') STORED)`, outbox.Columns{Key: "k"}, `"k" of public.bad is the event's key, but it is generated`},
		{"a generated type under its well-known name", `CREATE TABLE bad (id int PRIMARY KEY, type text GENERATED ALWAYS AS ('t' || id::text) STORED, payload jsonb)`, outbox.Columns{}, `the event's type, but it is generated`},
		{"a generated aggregate id", `CREATE TABLE bad (id int PRIMARY KEY, type text, payload jsonb, aggregate_id int GENERATED ALWAYS AS (id * 2) STORED)`, outbox.Columns{}, `the event's aggregate_id, but it is generated`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.ddl != "" {
				db.Exec(test.ddl)
				kind := "TABLE"
				if strings.HasPrefix(test.ddl, "CREATE VIEW") {
					kind = "VIEW"
				}
				defer db.Exec(`DROP ` + kind + ` bad`)
			}
			source := outbox.Source{Name: "s", Schema: "public", Table: "bad", Columns: test.columns}
			_, err := source.Inspect(t.Context(), db.Pinned)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestInspect_ignoresGeneratedColumnsThatNoOneUses(t *testing.T) { // F-55
	table := foreign(t, testdb.New(t), `id int PRIMARY KEY, type text, payload text, length int GENERATED ALWAYS AS (octet_length(payload)) STORED`)
	if want := []string{"id", "type", "payload"}; !slices.Equal(table.Columns, want) {
		t.Errorf("got %q, want %q", table.Columns, want)
	}
}

func TestInspect_warnsOfATableWithoutPrimaryKey(t *testing.T) {
	table := foreign(t, testdb.New(t), `event_id text, type text, payload text, partition_key text, published_at timestamptz`)
	if !slices.Equal(table.Key, []string{"event_id"}) {
		t.Errorf("key: got %q, want the event id", table.Key)
	}
	if got := table.Warnings(); len(got) != 1 || !strings.Contains(got[0], "no primary key") {
		t.Errorf("warnings: got %q, want one about the primary key", got)
	}
}

func TestSame_tellsATableThatWasAltered(t *testing.T) {
	db := testdb.New(t)
	before := inspect(t, db, ours())
	before.OnMissing = func(int, int) {}
	now := inspect(t, db, ours())
	now.OnMissing = func(int, int) {}
	if !now.Same(before) || now.Same(nil) {
		t.Error("a table that no one has touched is not the same, or the same as none")
	}
	db.Exec(`ALTER TABLE outbox ADD COLUMN shard int`)
	if inspect(t, db, ours()).Same(before) {
		t.Error("a table with another column is the same")
	}
}

// S-102: the table has the column, and the publication leaves it out.
func TestTable_saysWhichColumnsTheStreamDoesNotCarry(t *testing.T) {
	table := inspect(t, testdb.New(t), ours())
	_, err := table.Layout([]string{"id", "event_id", "event_type"})
	if err == nil || !strings.Contains(err.Error(), "payload") || !strings.Contains(err.Error(), "column list") || strings.Contains(err.Error(), "columns.payload") {
		t.Errorf("got %v", err)
	}
}
