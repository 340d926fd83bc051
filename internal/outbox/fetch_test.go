package outbox_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

func fetch(t *testing.T, db *testdb.DB, table *outbox.Table, rows ...string) (events map[string]*event.Event) {
	t.Helper()
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) (err error) {
		events, err = table.Fetch(t.Context(), tx, rows)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func find(t *testing.T, db *testdb.DB, table *outbox.Table, eventIDs ...string) (events []*event.Event) {
	t.Helper()
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) (err error) {
		if events, err = table.Find(t.Context(), tx, eventIDs); err != nil {
			return err
		}
		_, err = tx.Exec(t.Context(), `SELECT 1`) // the transaction is still of use
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func TestFetch_readsPublishedRowsTooAndLeavesOutWhatIsGone(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 4)
	db.Exec(`UPDATE outbox SET published_at = now() WHERE id = 2`)
	db.Exec(`DELETE FROM outbox WHERE id = 3`)
	events := fetch(t, db, table, "3", "2", "1")
	if got, want := slices.Sorted(maps.Keys(events)), []string{"1", "2"}; !slices.Equal(got, want) {
		t.Fatalf("got rows %q, want %q", got, want)
	}
	if e := events["2"]; e.ID != "e2" || e.Row != "2" || e.Source != "lessons" || string(e.Payload) != "{}" {
		t.Errorf("got %+v", e)
	}
	if got := fetch(t, db, table); len(got) != 0 {
		t.Errorf("of no rows: got %v", got)
	}
}

// P4: what debt reads by reference has the bytes that Unpublished reads, and those are the stream's.
func TestFetch_givesTheBytesOfTheStream(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE EXTENSION citext;
		CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
		CREATE TYPE pair AS (x int, y text, z bytea, at timestamptz)`)
	for _, test := range typedValues {
		db.Exec(`CREATE TABLE o (nr serial PRIMARY KEY, value ` + test.typ + `, kind text DEFAULT 't', published_at timestamptz)`)
		source := outbox.Source{Name: "o", Schema: "public", Table: "o", Columns: outbox.Columns{
			ID: "nr", Type: "kind", Payload: "value", Headers: "value", Time: "value", Key: "value", Order: []string{"nr"}}}
		table := inspect(t, db, &source)
		db.Exec(`INSERT INTO o (value) VALUES ` + test.values)
		db.Exec(`INSERT INTO o VALUES (DEFAULT, NULL)`)
		want := unpublished(t, db, table)
		var rows []string
		for _, e := range want {
			e.CommittedAt = time.Time{}
			rows = append(rows, e.Row)
		}
		fetched, found := fetch(t, db, table, rows...), find(t, db, table, rows...)
		for i, e := range want {
			if got := fetched[e.Row]; !reflect.DeepEqual(got, e) {
				t.Errorf("%s: fetched %+v, want %+v", test.typ, got, e)
			}
			if got := found[i]; !reflect.DeepEqual(got, e) {
				t.Errorf("%s: found %+v, want %+v", test.typ, got, e)
			}
		}
		db.Exec(`DROP TABLE o`)
	}
}

func TestFetch_findsRowsByEveryKindOfKey(t *testing.T) {
	for _, test := range []struct{ name, definition, insert, row string }{
		{"a uuid", `id uuid PRIMARY KEY, type text, payload text`, `('00000000-0000-0000-0000-000000000001', 't', '')`, "00000000-0000-0000-0000-000000000001"},
		{"a text to be quoted", `id text PRIMARY KEY, type text, payload text`, `(E'it''s "x" {\\}', 't', '')`, `it's "x" {\}`},
		{"a padded one", `id char(4) PRIMARY KEY, type text, payload text`, `('a', 't', '')`, "a   "},
		{"no primary key", `id bigint, type text, payload text`, `(1, 't', '')`, "1"},
		{"a key of two", `id bigint, type text, payload text, PRIMARY KEY (type, id)`, `(1, 'a,"b', '')`, `["a,\"b","1"]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.New(t)
			table := foreign(t, db, test.definition)
			db.Exec(`INSERT INTO o VALUES ` + test.insert)
			if got := fetch(t, db, table, test.row); got[test.row] == nil {
				t.Errorf("got %v, want row %s", got, test.row)
			}
		})
	}
}

func TestFetch_refusesARowThatIsNoKeyOfTheTable(t *testing.T) {
	db := testdb.New(t)
	table := foreign(t, db, `id bigint, type text, payload text, PRIMARY KEY (type, id)`)
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		_, err := table.Fetch(t.Context(), tx, []string{"1"})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), `row "1" is no array of the 2 key columns`) {
		t.Errorf("got %v", err)
	}
}

func TestFetch_usesTheIndexOfTheKey(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 5000)
	db.Exec(`ANALYZE outbox`)
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		if _, err := table.Fetch(t.Context(), tx, []string{"7", "4000"}); err != nil {
			return err
		}
		if _, err := table.Find(t.Context(), tx, []string{"e7", "e4000"}); err != nil {
			return err
		}
		// It counts the sequential scans of this transaction.
		var got int64
		if err := tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_numscans('public.outbox'::regclass)`).Scan(&got); err != nil {
			return err
		}
		if got != 0 {
			t.Errorf("%d sequential scans, want none", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFind_givesTheOrderOfARepair(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 5)
	db.Exec(`UPDATE outbox SET published_at = now() WHERE id = 2`)
	if got, want := ids(find(t, db, table, "e4", "missing", "e2", "e1")), []string{"e1", "e2", "e4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFind_takesIdsThatAreNoValuesOfTheColumnsType(t *testing.T) {
	db := testdb.New(t)
	table := foreign(t, db, `id uuid PRIMARY KEY, type text, payload text`)
	db.Exec(`INSERT INTO o VALUES ('00000000-0000-0000-0000-000000000001', 't', '')`)
	got := ids(find(t, db, table, "01JABC", "00000000-0000-0000-0000-000000000001"))
	if want := []string{"00000000-0000-0000-0000-000000000001"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
