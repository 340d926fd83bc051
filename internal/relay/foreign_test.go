package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// foreignTables are outbox tables of other people. The n-th row has the id that wantID tells.
var foreignTables = []struct {
	name, ddl string
	source    outbox.Source
	insert    string // of one row, $1 is its number
	wantID    func(n int) string
	check     func(*event.Event) bool
	marked    string // condition of a row that is marked
}{
	{
		name: "payments",
		ddl: `CREATE TABLE payments (id uuid PRIMARY KEY);
			CREATE TABLE payment_outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), org_id uuid NOT NULL, aggregate_id uuid REFERENCES payments ON DELETE CASCADE,
				topic text NOT NULL, event_type text NOT NULL, event_version int, partition_key text NOT NULL,
				payload jsonb NOT NULL, created_at timestamptz DEFAULT now(), published_at timestamptz)`,
		source: outbox.Source{Schema: "public", Table: "payment_outbox", Headers: map[string]string{"org_id": "org_id"},
			Columns: outbox.Columns{ID: "payload.event_id", Time: "payload.occurred_at"}},
		insert: `WITH p AS (INSERT INTO payments VALUES (gen_random_uuid()) RETURNING id)
			INSERT INTO payment_outbox (org_id, aggregate_id, topic, event_type, event_version, partition_key, payload)
			SELECT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', id, 'payments', 'payment.captured', 1, 'org-1',
				jsonb_build_object('event_id', 'pay-' || $1::int, 'occurred_at', '2026-01-02T03:04:05Z') FROM p`,
		wantID: func(n int) string { return fmt.Sprint("pay-", n) },
		check: func(e *event.Event) bool {
			return e.OccurredAt == "2026-01-02T03:04:05Z" && e.Topic == "payments" && e.Key == "org-1" && e.Header("org_id") == "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
		},
		marked: `published_at IS NOT NULL`,
	},
	{
		name:   "an envelope in json, with escapes",
		ddl:    `CREATE TABLE envelopes (nr bigserial PRIMARY KEY, body json, published_at timestamptz)`,
		source: outbox.Source{Schema: "public", Table: "envelopes", Columns: outbox.Columns{ID: "body.id", Type: "body.type", Payload: "body", Key: "body.user.id", Time: "body.at"}},
		insert: `INSERT INTO envelopes (body) VALUES (('{"id": "\u00e9' || $1::int || '", "id": "\u00fc' || $1::int || '", "type": "t", "user": {"id": 7}}')::json)`,
		wantID: func(n int) string { return fmt.Sprint("ü", n) },
		check:  func(e *event.Event) bool { return e.Key == "7" && e.Type == "t" && e.OccurredAt == "" },
		marked: `published_at IS NOT NULL`,
	},
	{
		name: "mixed case in another schema, with an enum and a domain",
		ddl: `CREATE SCHEMA "Domain Events"; CREATE TYPE "Domain Events"."Kind" AS ENUM ('Order Placed'); CREATE DOMAIN "Domain Events".number AS bigint;
			CREATE TABLE "Domain Events"."Out.Box" ("Id" "Domain Events".number PRIMARY KEY, "Kind" "Domain Events"."Kind", "Body" bytea, "Tags" text[], "Sent" timestamptz)`,
		source: outbox.Source{Schema: "Domain Events", Table: "Out.Box", Headers: map[string]string{"tags": "Tags"},
			Columns: outbox.Columns{ID: "Id", Type: "Kind", Payload: "Body", Published: "Sent"}},
		insert: `INSERT INTO "Domain Events"."Out.Box" VALUES ($1::int, 'Order Placed', '\x00ff', '{a,"b c"}')`,
		wantID: func(n int) string { return fmt.Sprint(n) },
		check: func(e *event.Event) bool {
			return e.Type == "Order Placed" && string(e.Payload) == `\x00ff` && e.PayloadType == event.Binary && e.Header("tags") == `{a,"b c"}`
		},
		marked: `"Sent" IS NOT NULL`,
	},
	{
		name: "partitions, a boolean and its time",
		ddl: `CREATE TABLE events (id uuid DEFAULT gen_random_uuid(), seq int, type text, payload text, occurred_at timestamptz DEFAULT now(), delivered boolean NOT NULL DEFAULT false, delivered_at timestamptz,
				PRIMARY KEY (id, occurred_at)) PARTITION BY RANGE (occurred_at);
			CREATE TABLE events_all PARTITION OF events DEFAULT`,
		source: outbox.Source{Schema: "public", Table: "events", Columns: outbox.Columns{ID: "seq", Order: []string{"occurred_at", "seq"}}},
		insert: `INSERT INTO events (seq, type) VALUES ($1::int, 'moved')`, // its payload is NULL
		wantID: func(n int) string { return fmt.Sprint(n) },
		check:  func(e *event.Event) bool { return e.Payload == nil && e.Type == "moved" && e.Row[0] == '[' },
		marked: `delivered AND delivered_at IS NOT NULL`,
	},
}

