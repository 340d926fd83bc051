package relay_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/inbox"
	"github.com/backendstart/walpost/internal/testdb"
)

// counted is a source whose event ids are numbers, so that they come again after RESTART IDENTITY.
func counted(db *testdb.DB, definition string) *outbox.Source {
	db.Exec(`CREATE TABLE counted (id bigserial PRIMARY KEY, type text DEFAULT 'lesson.completed', payload text, ` + definition + ` published_at timestamptz)`)
	return &outbox.Source{Name: "counted", Schema: "public", Table: "counted", Mark: true, Ours: true}
}

// insertCounted writes events in transactions of their own; their key is the payload, which tells them apart.
func insertCounted(db *testdb.DB, payloads ...string) {
	for _, payload := range payloads {
		db.Exec(`INSERT INTO counted (payload) VALUES ($1)`, payload)
	}
}

// contents are the payloads of the events, in order.
func contents(events []*event.Event) []string {
	var payloads []string
	for _, e := range events {
		payloads = append(payloads, string(e.Payload))
	}
	return payloads
}

const restartIdentity = `TRUNCATE counted RESTART IDENTITY`

// occurrences are what tells two events of one id apart.
var occurrences = map[string]string{
	"by time":    `created_at timestamptz DEFAULT clock_timestamp(),`,
	"by content": ``,
}

// S-31: the mark of an event whose row has gone publishes no other row.
func TestRelay_marksNoRowThatCameInThePlaceOfItsEvent(t *testing.T) {
	t.Parallel()
	for name, definition := range occurrences {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			old := make(chan struct{})
			sub := keeping(func(ctx context.Context, d subscriber.Delivery) error {
				if string(d.Payload) != "old" {
					return errAway
				}
				select {
				case <-old:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
			o, log := logged(t, oneSource(options(t, db, sub), counted(db, definition)))
			_, kill := startMortal(t, db, o)
			insertCounted(db, "old")
			event := sub.await(t, "1")
			db.Exec(restartIdentity)
			insertCounted(db, "new")
			close(old)
			eventually(t, "the slot has passed the old event", passed(t, db, event))
			if got := db.Int(`SELECT count(*) FROM counted WHERE published_at IS NULL`); got != 1 {
				t.Error("the mark of the old event has published the new row")
			}
			if got := metric(t, o, "walpost_rows_replaced_total", ""); got < 1 {
				t.Errorf("%v rows are counted, want at least 1", got)
			}
			if !strings.Contains(log.String(), "hold other events") {
				t.Error("the log does not say that the row holds another event")
			}
			kill()
			db.Exec(dropSlot, o.Slot)

			again := keeping(nil)
			streaming(t, oneSource(options(t, db, again), o.Sources[0]))
			again.await(t, "1")
			eventually(t, "the mark", func() bool { return db.Int(`SELECT count(*) FROM counted WHERE published_at IS NULL`) == 0 })
			if got, want := contents(again.events()), []string{"new"}; !slices.Equal(got, want) {
				t.Errorf("delivered %q after the slot was lost, want %q", got, want)
			}
		})
	}
}

// S-32: an id with a dead letter comes again while its subscriber is away.
func TestRelay_deliversIdsThatComeAgainOverTheirDeadLetters(t *testing.T) {
	t.Parallel()
	for name, definition := range occurrences {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub := newChanging("sub", func(context.Context, subscriber.Delivery) error {
				return subscriber.Permanent(errAway)
			})
			o := oneSource(owing(options(t, db, sub)), counted(db, definition))
			r := streaming(t, o)
			insertCounted(db, "a", "b", "c")
			eventually(t, "the dead letters", func() bool { return owed(db, "sub", "dead") == 3 })
			db.Exec(restartIdentity)
			kept := keeping(nil)
			sub.behave(away)
			insertCounted(db, "d", "e", "f", "g", "h")
			awaitOwed(t, db, "sub", 5)
			sub.behave(kept.Handle)
			eventually(t, "all five", func() bool { return len(kept.events()) == 5 && owed(db, "sub", "waiting") == 0 })
			if got, want := contents(kept.events()), []string{"d", "e", "f", "g", "h"}; !slices.Equal(got, want) {
				t.Errorf("delivered %q, want %q", got, want)
			}
			eventually(t, "the marks", func() bool { return db.Int(`SELECT count(*) FROM counted WHERE published_at IS NULL`) == 0 })
			if got := owed(db, "sub", "dead"); got != 3 {
				t.Errorf("%d dead letters, want the three of before", got)
			}
			r.shutDown()
		})
	}
}

