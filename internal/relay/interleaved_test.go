package relay_test

import (
	"slices"
	"testing"

	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// early opens a transaction, writes an event in it and returns how to commit it.
func early(t *testing.T, db *testdb.DB, id string) (commit func()) {
	t.Helper()
	conn := session(t, db.DSN)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', 'a', '{}')`, id); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// F-03: the row that was written first commits last.
func TestRelay_deliversInCommitOrderWhateverTheOrderOfRows(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	streaming(t, options(t, db, sub))
	commit := early(t, db, "early")
	insert(db, "late", "a")
	eventually(t, "the slot has passed the later row", passed(t, db, sub.await(t, "late")))
	commit()
	if got, want := sub.AwaitDelivered(t, 2), []string{"late", "early"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	eventually(t, "the slot has passed the earlier row", passed(t, db, sub.await(t, "early")))
}

// F-03, with a restart while the early transaction is open.
func TestRelay_deliversATransactionThatWasOpenOverARestart(t *testing.T) {
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			first := keeping(nil)
			r, kill := startMortal(t, db, options(t, db, first))
			commit := early(t, db, "early")
			insert(db, "late", "a")
			eventually(t, "the slot has passed the later row", passed(t, db, first.await(t, "late")))
			if how == "killed" {
				kill()
			} else {
				r.shutDown()
			}
			second := subscribertest.Recording()
			streaming(t, options(t, db, second))
			commit()
			insert(db, "marker", "a")
			if got, want := second.AwaitDelivered(t, 2), []string{"early", "marker"}; !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
		})
	}
}