// An event is the same whether it comes by the stream, is read by reference for a debt, or from the table in a
// repair; and each time its own row is marked.
func TestRelay_servesTablesOfEveryShape(t *testing.T) {
	t.Parallel()
	for _, shape := range foreignTables {
		t.Run(shape.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(shape.ddl)
			var down atomic.Bool
			sub := keeping(func(context.Context, subscriber.Delivery) error {
				if down.Load() {
					return subscriber.Away(errAway)
				}
				return nil
			})
			source := shape.source
			source.Name, source.Mark, source.Ours = "shape", true, true
			o := owing(oneSource(options(t, db, sub), &source))
			_, kill := startMortal(t, db, o)
			unmarked := func() int64 {
				return db.Int(`SELECT count(*) FROM ` + pgx.Identifier{source.Schema, source.Table}.Sanitize() + ` WHERE NOT (` + shape.marked + `)`)
			}
			await := func(n int, by string) {
				t.Helper()
				e := sub.await(t, shape.wantID(n))
				if !shape.check(e) {
					t.Errorf("by %s: got %+v, payload %s, headers %s", by, e, e.Payload, e.Headers)
				}
				eventually(t, "the mark by "+by, func() bool { return unmarked() == 0 })
			}
			db.Exec(shape.insert, 1)
			await(1, "stream")

			down.Store(true)
			db.Exec(shape.insert, 2)
			awaitOwed(t, db, "sub", 1)
			down.Store(false)
			eventually(t, "the debt is paid", func() bool { return owed(db, "sub", "waiting") == 0 })
			await(2, "debt")

			kill()
			db.Exec(dropSlot, o.Slot)
			db.Exec(shape.insert, 3)
			again := keeping(nil)
			streaming(t, oneSource(options(t, db, again), &source))
			sub = again
			await(3, "repair")
			var ids []string
			for _, e := range again.events() {
				ids = append(ids, e.ID)
			}
			if want := []string{shape.wantID(3)}; !slices.Equal(ids, want) {
				t.Errorf("after the slot was lost: got %q, want %q", ids, want)
			}
		})
	}
}

