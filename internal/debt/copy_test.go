package debt_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/testdb"
)

// TestRecord_ofManyWritesWhatOneOfFewWrites compares every column: many deliveries are recorded by another statement.
func TestRecord_ofManyWritesWhatOneOfFewWrites(t *testing.T) {
	const number = 150
	for name, sources := range map[string][]*outbox.Source{"by reference": {lessons()}, "with copies": nil} {
		t.Run(name, func(t *testing.T) {
			db := testdb.New(t)
			store := open(t, db, sources...)
			many := owed(fill(t, db, number))
			began := time.Date(2026, 3, 10, 6, 30, 0, 123000, time.UTC)
			for i := range many {
				e := many[i].Event
				e.Version, e.AggregateType, e.AggregateID, e.Topic, e.Revision = "2", "order", fmt.Sprint(i), "orders", fmt.Sprint(i+1)
				e.XID, e.PayloadType, e.Position.Ordinal = uint32(4_000_000_000+i), event.Text, int64(i%3)
				switch i % 4 {
				case 1:
					e.Bound, e.CommittedAt = 5000, began
					many[i].InTableOrder = true
				case 2:
					e.Payload, e.Headers = nil, nil
					e.Invalid = "its type\x00 is empty"
				case 3:
					e.Key, e.Lost = "a\x00key", true
					many[i].Attempts, many[i].Err = 3, "refused\x00"
					many[i].FirstFailure, many[i].LastFailure, many[i].NextAttempt = began, began.Add(time.Hour), began.Add(2*time.Hour)
				}
			}
			if _, err := store.Record(t.Context(), "many", many); err != nil {
				t.Fatal(err)
			}
			for begin := 0; begin < number; begin += 50 {
				if _, err := store.Record(t.Context(), "few", many[begin:begin+50]); err != nil {
					t.Fatal(err)
				}
			}
			rows := func(subscriber string) string {
				return `SELECT pg_catalog.to_jsonb(o) - 'subscriber' - 'recorded_at' AS row FROM walpost.owed o WHERE subscriber = '` + subscriber + `'`
			}
			want(t, "rows of many", db.Int(`SELECT count(*) FROM (`+rows("many")+`) r`), number)
			want(t, "rows of few", db.Int(`SELECT count(*) FROM (`+rows("few")+`) r`), number)
			if other := db.Int(`SELECT count(*) FROM (` + rows("many") + ` EXCEPT ` + rows("few") + `) r`); other != 0 {
				t.Errorf("%d rows differ, the first is %s, against %s", other,
					db.Text(`SELECT row::text FROM (`+rows("many")+` EXCEPT `+rows("few")+`) r ORDER BY 1 LIMIT 1`),
					db.Text(`SELECT row::text FROM (`+rows("few")+` EXCEPT `+rows("many")+`) r ORDER BY 1 LIMIT 1`))
			}
		})
	}
}

func TestRecord_ofManyLeavesWhatIsThere(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db, lessons())
	events := fill(t, db, 150)
	record(t, store, "a", events[7])
	dead(t, store, "a", "no such user", events[9])
	record(t, store, "a", append(events, events[3])...)

	want(t, "rows", db.Int(`SELECT count(*) FROM walpost.owed`), 150)
	want(t, "waiting", len(waiting(t, store, "a")), 149)
	known, err := store.Known(t.Context(), "a", events[9:10])
	if err != nil {
		t.Fatal(err)
	}
	want(t, "state of the dead letter", known[0].State, lane.StateDead)
}
