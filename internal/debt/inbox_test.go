package debt_test

import (
	"slices"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	recorded "github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/testdb"
)

// remember writes rows of the inbox that are two hours old.
func remember(db *testdb.DB, source, occurrence, subscriber string, ids ...string) {
	db.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence, done_at)
		SELECT $1, $2, $3, id, $4, now() - interval '2 hours' FROM unnest($5::text[]) id`, slot, subscriber, source, occurrence, ids)
}

func owe(db *testdb.DB, source, eventID, state string) {
	db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key, committed_at)
		VALUES ($1, 'sub', $2, $3, $4, $5, 1, '0/1', 0, 't', '', now())`, slot, source, eventID, written, state)
}

// cleanInbox deletes in batches of two until there is no more, and returns what is left.
func cleanInbox(t *testing.T, db *testdb.DB, store *debt.Store) (left []string) {
	t.Helper()
	cleaner := recorded.NewInboxCleaner(db.Pinned, slot, time.Hour, 2, store.CanComeAgain)
	for rounds := 1; ; rounds++ {
		_, more, err := cleaner.CleanBatch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return db.Texts(`SELECT slot || ' ' || subscriber || ' ' || event_id FROM walpost.inbox ORDER BY 1`)
		} else if rounds > 20 {
			t.Fatal("there is always more")
		}
	}
}

// S-34: a repair brings an event again to everyone while its row is unpublished.
func TestInboxCleaner_keepsWhatCanComeAgain(t *testing.T) {
	db := testdb.New(t)
	fill(t, db, 6)
	db.Exec(`UPDATE outbox SET published_at = now() WHERE id NOT IN (3, 4)`) // no subscriber has had 3; 4 came again
	remember(db, "lessons", written, "sub", "e1", "e2", "e3", "e5", "e6", "gone")
	remember(db, "lessons", "before", "sub", "e4")
	remember(db, "lessons", written, "other", "e5", "e6")
	remember(db, "games", written, "sub", "e5", "7") // messages
	owe(db, "lessons", "e5", "dead")                 // to sub
	owe(db, "lessons", "e2", "paid")
	owe(db, "games", "7", "waiting")
	db.Exec(`UPDATE walpost.inbox SET done_at = now() WHERE event_id = 'e6' AND subscriber = 'other'`)
	db.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence, done_at) SELECT 'another', subscriber, source, event_id, occurrence, done_at FROM walpost.inbox WHERE event_id = 'e1'`)
	got := cleanInbox(t, db, open(t, db, lessons()))
	if want := []string{"another sub e1", "s other e5", "s other e6", "s sub 7", "s sub e3", "s sub e5"}; !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}

// A repair of a source whose rows are not marked may read all of them.
func TestInboxCleaner_keepsEveryRowThatARepairWouldRead(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE public.o (id bigint PRIMARY KEY, type text, payload text)`)
	db.Exec(`INSERT INTO o VALUES (1, 't', 'x'), (2, 't', 'x')`)
	remember(db, "other", "6fca3fcfeb33651f070e9903370a070344d3659d7cc8190fc4e22838220b2128", "sub", "1", "3", "row:x")
	// The id is no number, which breaks off the look-up by the index.
	remember(db, "other", "before", "sub", "2")
	got := cleanInbox(t, db, open(t, db, &outbox.Source{Name: "other", Schema: "public", Table: "o", Mark: true}))
	if want := []string{"s sub 1"}; !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}