// A service can insert and delete a row in one transaction: the WAL has the insert, and that is enough. When the slot is
// lost there is nothing to repair, so no one is asked.
func TestRelay_deliversRowsThatTheirTransactionDeletes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE debezium (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, type text, payload jsonb)`)
	source := outbox.Source{Name: "debezium", Schema: "public", Table: "debezium", Mark: true, Deleted: true, RepairAll: true}
	write := func(id string) {
		db.Exec(`WITH e AS (INSERT INTO debezium VALUES (DEFAULT, 'order', $1, 'placed', '{}') RETURNING id) SELECT FROM e`, id)
		db.Exec(`DELETE FROM debezium`)
	}
	insertAndDelete := func(id string) {
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		for _, sql := range []string{`INSERT INTO debezium VALUES (DEFAULT, 'order', '` + id + `', 'placed', '{}')`, `DELETE FROM debezium`} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var down atomic.Bool
	sub := keeping(func(context.Context, subscriber.Delivery) error {
		if down.Load() {
			return subscriber.Away(errAway)
		}
		return nil
	})
	o := owing(oneSource(options(t, db, sub), &source))
	_, kill := startMortal(t, db, o)
	came := func(sub *kept, keys ...string) func() bool {
		return func() bool {
			var got []string
			for _, e := range sub.events() {
				if !slices.Contains(got, e.Key) {
					got = append(got, e.Key)
				}
			}
			slices.Sort(got) // different keys come in any order
			return slices.Equal(got, keys)
		}
	}
	write("1") // in a transaction of its own for each is the same
	insertAndDelete("2")
	eventually(t, "both", came(sub, "1", "2"))
	down.Store(true)
	insertAndDelete("3")
	awaitOwed(t, db, "sub", 1)
	down.Store(false)
	eventually(t, "the debt is paid from its copy", func() bool { return owed(db, "sub", "waiting") == 0 })
	if got := metric(t, o, "walpost_rows_gone_total", "source=debezium"); got != 0 {
		t.Errorf("%v rows count as gone, and none was to be marked", got)
	}

	kill()
	db.Exec(dropSlot, o.Slot)
	insertAndDelete("lost")
	db.Exec(`INSERT INTO debezium VALUES (DEFAULT, 'order', 'still there', 'placed', '{}')`)
	again := keeping(nil)
	streaming(t, oneSource(options(t, db, again), &source))
	insertAndDelete("4")
	eventually(t, "what is there, and what comes", came(again, "4", "still there"))
}

// Rows that their service deletes are counted when they are to be marked, and hold up nothing.
func TestRelay_countsRowsThatAreGone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE swept (id bigserial PRIMARY KEY, type text DEFAULT 't', payload text, published_at timestamptz)`)
	handle, release := blockingOne("1")
	defer release()
	sub := keeping(handle)
	o, log := logged(t, oneSource(options(t, db, sub), &outbox.Source{Name: "swept", Schema: "public", Table: "swept", Mark: true}))
	streaming(t, o)
	db.Exec(`INSERT INTO swept DEFAULT VALUES`)
	ev := sub.await(t, "1")
	db.Exec(`DELETE FROM swept`)
	release()
	eventually(t, "the slot has passed it", passed(t, db, ev))
	if got := metric(t, o, "walpost_rows_gone_total", "source=swept"); got != 1 {
		t.Errorf("%v rows count as gone, want 1", got)
	}
	if !strings.Contains(log.String(), "rows are gone") {
		t.Error("the log does not say that rows are gone")
	}
}

// picky is a schema that refuses payloads with a word in them.
type picky struct {
	word    string
	checked atomic.Int64
}

func (s *picky) Check(payload []byte) error {
	s.checked.Add(1)
	if strings.Contains(string(payload), s.word) {
		return errors.New("the payload has " + s.word)
	}
	return nil
}

// What does not fit the schema of its source is a dead letter with the reason, its row is not marked, and later events
// of its key come. A bytea is checked as the bytes that a receiver gets.
func TestRelay_makesDeadLettersOfWhatDoesNotFitTheSchema(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"jsonb", "text", "bytea"} {
		t.Run(payload, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(`CREATE TABLE facts (id bigserial PRIMARY KEY, type text DEFAULT 't', payload ` + payload + `, published_at timestamptz)`)
			schema := &picky{word: "bad"}
			sub := keeping(nil)
			o := oneSource(options(t, db, sub), &outbox.Source{Name: "facts", Schema: "public", Table: "facts", Mark: true, Ours: true, JSONSchema: schema})
			streaming(t, o)
			db.Exec(`INSERT INTO facts (payload) VALUES ('{"a": "good"}'), ('{"a": "bad"}'), ('{"a": "good"}')`)
			sub.await(t, "3")
			eventually(t, "the marks", func() bool { return db.Int(`SELECT count(*) FROM facts WHERE published_at IS NULL`) == 1 })
			if got, want := contents(sub.events()), 2; len(got) != want {
				t.Errorf("delivered %q, want %d", got, want)
			}
			if got := db.Text(`SELECT event_id || ': ' || error FROM walpost.owed WHERE state = 'dead'`); got != "2: the payload has bad" {
				t.Errorf("dead letters: got %q", got)
			}
			if got := db.Int(`SELECT id FROM facts WHERE published_at IS NULL`); got != 2 {
				t.Errorf("row %d is not marked, want 2", got)
			}
			if got := schema.checked.Load(); got != 3 {
				t.Errorf("the schema was asked %d times, want once for each event", got)
			}
		})
	}
}
