package outbox_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/testdb"
)

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
	deleted, more, err := table.Clean(t.Context(), db.Pool, slot, 100)
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
		deleted, more, err := table.Clean(t.Context(), db.Pool, slot, 3)
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
			if deleted, _, err := table.Clean(t.Context(), db.Pool, slot, 100); err != nil || deleted != 0 {
				t.Errorf("retention off: got %d, %v, want nothing done", deleted, err)
			}
			table.Source.Retention = time.Hour
			if _, _, err := table.Clean(t.Context(), db.Pool, slot, 100); (err != nil) != (test.wantErr != "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("got %v, want %q", err, test.wantErr)
			}
			if got := strings.Join(db.Texts(`SELECT id || part FROM o ORDER BY id, part`), " "); got != test.want {
				t.Errorf("left: got %s, want %s", got, test.want)
			}
		})
	}
}

func TestCleanInbox_keepsYoungOnesOtherSlotsAndDebt(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, occurrence, event_id, done_at)
		SELECT slot, subscriber, 'lessons', $1, event_id, now() - age * interval '1 hour' FROM (VALUES
		('s', 'sub', 'old', 2), ('s', 'sub', 'old too', 3), ('s', 'sub', 'young', 0), ('another', 'sub', 'old', 2),
		('s', 'sub', 'owed', 2), ('s', 'other', 'owed', 2)) i(slot, subscriber, event_id, age)`, written)
	owe(db, "lessons", "owed", "waiting")
	var total int64
	for rounds := 1; ; rounds++ {
		deleted, more, err := outbox.CleanInbox(t.Context(), db.Pool, "s", time.Hour, 2)
		if err != nil {
			t.Fatal(err)
		}
		if total += deleted; !more {
			break
		} else if rounds > 3 {
			t.Fatal("there is always more")
		}
	}
	got := db.Texts(`SELECT slot || ' ' || subscriber || ' ' || event_id FROM walpost.inbox ORDER BY 1`)
	if want := []string{"another sub old", "s sub owed", "s sub young"}; total != 3 || !slices.Equal(got, want) {
		t.Errorf("deleted %d, left %q, want 3 and %q", total, got, want)
	}
}
