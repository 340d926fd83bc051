package outbox_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

func clean(t *testing.T, db *testdb.DB, table *outbox.Table, batch int) (deleted int64, more bool, err error) {
	t.Helper()
	err = postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		deleted, more, err = table.Clean(t.Context(), tx, slot, batch, time.Time{}, debt.SparedSQL)
		return err
	})
	return deleted, more, err
}

// F-70
func TestClean_deletesOldPublishedRowsWithoutDebt(t *testing.T) {
	db := testdb.New(t)
	source := ours()
	source.Retention = time.Hour
	table := inspect(t, db, source)
	fill(db, 6) // of long ago: age alone deletes nothing
	db.Exec(`UPDATE outbox SET published_at = now() - interval '2 hours' WHERE id <> 2`)
	db.Exec(`UPDATE outbox SET published_at = now() WHERE id = 3`)
	owe(db, "lessons", "e4", "waiting")
	owe(db, "lessons", "e5", "dead")
	owe(db, "lessons", "e6", "paid")
	deleted, more, err := clean(t, db, table, 100)
	if err != nil || deleted != 2 || more {
		t.Errorf("got %d, more %t, %v, want 2 and no more", deleted, more, err)
	}
	if got, want := db.Texts(`SELECT event_id FROM outbox ORDER BY id`), []string{"e2", "e3", "e4", "e5"}; !slices.Equal(got, want) {
		t.Errorf("left: got %q, want %q", got, want)
	}
}

// F-70
func TestClean_worksInBatchesAndAroundLocks(t *testing.T) {
	db := testdb.New(t)
	source := ours()
	source.Retention = time.Hour
	table := inspect(t, db, source)
	fill(db, 5)
	db.Exec(`UPDATE outbox SET published_at = now() - interval '2 hours'`)
	holder, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	if _, err := holder.Exec(t.Context(), `SELECT FROM outbox WHERE id = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		deleted int64
		more    bool
	}{{3, true}, {1, false}, {0, false}} {
		deleted, more, err := clean(t, db, table, 3)
		if err != nil || deleted != want.deleted || more != want.more {
			t.Errorf("got %d, %t, %v, want %v", deleted, more, err, want)
		}
	}
	if got, want := db.Texts(`SELECT id::text FROM outbox`), []string{"1"}; !slices.Equal(got, want) {
		t.Errorf("left: got %q, want the locked row", got)
	}
}

func TestClean_ofOtherPeoplesTables(t *testing.T) {
	for _, test := range []struct{ name, definition, rows, want, wantErr string }{
		{"delivered with its time, a key of two", `id bigint, part text, type text, payload text, delivered bool, delivered_at timestamptz, PRIMARY KEY (id, part)`,
			`(1, 'a', 't', '', true, '2020-01-01'), (1, 'b', 't', '', true, now()), (2, 'a', 't', '', false, '2020-01-01'), (3, 'a', 't', '', NULL, NULL)`, "1b 2a 3a", ""},
		{"delivered without a time", `id bigint PRIMARY KEY, part text, type text, payload text, delivered bool`, `(1, 'a', 't', '', true)`, "1a", "retention: off"},
		{"no published column", `id bigint PRIMARY KEY, part text, type text, payload text`, `(1, 'a', 't', '')`, "1a", "retention: off"},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.New(t)
			table := foreign(t, db, test.definition)
			db.Exec(`INSERT INTO o VALUES ` + test.rows)
			if deleted, _, err := clean(t, db, table, 100); err != nil || deleted != 0 {
				t.Errorf("retention off: got %d, %v, want nothing done", deleted, err)
			}
			table.Source.Retention = time.Hour
			if _, _, err := clean(t, db, table, 100); (err != nil) != (test.wantErr != "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("got %v, want %q", err, test.wantErr)
			}
			if got := strings.Join(db.Texts(`SELECT id || part FROM o ORDER BY id, part`), " "); got != test.want {
				t.Errorf("left: got %s, want %s", got, test.want)
			}
		})
	}
}

// S-33: a second slot may read the same table, and its debt may point to the rows.
func TestClean_keepsWhatAnySlotOwes(t *testing.T) {
	db := testdb.New(t)
	source := ours()
	source.Retention = time.Hour
	table := inspect(t, db, source)
	fill(db, 5)
	db.Exec(`UPDATE outbox SET published_at = now() - interval '2 hours'`)
	for _, slot := range []string{"a slot", "s", "z slot"} { // before, this one, and after
		db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key, copied)
			SELECT $1, 'sub', 'another name', id, $2, 'waiting', 1, '0/1', 0, 't', '', copied FROM (VALUES
			('a slot', 'e1', false), ('s', 'e2', false), ('s', 'e3', true), ('z slot', 'e4', false), ('z slot', 'e5', true)) o(slot, id, copied)
			WHERE o.slot = $1`, slot, written)
	}
	// Its id came again: what is owed is not this row's event.
	db.Exec(`UPDATE outbox SET created_at = '2026-01-01Z' WHERE event_id = 'e2'`)
	if _, _, err := clean(t, db, table, 100); err != nil {
		t.Fatal(err)
	}
	if got, want := db.Texts(`SELECT event_id FROM outbox ORDER BY id`), []string{"e1", "e3", "e4"}; !slices.Equal(got, want) {
		t.Errorf("left: got %q, want %q", got, want)
	}
}

func TestClean_keepsWhatIsOwedWhateverTheDatabaseSets(t *testing.T) {
	db := testdb.New(t)
	for _, setting := range []string{`datestyle = 'German'`, `timezone = 'America/New_York'`} {
		db.Exec(`ALTER DATABASE ` + db.Name + ` SET ` + setting)
	}
	db.Use(db.DSN)
	source := ours()
	source.Retention = time.Hour
	table := inspect(t, db, source)
	fill(db, 1)
	db.Exec(`UPDATE outbox SET published_at = now() - interval '2 hours'`)
	owe(db, "lessons", "e1", "dead")
	if deleted, _, err := clean(t, db, table, 100); deleted != 0 || err != nil {
		t.Errorf("got %d deleted, %v, want none", deleted, err)
	}
}
