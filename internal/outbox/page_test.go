package outbox_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// pages reads all that is chosen, n rows at a time, each page in a transaction of its own and from a place
// that went through JSON, as it does in the table where it is kept.
func pages(t *testing.T, db *testdb.DB, table *outbox.Table, choice outbox.Choice, n int) (ids []string) {
	t.Helper()
	var last, after outbox.Place
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) (err error) {
		last, err = table.Last(t.Context(), tx)
		return err
	})
	for err == nil {
		var page []outbox.PlacedRow
		err = postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) (err error) {
			page, err = table.Page(t.Context(), tx, choice, after, last, n, 1<<20)
			return err
		})
		if err == nil && len(page) == 0 {
			return ids
		}
		for _, row := range page {
			ids = append(ids, row.Event.ID)
			text, _ := json.Marshal(row.Place)
			after = nil
			if err := json.Unmarshal(text, &after); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatal(err)
	return nil
}

func TestPage_readsEveryChosenRowOnceInTheOrderOfARepair(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name, columns, rows string
		source              outbox.Columns
		choice              outbox.Choice
		want                string
	}{
		{"by an integer", `id int PRIMARY KEY, type text, payload text`,
			`(3, 't', ''), (1, 't', ''), (2, 'u', '')`, outbox.Columns{}, outbox.Choice{}, "1 2 3"},
		{"by type", `id int PRIMARY KEY, type text, payload text`,
			`(3, 't', ''), (1, 't', ''), (2, 'u', '')`, outbox.Columns{}, outbox.Choice{Type: "t"}, "1 3"},
		{"by time with ties and without a time", `id text PRIMARY KEY, type text, payload text, created_at timestamptz`,
			`('b', 't', '', '2026-01-02 03:04:05.000001Z'), ('a', 't', '', '2026-01-02 03:04:05.000001Z'), ('c', 't', '', '2026-01-01Z'),
			 ('n2', 't', '', NULL), ('n1', 't', '', NULL), ('z', 't', '', 'infinity')`, outbox.Columns{}, outbox.Choice{}, "c a b z n1 n2"},
		{"since a time", `id int PRIMARY KEY, type text, payload text, created_at timestamptz`,
			`(1, 't', '', '2026-01-02 03:04:04.999999Z'), (2, 't', '', '2026-01-02 03:04:05Z'), (3, 't', '', NULL), (4, 't', '', '2026-01-02 03:04:06Z')`,
			outbox.Columns{}, outbox.Choice{Since: at, Until: at.Add(time.Second)}, "2"},
		{"since a time without a zone", `id int PRIMARY KEY, type text, payload text, created_at timestamp`,
			`(1, 't', '', '2026-01-02 03:04:04'), (2, 't', '', '2026-01-02 03:04:05')`, outbox.Columns{}, outbox.Choice{Since: at}, "2"},
		// S-174
		{"since a time whose zone the source names", `id int PRIMARY KEY, type text, payload text, created_at timestamp`,
			`(1, 't', '', '2026-01-02 12:04:04'), (2, 't', '', '2026-01-02 12:04:05'), (3, 't', '', '2026-01-02 12:04:06')`,
			outbox.Columns{}, outbox.Choice{Since: at, Until: at.Add(time.Second)}, "2"},
		{"by an order column that repeats", `id uuid PRIMARY KEY, type text, payload text, n int`,
			`('00000000-0000-0000-0000-000000000002', 't', '', 7), ('00000000-0000-0000-0000-000000000001', 't', '', 7), ('00000000-0000-0000-0000-000000000003', 't', '', 6)`,
			outbox.Columns{Order: []string{"n"}}, outbox.Choice{},
			"00000000-0000-0000-0000-000000000003 00000000-0000-0000-0000-000000000001 00000000-0000-0000-0000-000000000002"},
		{"by key, or the aggregate where there is none", `id int PRIMARY KEY, type text, payload text, partition_key text, aggregate_id int`,
			`(1, 't', '', 'k', 1), (2, 't', '', '', 7), (3, 't', '', NULL, 7), (4, 't', '', '7', 1), (5, 't', '', '7x', 7)`,
			outbox.Columns{}, outbox.Choice{Key: "7"}, "2 3 4"},
		{"by a key inside the payload", `id int PRIMARY KEY, type text, payload jsonb`,
			`(1, 't', '{"user_id": 42}'), (2, 't', '{"user_id": "42"}'), (3, 't', '{}'), (4, 't', '{"user_id": 421}')`,
			outbox.Columns{Key: "payload.user_id"}, outbox.Choice{Key: "42"}, "1 2"},
		{"an empty table", `id int PRIMARY KEY, type text, payload text`, ``, outbox.Columns{}, outbox.Choice{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.New(t)
			db.Exec(`CREATE TABLE o (` + test.columns + `)`)
			if test.rows != "" {
				db.Exec(`INSERT INTO o VALUES ` + test.rows)
			}
			zone := ""
			if strings.Contains(test.name, "whose zone the source names") {
				zone = "Asia/Tokyo"
			}
			table := inspect(t, db, &outbox.Source{Name: "o", Schema: "public", Table: "o", Columns: test.source, TimeZone: zone})
			if test.rows == "" {
				err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
					last, err := table.Last(t.Context(), tx)
					if last != nil {
						t.Errorf("an empty table ends at %v", last)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
				return
			}
			for _, n := range []int{1, 2, 100} {
				if got := strings.Join(pages(t, db, table, test.choice, n), " "); got != test.want {
					t.Errorf("%d at a time: got %q, want %q", n, got, test.want)
				}
			}
		})
	}
}

func TestPage_endsAtTheRowThatWasTheLastOne(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 3)
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		last, err := table.Last(t.Context(), tx)
		if err != nil {
			return err
		}
		fillFrom(db, 4, 6)
		page, err := table.Page(t.Context(), tx, outbox.Choice{}, nil, last, 100, 1<<20)
		var got []string
		for _, row := range page {
			got = append(got, row.Event.ID)
		}
		if want := []string{"e1", "e2", "e3"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPage_stopsWhenItHasEnoughBytes(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 5)
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		last, err := table.Last(t.Context(), tx)
		if err != nil {
			return err
		}
		page, err := table.Page(t.Context(), tx, outbox.Choice{}, nil, last, 100, 1)
		if len(page) != 1 {
			t.Errorf("got %d rows, want 1", len(page))
		}
		// The transaction is still of use.
		_, err2 := table.Last(t.Context(), tx)
		if err == nil {
			err = err2
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCanChoose_saysWhyATableCannot(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE o (id int PRIMARY KEY, type text, payload text, created_at bigint)`)
	table := inspect(t, db, &outbox.Source{Name: "o", Schema: "public", Table: "o", Columns: outbox.Columns{Key: "payload.user"}})
	for _, test := range []struct {
		choice outbox.Choice
		want   string
	}{
		{outbox.Choice{Since: time.Now()}, "columns.time"},
		{outbox.Choice{Key: "1"}, "no JSON type"},
		{outbox.Choice{Type: "t"}, ""},
	} {
		err := table.CanChoose(test.choice)
		if got := fmt.Sprint(err); err == nil && test.want != "" || err != nil && (test.want == "" || !strings.Contains(got, test.want)) {
			t.Errorf("%+v: got %v, want %q", test.choice, err, test.want)
		}
	}
}

func fillFrom(db *testdb.DB, from, to int) {
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) SELECT 'e' || n, 't', '{}' FROM generate_series($1::int, $2::int) n`, from, to)
}
