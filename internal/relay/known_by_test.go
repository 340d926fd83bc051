package relay_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-261: what was found by name stays what it was: events that wait by reference are the same events, and their rows are
// found, whatever is added to the table.
func TestRelay_knowsItsEventsByTheSameColumnsWhateverIsAdded(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]string{
		"a time column with a better name": `ALTER TABLE ev ADD COLUMN occurred_at timestamptz DEFAULT clock_timestamp()`,
		"a longer primary key":             `ALTER TABLE ev DROP CONSTRAINT ev_pkey, ADD PRIMARY KEY (id, created_at)`,
		"another primary key": `CREATE SEQUENCE nids START 100000; ALTER TABLE ev ADD COLUMN nid bigint DEFAULT nextval('nids');
			ALTER TABLE ev DROP CONSTRAINT ev_pkey, ADD PRIMARY KEY (nid)`,
		"an id column with a better name": `ALTER TABLE ev ADD COLUMN event_id text DEFAULT gen_random_uuid()::text`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(`CREATE TABLE ev (id bigserial PRIMARY KEY, k text, type text NOT NULL, payload jsonb NOT NULL,
				created_at timestamptz NOT NULL DEFAULT clock_timestamp(), published_at timestamptz, attempts int NOT NULL DEFAULT 0)`)
			var well atomic.Bool
			sub := keeping(func(_ context.Context, d subscriber.Delivery) error {
				if d.Key == "sick" && !well.Load() {
					return errors.New("it is sick")
				}
				return nil
			})
			again := func() *running {
				o := options(t, db, sub)
				o.Sources = []*outbox.Source{{Name: "ev", Schema: "public", Table: "ev", Columns: outbox.Columns{Key: "k"}, Mark: true, Ours: true}}
				o.Subscriptions[0].Lane.StallAfter = 200 * time.Millisecond
				return streaming(t, o)
			}
			r := again()
			insert := func(key string, n int) {
				db.Exec(`INSERT INTO ev (k, type, payload) SELECT $1, 't', '{}' FROM generate_series(1, $2::int)`, key, n)
			}
			insert("fine", 5)
			insert("sick", 5)
			eventually(t, "the sick key is owed", func() bool {
				return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting' AND NOT copied`) == 5
			})
			db.Exec(alter)
			insert("fine", 5)
			insert("sick", 5)
			eventually(t, "the table is read again", func() bool { return db.Int(`SELECT count(*) FROM ev WHERE k = 'fine' AND published_at IS NULL`) == 0 })
			time.Sleep(6 * time.Second) // the watch looks every 5 s, and nothing tells that it has
			insert("fine", 5)
			insert("sick", 5)
			well.Store(true)
			done := func() bool {
				return db.Int(`SELECT count(*) FROM ev WHERE published_at IS NULL`) == 0 && db.Int(`SELECT count(*) FROM walpost.owed WHERE state <> 'paid'`) == 0
			}
			eventually(t, "everything is delivered and marked", done)
			r.shutDown()

			well.Store(false)
			r = again()
			insert("sick", 5)
			eventually(t, "the sick key is owed again", func() bool {
				return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting' AND NOT copied`) == 5
			})
			r.shutDown()
			well.Store(true)
			r = again()
			eventually(t, "everything is delivered and marked after a restart", done)
			if h := r.Health(); !h.Ready || len(h.Problems) > 0 {
				t.Errorf("health %+v", h)
			}
			var ids []string
			for _, ev := range sub.events() {
				ids = append(ids, ev.ID)
			}
			if slices.Sort(ids); len(slices.Compact(ids)) != 35 {
				t.Errorf("%d events came, want 35: %v", len(ids), ids)
			}
		})
	}
}
