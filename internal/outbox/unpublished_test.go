package outbox_test

import (
	"errors"
	"fmt"
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

func unpublished(t *testing.T, db *testdb.DB, table *outbox.Table) (events []*event.Event) {
	t.Helper()
	err := postgres.InSnapshot(t.Context(), db.Pinned, "", func(tx pgx.Tx) error {
		return table.Unpublished(t.Context(), tx, func(e *event.Event) error {
			events = append(events, e)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func ids(events []*event.Event) (ids []string) {
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	return ids
}

func TestUnpublished_givesWhatWaitsInvalidRowsToo(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 3)
	db.Exec(`UPDATE outbox SET published_at = now() WHERE id = 2`)
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('e4', '', '{"a":1}')`)
	events := unpublished(t, db, table)
	if got, want := ids(events), []string{"e1", "e3", "e4"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	last := events[2]
	if last.Invalid == "" || last.Row != "4" || string(last.Payload) != `{"a": 1}` || last.Source != "lessons" {
		t.Errorf("got %+v", last)
	}
}

func TestUnpublished_stopsAtTheFirstErrorOfItsReader(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 3)
	enough := errors.New("enough")
	calls := 0
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		return table.Unpublished(t.Context(), tx, func(*event.Event) error {
			calls++
			return enough
		})
	})
	if !errors.Is(err, enough) || calls != 1 {
		t.Errorf("got %v after %d calls, want the reader's error after 1", err, calls)
	}
}

func TestUnpublished_refusesATableThatIsNeverMarked(t *testing.T) {
	db := testdb.New(t)
	table := foreign(t, db, `id int PRIMARY KEY, type text, payload text`)
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		return table.Unpublished(t.Context(), tx, func(*event.Event) error { return nil })
	})
	if err == nil || !strings.Contains(err.Error(), "no published column") {
		t.Errorf("got %v", err)
	}
}

func TestUnpublished_withoutCommitTimesReadsByTheOrderColumn(t *testing.T) {
	server := testdb.NewServer(t, map[string]string{"track_commit_timestamp": "off"})
	for _, test := range []struct{ name, definition, order, want string }{
		{"an integer id", `event_id text PRIMARY KEY, id int, n int, created_at timestamptz`, "", "a b c"},
		{"an integer seq where the id is none", `id text PRIMARY KEY, seq int, n int, created_at timestamptz`, "", "a b c"},
		{"the time, then the order of the transaction", `event_id text PRIMARY KEY, x int, n int, created_at timestamptz`, "", "c b a"},
		{"nothing but the order of the transaction", `event_id text PRIMARY KEY, x int, n int, written text`, "", "c b a"},
		{"a mapped one", `event_id text PRIMARY KEY, id int, n int, created_at timestamptz`, "n", "c b a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.On(t, server)
			db.Exec(`CREATE TABLE o (` + test.definition + `, type text DEFAULT 't', payload text, published_at timestamptz)`)
			db.Exec(`INSERT INTO o VALUES ('c', 3, 1, '2020-01-01'), ('b', 2, 2, '2020-01-01'), ('a', 1, 3, '2024-01-01')`)
			table := inspect(t, db, &outbox.Source{Name: "o", Schema: "public", Table: "o", Columns: outbox.Columns{Order: strings.Fields(test.order)}})
			events := unpublished(t, db, table)
			if got := strings.Join(ids(events), " "); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if !events[0].CommittedAt.IsZero() {
				t.Errorf("committed at: got %v, want zero", events[0].CommittedAt)
			}
		})
	}
}

// S-28: a table without an order of its own: what a transaction has written comes as it was written, whatever its
// ids, savepoints, times and partitions.
func TestUnpublished_keepsTheOrderWithinATransaction(t *testing.T) {
	for _, tracked := range []string{"off", "on"} {
		server := testdb.NewServer(t, map[string]string{"track_commit_timestamp": tracked})
		db := testdb.On(t, server)
		db.Exec(`CREATE TABLE o (id uuid, type text, payload text, created_at timestamptz DEFAULT now(), published_at timestamptz, PRIMARY KEY (id)) PARTITION BY HASH (id)`)
		db.Exec(`CREATE TABLE o_1 PARTITION OF o FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE o_2 PARTITION OF o FOR VALUES WITH (MODULUS 2, REMAINDER 1)`)
		table := inspect(t, db, &outbox.Source{Name: "o", Schema: "public", Table: "o"})
		var want []string
		for range 6 {
			db.Exec(`DO $$ BEGIN
				FOR n IN 1..9 LOOP
					BEGIN
						INSERT INTO public.o (id, type, payload) VALUES (gen_random_uuid(), n::text, '');
					EXCEPTION WHEN OTHERS THEN RAISE; END;
				END LOOP;
			END $$`)
			for n := range 9 {
				want = append(want, fmt.Sprint(n+1))
			}
		}
		var got []string
		for _, e := range unpublished(t, db, table) {
			got = append(got, e.Type)
		}
		if !slices.Equal(got, want) {
			t.Errorf("track_commit_timestamp %s: got %q, want each transaction's rows in their order", tracked, got)
		}
	}
}

// F-03: the row with the lower id commits last.
func TestUnpublished_withCommitTimesReadsInCommitOrder(t *testing.T) {
	server := testdb.NewServer(t, map[string]string{"track_commit_timestamp": "on"})
	db := testdb.On(t, server)
	db.Exec(`CREATE TABLE o (id int, part int, type text, payload text, published_at timestamptz, PRIMARY KEY (id, part)) PARTITION BY LIST (part)`)
	db.Exec(`CREATE TABLE o_1 PARTITION OF o FOR VALUES IN (1); CREATE TABLE o_2 PARTITION OF o FOR VALUES IN (2)`)
	table := inspect(t, db, &outbox.Source{Name: "o", Schema: "public", Table: "o"})
	late, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), `INSERT INTO o VALUES (2, 1, 't', ''), (1, 2, 't', '')`); err != nil {
		t.Fatal(err)
	}
	db.Exec(`INSERT INTO o VALUES (4, 1, 't', '')`)
	db.Exec(`INSERT INTO o VALUES (3, 2, 't', '')`)
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(`VACUUM FREEZE o`) // sets a flag: xmin stays readable
	events := unpublished(t, db, table)
	if got, want := ids(events), []string{"4", "3", "1", "2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := time.Since(events[0].CommittedAt); got < 0 || got > time.Hour {
		t.Errorf("committed at: got %v, want just now", events[0].CommittedAt)
	}
}

// S-101: of a marked row the server knows when its mark committed, which says nothing of the event.
func TestRetained_readsMarkedRowsInTheOrderOfTheOrderColumn(t *testing.T) {
	server := testdb.NewServer(t, map[string]string{"track_commit_timestamp": "on"})
	db := testdb.On(t, server)
	table := inspect(t, db, ours())
	fill(db, 4)
	db.Exec(`UPDATE outbox SET published_at = now() WHERE id = 3`)
	db.Exec(`UPDATE outbox SET published_at = now() WHERE id = 1`)
	var got []string
	err := postgres.InSnapshot(t.Context(), db.Pinned, "", func(tx pgx.Tx) error {
		return table.Retained(t.Context(), tx, func(e *event.Event) error {
			got = append(got, e.ID)
			return nil
		})
	})
	if want := []string{"e1", "e2", "e3", "e4"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
