package debt_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/testdb"
)

// again writes a row that has the primary key and the id of another one, and returns its event.
func again(db *testdb.DB, of *event.Event) *event.Event {
	db.Exec(`DELETE FROM outbox WHERE id = $1::bigint`, of.Row)
	db.Exec(`INSERT INTO outbox (id, event_id, event_type, partition_key, payload, created_at) VALUES ($1::bigint, $2, 't', $3, '{"again": 1}', '2199-01-01Z')`, of.Row, of.ID, of.Key)
	e := *of
	e.Payload, e.OccurredAt, e.Occurrence = []byte(`{"again": 1}`), "2199-01-01 00:00:00+00", "2199-01-01 00:00:00+00"
	e.Position.Commit += 4
	return &e
}

// S-32: a row that has another event in it is not the row of what is owed.
func TestWaiting_readsNoEventThatCameInThePlaceOfAnother(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 2)
	subscribe(db, "sub")
	record(t, store, "sub", events...)
	now := again(db, events[0])
	record(t, store, "sub", now)
	got := waiting(t, store, "sub")
	if len(got) != 3 {
		t.Fatalf("%d deliveries wait, want 3", len(got))
	}
	want(t, "the old one", got[0].Event.Invalid, fmt.Sprintf("%s: its primary key is now that of event \"e1\", occurrence %q; the event that is owed was occurrence %q",
		debt.Gone, now.Occurrence, events[0].Occurrence))
	want(t, "its payload", string(got[0].Event.Payload), "")
	want(t, "the new one", string(got[1].Event.Payload), `{"again": 1}`)
	want(t, "the new one", got[1].Event.Invalid, "")

	// Both are at one primary key, and are paid at once.
	pay(t, store, "sub", 1000, lane.Paid{Event: events[0]}, lane.Paid{Event: now})
	markRows(t, store)
	want(t, "marked", db.Text(`SELECT string_agg(event_id, ' ') FROM outbox WHERE published_at IS NOT NULL`), "e1")
	want(t, "waiting", ids(waiting(t, store, "sub")), "e2")
}

// S-32, S-36: people name one of the events that had an id, or all of them.
func TestPeople_changeTheOccurrenceThatTheyName(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 1)
	subscribe(db, "sub")
	stand(db, 0)
	dead(t, store, "sub", "no", events[0])
	now := again(db, events[0])
	n, missing, err := store.Add(t.Context(), "sub", []string{"e1"}, lane.StateDead, "me", "lost")
	if n != 1 || len(missing) != 0 || err != nil {
		t.Errorf("add: got %d, %v, %v; want the event that the outbox has now", n, missing, err)
	}
	outcome, err := store.Redrive(t.Context(), debt.Filter{Events: []string{"e1"}, Occurrence: now.Occurrence}, "me", "fixed")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "redriven", outcome.Deliveries, 1)
	want(t, "answers", len(outcome.Answers), 1)
	want(t, "the answer's", outcome.Answers[0].Occurrence, now.Occurrence)
	want(t, "waiting", string(waiting(t, store, "sub")[0].Event.Payload), `{"again": 1}`)
	rows, err := store.Show(t.Context(), "e1")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, row := range rows {
		shown = append(shown, row.Event.Occurrence+" "+string(row.State))
	}
	want(t, "shown", strings.Join(shown, ", "), written+" dead, "+now.Occurrence+" waiting")
	if _, err := store.Discard(t.Context(), debt.Filter{Events: []string{"e1"}, Occurrence: written}, "me", "of before"); err != nil {
		t.Fatal(err)
	}
	want(t, "left", db.Text(`SELECT string_agg(occurrence || ' ' || state, ', ') FROM walpost.owed WHERE state <> 'paid'`), now.Occurrence+" waiting")
	want(t, "marked", db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`), 0)
}
