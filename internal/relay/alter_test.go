package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// harmless changes of the table, one after the other.
var harmless = []string{
	`ALTER TABLE outbox ADD COLUMN tenant text DEFAULT 'none'`,
	`ALTER TABLE outbox ADD COLUMN shard int NOT NULL DEFAULT 7`,
	`ALTER TABLE outbox DROP COLUMN aggregate_type`,
	`ALTER TABLE outbox ALTER COLUMN payload TYPE json USING payload::json`,
	`ALTER TABLE outbox ALTER COLUMN payload TYPE jsonb USING payload::jsonb`,
	`ALTER TABLE outbox RENAME COLUMN payload TO data`,
	`ALTER TABLE outbox RENAME COLUMN data TO payload`,
	`ALTER TABLE outbox ALTER COLUMN partition_key TYPE text`,
}

// F-40: columns are found by name in what the stream says of each row, so that rows from before and after a
// change are read alike, whether the relay was there or not.
func TestRelay_readsRowsFromBeforeAndAfterAChangeOfTheColumns(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("running %v", running), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub := keeping(nil)
			o := options(t, db, sub)
			r := streaming(t, o)
			if !running {
				r.shutDown()
			}
			insert(db, "0", "key")
			want := []string{"0"}
			for n, change := range harmless {
				id := fmt.Sprint(n + 1)
				db.Exec(change)
				db.Exec(strings.ReplaceAll(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 't', 'key', '{"n": 1}')`,
					"payload", db.Text(`SELECT column_name FROM information_schema.columns WHERE table_name = 'outbox' AND column_name IN ('payload', 'data')`)), id)
				want = append(want, id)
				if running {
					sub.await(t, id)
				}
			}
			if !running {
				o := options(t, db, sub)
				r = streaming(t, o)
			}
			sub.AwaitDelivered(t, len(want))
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			if got := ids(sub.Calls()); !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
			for _, ev := range sub.events() {
				if ev.Key != "key" || string(ev.Payload) != `{"n": 1}` {
					t.Errorf("event %s has key %q and payload %s", ev.ID, ev.Key, ev.Payload)
				}
			}
			r.shutDown()
		})
	}
}

// F-40: a column without which a row is no event stops the relay with its name; undone, everything comes.
func TestRelay_stopsWithTheNameOfAColumnThatIsGoneAndKeepsTheEvents(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	insert(db, "before", "a")
	sub.await(t, "before")
	db.Exec(`ALTER TABLE outbox RENAME COLUMN event_type TO what`)
	db.Exec(`INSERT INTO outbox (event_id, what, partition_key, payload) VALUES ('meanwhile', 't', 'a', '{}')`)
	for range 2 { // a restart changes nothing
		if err := r.wait(); err == nil || !strings.Contains(err.Error(), "event_type") {
			t.Errorf("the relay ended with %v, want the name of the column", err)
		}
		r = start(t, options(t, db, sub))
	}
	_ = r.wait()
	db.Exec(`ALTER TABLE outbox RENAME COLUMN what TO event_type`)
	insert(db, "after", "a")
	o := options(t, db, sub)
	start(t, o)
	for _, id := range []string{"meanwhile", "after"} {
		sub.await(t, id)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	if got, want := firsts(ids(sub.Calls())), []string{"before", "meanwhile", "after"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	wantRepairs(t, db, o, "again")
}

// F-39: the publication carries inserts of the outbox and nothing else, so that the application can write
// what it likes, to tables without a key too.
func TestRelay_leavesTheUpdatesOfTheApplicationAlone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`ALTER TABLE outbox DROP CONSTRAINT outbox_pkey`)
	db.Exec(`CREATE TABLE another (n int)`)
	sub := subscribertest.Recording()
	streaming(t, options(t, db, sub))
	insert(db, "e", "a")
	sub.AwaitDelivered(t, 1)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	db.Exec(`INSERT INTO another VALUES (1)`)
	for _, table := range []string{"another", "outbox"} {
		if got := db.Exec(`UPDATE ` + table + ` SET ` + map[string]string{"another": "n = 2", "outbox": "headers = '{}'"}[table]); got != 1 {
			t.Errorf("%d rows of %s updated, want 1", got, table)
		}
		if got := db.Exec(`DELETE FROM ` + table); got != 1 {
			t.Errorf("%d rows of %s deleted, want 1", got, table)
		}
	}
	got := db.Texts(`SELECT schemaname || '.' || tablename || CASE WHEN pubinsert THEN ' insert' ELSE '' END || CASE WHEN pubupdate OR pubdelete OR pubtruncate THEN ' more' ELSE '' END
		FROM pg_publication_tables JOIN pg_publication USING (pubname)`)
	if want := []string{"public.outbox insert"}; !slices.Equal(got, want) {
		t.Errorf("published: %v, want %v", got, want)
	}
}

// F-53: rows of a table that was renamed or moved to another schema are not thrown away: the relay stops with
// its name. When a person has fixed it, they are sent from the table: in the stream they keep the other name.
func TestRelay_losesNothingOfATableThatIsRenamedAndComesBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ away, other, back string }{
		"renamed":           {`ALTER TABLE outbox RENAME TO outbox_old`, `outbox_old`, `ALTER TABLE outbox_old RENAME TO outbox`},
		"in another schema": {`CREATE SCHEMA old; ALTER TABLE outbox SET SCHEMA old`, `old.outbox`, `ALTER TABLE old.outbox SET SCHEMA public`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub := keeping(nil)
			r := streaming(t, options(t, db, sub))
			insert(db, "before", "a")
			sub.await(t, "before")
			for _, statement := range strings.Split(c.away, "; ") {
				db.Exec(statement)
			}
			db.Exec(`INSERT INTO ` + c.other + ` (event_id, event_type, partition_key, payload) VALUES ('meanwhile', 't', 'a', '{}')`)
			wantWords(t, r.wait(), "outbox", "which no source names", "rename it back")
			db.Exec(c.back)
			insert(db, "after", "a")
			o := options(t, db, sub)
			r = start(t, o)
			for _, id := range []string{"meanwhile", "after"} {
				sub.await(t, id)
			}
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			r.awaitStreaming()
			wantRepairs(t, db, o, "again")
			if got, want := firsts(ids(sub.Calls())), []string{"before", "meanwhile", "after"}; !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
		})
	}
}

// S-58: the key outgrows its type while the relay runs. What it knows of the table is read again, for marks and for
// the debt alike.
func TestRelay_marksAndPaysAfterTheTypeOfTheKeyHasChanged(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`ALTER TABLE outbox ALTER COLUMN id TYPE int; ALTER SEQUENCE outbox_id_seq AS int`)
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	insert(db, "small", "a")
	sub.await(t, "small")
	eventually(t, "the first mark", func() bool { return unmarked(db) == 0 })
	db.Exec(`ALTER SEQUENCE outbox_id_seq AS bigint; ALTER TABLE outbox ALTER COLUMN id TYPE bigint; SELECT setval('outbox_id_seq', 3000000000)`)
	insert(db, "large", "a")
	sub.await(t, "large")
	eventually(t, "the mark of the large id", func() bool { return unmarked(db) == 0 })
	r.shutDown()
}
