package relay_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-492: a table gets a column that walpost would have found first, had it been there from the start. What an event is,
// also one that is owed, stays what it was.
func TestRelay_makesNoOtherEventsOfAColumnWithABetterName(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"payload":   `ALTER TABLE outbox ADD COLUMN payload jsonb`,
		"type":      `ALTER TABLE outbox ADD COLUMN event_type text`,
		"key":       `ALTER TABLE outbox ADD COLUMN partition_key text DEFAULT 'other'`,
		"id":        `ALTER TABLE outbox ADD COLUMN event_id text DEFAULT 'other'`,
		"time":      `ALTER TABLE outbox ADD COLUMN occurred_at timestamptz DEFAULT now()`,
		"published": `ALTER TABLE outbox ADD COLUMN published_at timestamptz`,
		"order":     `ALTER TABLE outbox ADD COLUMN seq bigint`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(`DROP TABLE outbox`)
			db.Exec(`CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregateid text, type text, data jsonb, delivered boolean NOT NULL DEFAULT false, created_at timestamptz DEFAULT clock_timestamp())`)
			row := func() { db.Exec(`INSERT INTO outbox (aggregateid, type, data) VALUES ('a', 't', '{"n": 1}')`) }
			sub := keeping(nil)
			o := options(t, db, sub)
			o.Sources = []*outbox.Source{{Name: "lessons", Schema: "public", Table: "outbox", Mark: true}}
			r := streaming(t, o)
			row()
			sub.AwaitDelivered(t, 1)
			eventually(t, "the mark", func() bool { return db.Int(`SELECT count(*) FROM outbox WHERE NOT delivered`) == 0 })
			db.Exec(change)
			row()
			sub.AwaitDelivered(t, 2)
			r.shutDown()
			row()
			db.Exec(`SELECT pg_drop_replication_slot($1)`, o.Slot) // what a repair takes is what is not marked
			second := options(t, db, sub)
			second.Sources = o.Sources
			streaming(t, second)
			sub.AwaitDelivered(t, 3)
			eventually(t, "all marks", func() bool { return db.Int(`SELECT count(*) FROM outbox WHERE NOT delivered`) == 0 })
			want := db.Texts(`SELECT id::text FROM outbox ORDER BY created_at`)
			if got := ids(sub.Calls()); !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
			for _, e := range sub.events() {
				if e.Key != "a" || e.Type != "t" || string(e.Payload) != `{"n": 1}` {
					t.Errorf("got key %q, type %q, payload %q", e.Key, e.Type, e.Payload)
				}
			}
		})
	}
}

// S-493: the column by which events are known, ordered or marked is renamed, or left out of the publication. The relay stops
// with what to do; what is owed stays owed, and comes in order when the column is back.
func TestRelay_stopsWhenAColumnThatEventsAreKnownByIsGone(t *testing.T) {
	t.Parallel()
	const left = "ALTER PUBLICATION walpost SET TABLE outbox (id, type, payload, published_at, "
	for name, c := range map[string]struct{ column, away, back, says string }{
		"the key is renamed":    {"aggregateid", "ALTER TABLE outbox RENAME aggregateid TO customer", "ALTER TABLE outbox RENAME customer TO aggregateid", "aggregate_id so far"},
		"the time is renamed":   {"created_at", "ALTER TABLE outbox RENAME created_at TO made", "ALTER TABLE outbox RENAME made TO created_at", "time so far"},
		"the mark is renamed":   {"published_at", "ALTER TABLE outbox RENAME published_at TO sent", "ALTER TABLE outbox RENAME sent TO published_at", "published so far"},
		"the key is left out":   {"", left + "created_at)", "ALTER PUBLICATION walpost SET TABLE outbox", "does not carry aggregateid"},
		"the time is left out":  {"", left + "aggregateid)", "ALTER PUBLICATION walpost SET TABLE outbox", "does not carry created_at"},
		"there is another time": {"", "ALTER TABLE outbox RENAME created_at TO occurred_at", "ALTER TABLE outbox RENAME occurred_at TO created_at", "time so far"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			if strings.HasPrefix(c.away, left) && major(db) < 15 {
				return // column lists came with 15
			}
			db.Exec(`DROP TABLE outbox`)
			db.Exec(`CREATE TABLE outbox (id bigserial PRIMARY KEY, aggregateid text, type text, payload jsonb, published_at timestamptz, created_at timestamptz DEFAULT clock_timestamp())`)
			row := func(keyColumn string) {
				db.Exec(`INSERT INTO outbox (` + keyColumn + `, type, payload) VALUES ('a', 't', '{}')`)
			}
			var well atomic.Bool
			sub := keeping(func(context.Context, subscriber.Delivery) error {
				if !well.Load() {
					return errors.New("not now")
				}
				return nil
			})
			restarted := func() relay.Options {
				o := options(t, db, sub)
				o.Sources = []*outbox.Source{{Name: "lessons", Schema: "public", Table: "outbox", Mark: true}}
				return o
			}
			r := streaming(t, restarted())
			row("aggregateid")
			sub.await(t, "1")
			db.Exec(c.away)
			keyColumn := "aggregateid"
			if c.column == keyColumn {
				keyColumn = "customer"
			}
			row(keyColumn)
			if c.column == "published_at" { // rows come all the same, and /ready says that they cannot be marked
				r.stop()
				_ = r.wait()
				r = start(t, restarted())
			}
			for range 2 { // a restart changes nothing
				if err := r.wait(); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("the relay ended with %v, want %q", err, c.says)
				}
				r = start(t, restarted())
			}
			_ = r.wait()
			db.Exec(c.back)
			row("aggregateid")
			well.Store(true)
			before := len(sub.events())
			streaming(t, restarted())
			eventually(t, "all marks", func() bool { return db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0 })
			if got := firsts(eventIDs(sub.events()[before:])); !slices.Equal(got, []string{"1", "2", "3"}) {
				t.Errorf("delivered %v, want all in order", got)
			}
			for _, e := range sub.events() {
				if e.Key != "a" {
					t.Errorf("event %s came with the key %q", e.ID, e.Key)
				}
			}
			if dead := db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead'`); dead != 0 {
				t.Errorf("%d dead letters", dead)
			}
		})
	}
}

func eventIDs(events []*event.Event) (ids []string) {
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	return ids
}
