package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

const slot = "s"

func mark(t *testing.T, db *testdb.DB, table *outbox.Table, rows ...outbox.Marked) (result outbox.MarkResult, err error) {
	t.Helper()
	err = postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		result, err = table.Mark(t.Context(), tx, slot, rows, debt.OwedToAnyoneSQL)
		return err
	})
	return result, err
}

func mustMark(t *testing.T, db *testdb.DB, table *outbox.Table, rows ...outbox.Marked) outbox.MarkResult {
	t.Helper()
	result, err := mark(t, db, table, rows...)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// written is when fill wrote its rows, and so their occurrence.
const written = "2000-01-01 00:00:00+00"

// fill writes n rows with ids 1 to n, events e1 to en, into our own table.
func fill(db *testdb.DB, n int) {
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload, created_at) SELECT 'e' || i, 't', '{}', $2 FROM generate_series(1, $1::int) i`, n, written)
}

// filled is row n of fill.
func filled(n int) outbox.Marked {
	return outbox.Marked{Row: fmt.Sprint(n), Identity: event.Identity{Source: "lessons", ID: fmt.Sprint("e", n), Occurrence: written}}
}

func attempted(row outbox.Marked, attempts int) outbox.Marked {
	row.Attempts = attempts
	return row
}

func owe(db *testdb.DB, source, eventID, state string) {
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key, committed_at)
		VALUES ($1, 'sub', $2, $3, $4, $5, 1, '0/1', 0, 't', '', now())`, slot, source, eventID, written, state)
}

func TestMark_publishesRowsAndAddsAttempts(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 3)
	db.Exec(`UPDATE outbox SET attempts = 2 WHERE id = 2`)
	got := mustMark(t, db, table, filled(1), attempted(filled(2), 5))
	if got.Marked != 2 || got.Elsewhere+got.Owed+len(got.Missing) != 0 {
		t.Errorf("got %+v, want 2 marked and nothing else", got)
	}
	rows := db.Texts(`SELECT id || ' ' || (published_at IS NOT NULL) || ' ' || attempts FROM outbox ORDER BY id`)
	if want := []string{"1 true 0", "2 true 7", "3 false 0"}; !slices.Equal(rows, want) {
		t.Errorf("got %q, want %q", rows, want)
	}
}

func TestMark_tellsMarkedElsewhereFromMissing(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 4)
	db.Exec(`UPDATE outbox SET published_at = '2020-01-01', attempts = 9 WHERE id = 2`)
	db.Exec(`DELETE FROM outbox WHERE id = 3`)
	got := mustMark(t, db, table, filled(1), attempted(filled(2), 1), filled(3), filled(4))
	if got.Marked != 2 || got.Elsewhere != 1 || !slices.Equal(got.Missing, []outbox.Marked{filled(3)}) {
		t.Errorf("got %+v, want 2 marked, 1 elsewhere, row 3 missing", got)
	}
	if got, want := db.Text(`SELECT published_at::date || ' ' || attempts FROM outbox WHERE id = 2`), "2020-01-01 9"; got != want {
		t.Errorf("the row that someone else marked: got %s, want it untouched, %s", got, want)
	}
}

func TestMark_leavesARowWithDebtOrDeadLetterUnpublished(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 5)
	owe(db, "lessons", "e1", "waiting")
	owe(db, "lessons", "e2", "dead")
	owe(db, "lessons", "e3", "paid")
	owe(db, "another source", "e4", "waiting")
	var rows []outbox.Marked
	for i := 1; i <= 5; i++ {
		row := filled(i)
		row.Owed = true
		rows = append(rows, row)
	}
	got := mustMark(t, db, table, rows...)
	if got.Marked != 3 || got.Owed != 2 {
		t.Errorf("got %+v, want 3 marked, 2 owed", got)
	}
	if got, want := db.Texts(`SELECT event_id FROM outbox WHERE published_at IS NULL ORDER BY id`), []string{"e1", "e2"}; !slices.Equal(got, want) {
		t.Errorf("unpublished: got %q, want %q", got, want)
	}
}