// S-32: what is recorded of an id says nothing about another event of that id that the stream or a repair brings.
func TestRelay_knowsRecordedEventsByTheirIdentity(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]string{"the stream": `SELECT $1::text`, "again": dropSlot, "kept": advance} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			source := counted(db, occurrences["by time"])
			o := oneSource(owing(options(t, db, newChanging("sub", away))), source)
			r := streaming(t, o)
			insertCounted(db, "copied", "referred")
			awaitOwed(t, db, "sub", 2)
			r.shutDown()
			// As if the source had been rows: shared when the first one was recorded.
			db.Exec(`UPDATE walpost.owed SET copied = true, payload = 'copied' WHERE event_id = '1'`)
			db.Exec(restartIdentity)
			insertCounted(db, "third", "fourth")
			db.Exec(loss, o.Slot)

			kept := keeping(nil)
			sub := newChanging("sub", kept.Handle)
			streaming(t, oneSource(options(t, db, sub), source))
			eventually(t, "all deliveries", func() bool { return len(kept.events()) >= 3 && owed(db, "sub", "waiting") == 0 })
			if got, want := contents(kept.events()), []string{"copied", "third", "fourth"}; !slices.Equal(got, want) {
				t.Errorf("delivered %q, want %q", got, want)
			}
			eventually(t, "the loss is recorded", func() bool {
				return slices.Equal(dead(db), []string{"sub/2"}) && strings.HasPrefix(db.Text(`SELECT error FROM walpost.owed WHERE state = 'dead'`), debt.Gone)
			})
			eventually(t, "the marks", func() bool { return db.Int(`SELECT count(*) FROM counted WHERE published_at IS NULL`) == 0 })
		})
	}
}

// S-33: a second slot reads the table of another one, whose retention does not ask it.
func TestRelay_keepsRowsThatAnotherSlotOwes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first := keeping(nil)
	o := options(t, db, first)
	r := streaming(t, o)

	second := newChanging("second", away)
	o2 := owing(options(t, db, second))
	o2.Slot += "_2"
	o2.Sources = []*outbox.Source{{Name: "theirs", Schema: "public", Table: "outbox", Ours: true}} // mark: off
	r2 := streaming(t, o2)
	insertAll(db, "a", numbered("e", 3))
	awaitOwed(t, db, "second", 3)
	r2.shutDown() // what it has in hand it would send from memory
	// One is owed by reference, as it may have been recorded while the slot marked rows itself.
	db.Exec(`UPDATE walpost.owed SET copied = false, payload = NULL, headers = NULL WHERE event_id = 'e-1'`)
	eventually(t, "the marks of the first slot", func() bool { return unmarked(db) == 0 })
	r.shutDown()

	o = options(t, db, keeping(nil))
	o.Sources[0].Retention = time.Millisecond
	streaming(t, o)
	eventually(t, "retention deletes", func() bool { return db.Int(`SELECT count(*) FROM outbox`) < 3 })
	second = newChanging("second", taking)
	again := options(t, db, second)
	again.Slot, again.Sources = o2.Slot, o2.Sources
	streaming(t, again)
	if got, want := second.AwaitDelivered(t, 3), numbered("e", 3); !slices.Equal(got, want) {
		t.Errorf("the second slot has delivered %q, want %q", got, want)
	}
	if got := owed(db, "second", "dead"); got != 0 {
		t.Errorf("%d dead letters, want none", got)
	}
}

// S-34: one subscriber's old dead letter brings the event again in a repair, and the others have had it.
func TestRelay_keepsTheInboxWhileAnEventIsOwedToAnyone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE effects (event_id text)`)
	counting := func() *kept {
		k := keeping(func(ctx context.Context, d subscriber.Delivery) error {
			return inbox.Once(ctx, db.Pinned, db.Name, "counting", []subscriber.Delivery{d}, func(ctx context.Context, tx pgx.Tx, _ []subscriber.Delivery) error {
				_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1)`, d.ID)
				return err
			})
		})
		k.Named("counting")
		return k
	}
	picky := func() subscriber.Subscriber {
		return newChanging("picky", func(context.Context, subscriber.Delivery) error { return subscriber.Permanent(errAway) })
	}
	o := options(t, db, counting(), picky())
	r := streaming(t, o)
	insert(db, "e", "a")
	eventually(t, "the effect and the dead letter", func() bool {
		return db.Int(`SELECT count(*) FROM effects`) == 1 && owed(db, "picky", "dead") == 1
	})
	r.shutDown()
	db.Exec(`UPDATE walpost.inbox SET done_at = now() - interval '30 days'`)
	db.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence, done_at) VALUES ($1, 'counting', 'lessons', 'x', '', now() - interval '30 days')`, o.Slot)
	o = options(t, db, counting(), picky())
	o.Sources[0].Retention = 7 * 24 * time.Hour
	r = streaming(t, o)
	eventually(t, "old inbox rows are deleted", func() bool { return db.Int(`SELECT count(*) FROM walpost.inbox WHERE event_id = 'x'`) == 0 })
	r.shutDown()
	db.Exec(dropSlot, o.Slot)

	streaming(t, options(t, db, counting(), picky()))
	insert(db, "after", "a")
	eventually(t, "the next effect", func() bool { return db.Int(`SELECT count(*) FROM effects WHERE event_id = 'after'`) == 1 })
	if got := db.Texts(`SELECT event_id FROM effects ORDER BY 1`); !slices.Equal(got, []string{"after", "e"}) {
		t.Errorf("effects of %q, want each once", got)
	}
}

// S-35: ids are unique within their source: what one subscriber has done of one says nothing about the other.
func TestRelay_keepsTwoSourcesWithOneIdApart(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var sources []*outbox.Source
	for _, name := range []string{"bills", "games"} {
		db.Exec(`CREATE TABLE ` + name + ` (id bigserial PRIMARY KEY, type text DEFAULT 't', payload text, created_at timestamptz DEFAULT '2026-01-01Z', published_at timestamptz)`)
		sources = append(sources, &outbox.Source{Name: name, Schema: "public", Table: name, Mark: true, Ours: true})
	}
	db.Exec(`CREATE TABLE effects (payload text)`)
	sub := newChanging("sub", away)
	o := owing(options(t, db, sub))
	o.Sources = sources
	o.Subscriptions[0].Lane.Ordering = lane.None
	streaming(t, o)
	db.Exec(`INSERT INTO bills (payload) VALUES ('a bill')`)
	db.Exec(`INSERT INTO games (payload) VALUES ('a game')`)
	awaitOwed(t, db, "sub", 2)
	sub.behave(func(ctx context.Context, d subscriber.Delivery) error {
		return inbox.Once(ctx, db.Pinned, db.Name, "sub", []subscriber.Delivery{d}, func(ctx context.Context, tx pgx.Tx, _ []subscriber.Delivery) error {
			_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1)`, string(d.Payload))
			return err
		})
	})
	eventually(t, "nothing is owed", func() bool { return owed(db, "sub", "waiting") == 0 })
	if got, want := strings.Join(db.Texts(`SELECT payload FROM effects ORDER BY 1`), ", "), "a bill, a game"; got != want {
		t.Errorf("effects of %s, want %s", got, want)
	}
}

// S-470: two rows of a table with one id and one time. They are one event; but while something of the first is recorded
// the second is not sent, and must not be marked as if someone had had it.
func TestRelay_marksNoSecondRowOfAnIdentityThatNoOneHad(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var refused atomic.Value // a payload
	refused.Store("first")
	sub := keeping(func(_ context.Context, d subscriber.Delivery) error {
		if string(d.Payload) == refused.Load() {
			return errAway
		}
		return nil
	})
	sub.Named("sub")
	db.Exec(`CREATE TABLE repeated (row bigserial PRIMARY KEY, event_id text, type text DEFAULT 'lesson.completed', partition_key text DEFAULT 'k',
		payload text, created_at timestamptz DEFAULT '2024-03-10', published_at timestamptz)`)
	o, log := logged(t, oneSource(owing(options(t, db, sub)), &outbox.Source{Name: "repeated", Schema: "public", Table: "repeated", Mark: true, Ours: true}))
	r := streaming(t, o)
	insert := func(id, payload string) {
		db.Exec(`INSERT INTO repeated (event_id, payload) VALUES ($1, $2)`, id, payload)
	}
	insert("x", "first")
	awaitOwed(t, db, "sub", 1)
	insert("y", "between")
	awaitOwed(t, db, "sub", 2)
	insert("x", "second") // while the first waits
	const told = `rows of other events have the id and time of one that is recorded`
	eventually(t, "the log tells of the second row", func() bool { return strings.Contains(log.String(), told) })

	// A session holds the first row: it is paid, and its mark has to wait.
	holder := session(t, db.DSN)
	tx, err := holder.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `SELECT FROM repeated WHERE row = 1 FOR UPDATE`)
	}
	if err != nil {
		t.Fatal(err)
	}
	refused.Store("between")
	eventually(t, "the first is paid", func() bool { return owed(db, "sub", "paid") == 1 && owed(db, "sub", "waiting") == 1 })
	insert("x", "third")
	insert("z", "last")
	awaitOwed(t, db, "sub", 2) // y and z
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused.Store("")
	eventually(t, "the debt is paid", func() bool { return owed(db, "sub", "waiting")+owed(db, "sub", "paid") == 0 })
	r.shutDown()
	marked := strings.Fields(db.Text(`SELECT string_agg(payload, ' ' ORDER BY row) FROM repeated WHERE published_at IS NOT NULL`))
	if got, want := marked, []string{"first", "between", "last"}; !slices.Equal(got, want) {
		t.Errorf("marked as published are %q, want %q", got, want)
	}
	if got := metric(t, o, "walpost_rows_of_one_identity_total", "subscriber=sub"); got != 2 {
		t.Errorf("%v rows are counted, want 2", got)
	}
	if got := strings.Count(log.String(), told); got != 1 {
		t.Errorf("the log tells it %d times of one type, want once", got)
	}
}