func TestMark_takesMoreThanOneStatementsRows(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 2500)
	var rows []outbox.Marked
	for i := 1; i <= 2501; i++ {
		rows = append(rows, filled(i))
	}
	got := mustMark(t, db, table, rows...)
	if got.Marked != 2500 || !slices.Equal(got.Missing, []outbox.Marked{filled(2501)}) {
		t.Errorf("got %+v, want 2500 marked and row 2501 missing", got)
	}
}

func TestMark_worksOnOtherPeoplesTables(t *testing.T) {
	for _, test := range []struct{ name, definition, insert, row, want string }{
		{"delivered with its time", `id uuid PRIMARY KEY, type text, payload json, delivered bool NOT NULL DEFAULT false, delivered_at timestamp`,
			`('00000000-0000-0000-0000-000000000001', 't', '{}')`, "00000000-0000-0000-0000-000000000001", `delivered AND delivered_at IS NOT NULL`},
		{"delivered that may be NULL, alone", `id text PRIMARY KEY, type text, payload json, delivered bool`, `('it''s "x"', 't', '{}')`, `it's "x"`, `delivered`},
		{"attempts that are NULL", `id varchar(4) PRIMARY KEY, type text, payload json, attempts smallint, published_at timestamptz`,
			`('abcd', 't', '{}')`, "abcd", `published_at IS NOT NULL AND attempts = 1`},
		{"an enum for a key", `id mood PRIMARY KEY, type text, payload json, published_at date`, `('sad', 't', '{}')`, "sad", `published_at IS NOT NULL`},
		{"no primary key", `id bigint, type text, payload json, published_at timestamptz`, `(1, 't', '{}')`, "1", `published_at IS NOT NULL`},
		{"a key of two", `id bigint, type text, payload json, published_at timestamptz, PRIMARY KEY (type, id)`, `(1, 'a,"b', '{}')`, `["a,\"b","1"]`, `published_at IS NOT NULL`},
		{"names to be quoted", `id bigint PRIMARY KEY, type text, payload json, "published_at" timestamptz, "attempts" int, "sel""ect" int`, `(1, 't', '{}')`, "1", `published_at IS NOT NULL`},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.New(t)
			db.Exec(`CREATE TYPE mood AS ENUM ('sad')`)
			table := foreign(t, db, test.definition)
			db.Exec(`INSERT INTO o (id, type, payload) VALUES ` + test.insert)
			rows := unpublished(t, db, table)
			if len(rows) != 1 || rows[0].Row != test.row {
				t.Fatalf("unpublished before: got %v, want row %s", rows, test.row)
			}
			row := outbox.Marked{Row: test.row, Identity: rows[0].Identity(), Attempts: 1}
			if got := mustMark(t, db, table, row); got.Marked != 1 {
				t.Errorf("got %+v, want 1 marked", got)
			}
			if n := db.Int(`SELECT count(*) FROM o WHERE ` + test.want); n != 1 {
				t.Errorf("no row with %s", test.want)
			}
			if got := mustMark(t, db, table, row); got.Elsewhere != 1 {
				t.Errorf("a second time: got %+v, want 1 elsewhere", got)
			}
			if rows := unpublished(t, db, table); len(rows) != 0 {
				t.Errorf("unpublished after: got %v, want none", rows)
			}
		})
	}
}

// Statistics are of an hour when everything was published; then a backlog came.
func TestMark_findsRowsByTheirKeyWhateverTheStatisticsSay(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 2000)
	db.Exec(`UPDATE outbox SET published_at = now()`)
	db.Exec(`VACUUM ANALYZE outbox`)
	var rows []outbox.Marked
	db.Exec(`INSERT INTO outbox (event_id, event_type, payload, created_at) SELECT 'e' || n, 't', '{}', $1 FROM generate_series(2001, 4000) n`, written)
	for n := 2001; n <= 2500; n++ {
		row := filled(n)
		row.Owed = true
		rows = append(rows, row)
	}
	err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		result, err := table.Mark(t.Context(), tx, slot, rows, debt.OwedToAnyoneSQL)
		if err != nil {
			return err
		}
		if result.Marked != len(rows) {
			t.Errorf("got %+v, want %d marked", result, len(rows))
		}
		// It counts the scans of this transaction.
		var got int64
		if err := tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_numscans('public.idx_outbox_unpublished'::regclass)`).Scan(&got); err != nil {
			return err
		}
		if got != 0 {
			t.Error("it reads all that is unpublished to find a few rows of it")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMark_findsRowsOfAPartitionedTable(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE o (id bigint, day timestamptz, type text, payload text, published_at timestamptz, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)`)
	db.Exec(`CREATE TABLE o_1 PARTITION OF o FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')`)
	db.Exec(`INSERT INTO o VALUES (1, '2024-03-10 06:30:00.123456+00', 't', '')`)
	table := inspect(t, db, &outbox.Source{Name: "o", Schema: "public", Table: "o", Mark: true})
	rows := unpublished(t, db, table)
	if len(rows) != 1 {
		t.Fatalf("got %d rows, want 1", len(rows))
	}
	if got := mustMark(t, db, table, outbox.Marked{Row: rows[0].Row, Identity: rows[0].Identity()}); got.Marked != 1 {
		t.Errorf("row %s: got %+v, want 1 marked", rows[0].Row, got)
	}
}

// S-25: another session holds the row while we come.
func TestMark_leavesARowThatIsLockedAndKnowsWhoLockedIt(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 3)
	begin := func(sql ...string) (pgx.Tx, int64) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), db.DSN) // more of them than the pool has
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range sql {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		return tx, int64(tx.Conn().PgConn().PID())
	}
	lockedBy := func(row string) (who string) {
		t.Helper()
		err := postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) (err error) {
			who, err = table.LockedBy(t.Context(), tx, row)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return who
	}
	wantWho := func(row string, pid int64, query string) {
		t.Helper()
		if got := lockedBy(row); !strings.Contains(got, fmt.Sprint("pid ", pid)) || !strings.Contains(got, query) {
			t.Errorf("row %s is locked by %q, want pid %d and %q", row, got, pid, query)
		}
	}
	poller, pollerPID := begin(`SAVEPOINT s`, `UPDATE public.outbox SET published_at = '2020-01-01' WHERE id = 2`)
	reader, readerPID := begin(`SELECT FROM public.outbox WHERE id = 3 FOR SHARE`)
	second, secondPID := begin(`SELECT FROM public.outbox WHERE id = 3 FOR SHARE /* too */`)
	child, _ := begin(`SELECT FROM public.outbox WHERE id = 1 FOR KEY SHARE`) // as a foreign key does: it forbids no mark

	got := mustMark(t, db, table, filled(1), filled(2), filled(3))
	if got.Marked != 1 || !slices.Equal(got.Locked, []int{1, 2}) {
		t.Errorf("got %+v, want the first marked and the others locked", got)
	}
	wantWho("2", pollerPID, "UPDATE public.outbox")
	wantWho("3", readerPID, "FOR SHARE")
	wantWho("3", secondPID, "too")
	for _, tx := range []pgx.Tx{reader, second, child} {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := poller.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := lockedBy("2") + lockedBy("77"); got != "" {
		t.Errorf("locked by %q, want no one", got)
	}
	if got := mustMark(t, db, table, filled(2), filled(3)); got.Marked != 1 || got.Elsewhere != 1 {
		t.Errorf("got %+v, want one marked and one marked elsewhere", got)
	}
	if got, want := db.Text(`SELECT published_at::date::text FROM outbox WHERE id = 2`), "2020-01-01"; got != want {
		t.Errorf("published at: got %s, want the poller's %s", got, want)
	}
}

// S-24: the server reports success, and the row is as it was.
func TestMark_thatIsSwallowedIsAnErrorThatNamesTheTrigger(t *testing.T) {
	for _, test := range []struct{ name, body, want string }{
		{"returns NULL", `RETURN NULL`, "keep_as_it_is"},
		{"returns OLD", `RETURN OLD`, "keep_as_it_is"},
		{"takes the mark out", `NEW.published_at := NULL; RETURN NEW`, "keep_as_it_is"},
		{"swallows one row of several", `IF OLD.id = 2 THEN RETURN OLD; END IF; RETURN NEW`, "keep_as_it_is"},
		{"raises", `RAISE EXCEPTION 'never'`, "keep_as_it_is"},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.New(t)
			table := inspect(t, db, ours())
			fill(db, 3)
			db.Exec(`CREATE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + test.body + `; END $$`)
			db.Exec(`CREATE TRIGGER keep_as_it_is BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION append_only()`)
			db.Exec(`CREATE TRIGGER has_nothing_to_do_with_it BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION append_only()`)
			_, err := mark(t, db, table, filled(1), filled(2), filled(3))
			err = outbox.ExplainMark(t.Context(), db.Pinned, err)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "mark: off") || strings.Contains(err.Error(), "nothing_to_do") {
				t.Errorf("got %v, want the trigger and the way out", err)
			}
			if got := len(unpublished(t, db, table)); got != 3 {
				t.Errorf("%d rows wait, want all 3 as before", got)
			}
		})
	}
}

func TestMark_saysWhatToDoWhenAnotherPublicationForbidsUpdates(t *testing.T) {
	db := testdb.New(t)
	table := foreign(t, db, `id bigint, type text, payload text, published_at timestamptz`)
	db.Exec(`INSERT INTO o VALUES (1, 't', '')`)
	db.Exec(`CREATE PUBLICATION everything FOR ALL TABLES`)
	_, err := mark(t, db, table, filled(1))
	err = outbox.ExplainMark(t.Context(), db.Pinned, err)
	if err == nil || !strings.Contains(err.Error(), "REPLICA IDENTITY FULL") || postgres.Code(err) != "55000" {
		t.Errorf("got %v, want 55000 and what to do", err)
	}
}

// S-107: the column that is marked is dropped while the relay runs.
func TestMark_saysWhatToDoWhenItsColumnIsGone(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 1)
	db.Exec(`ALTER TABLE outbox DROP COLUMN published_at`)
	_, err := mark(t, db, table, filled(1))
	err = outbox.ExplainMark(t.Context(), db.Pinned, err)
	if err == nil || !strings.Contains(err.Error(), "is gone") || !strings.Contains(err.Error(), "published_at") || !strings.Contains(err.Error(), "mark: off") {
		t.Errorf("got %v, want the column and the way out", err)
	}
}

func TestMark_needsOnlyTheColumnGrants(t *testing.T) {
	db := testdb.New(t)
	table := inspect(t, db, ours())
	fill(db, 1)
	role := db.Name + "_relay" // roles are per server
	db.Exec(`CREATE ROLE ` + role)
	t.Cleanup(func() { db.Exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role) })
	as := func() error {
		return postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role); err != nil {
				return err
			}
			_, err := table.Mark(t.Context(), tx, slot, []outbox.Marked{filled(1)}, debt.OwedToAnyoneSQL)
			return err
		})
	}
	db.Exec(`GRANT USAGE ON SCHEMA walpost TO ` + role + `; GRANT SELECT ON walpost.owed, outbox TO ` + role)
	if err := outbox.ExplainMark(t.Context(), db.Pinned, as()); err == nil || !strings.Contains(err.Error(), `UPDATE ("published_at", "attempts") ON "public"."outbox"`) {
		t.Errorf("got %v, want the grant that is missing", err)
	}
	db.Exec(`GRANT UPDATE (published_at, attempts) ON outbox TO ` + role)
	if err := as(); err != nil {
		t.Errorf("with the column grant: %v", err)
	}
}
