package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// dead are the dead letters as subscriber/event id.
func dead(db *testdb.DB) []string {
	return db.Texts(`SELECT subscriber || '/' || event_id FROM walpost.owed WHERE state = 'dead' ORDER BY 1`)
}

// F-12: a row that can be no event is a dead letter of everyone who may want it, and a counter; the
// stream goes on.
func TestRelay_makesDeadLettersOfRowsThatAreNoEvents(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE loose (n int PRIMARY KEY, id text, type text, payload jsonb, published_at timestamptz)`)
	all, picky, other := keeping(nil), keeping(nil), keeping(nil)
	all.Named("all")
	picky.Named("picky").Wanting("wanted")
	other.Named("other").Wanting("something.else")
	o := oneSource(options(t, db, all, picky, other), &outbox.Source{Name: "loose", Schema: "public", Table: "loose", Mark: true})
	db.Exec(`INSERT INTO loose VALUES (0, NULL, 'wanted', '{}')`) // one that waits before the slot exists
	streaming(t, o)
	db.Exec(`INSERT INTO loose VALUES
		(1, NULL, 'wanted', '{}'), (2, '', 'wanted', '{}'), (3, repeat('x', 257), 'wanted', '{}'),
		(4, 'no-type', NULL, '{}'), (5, 'empty-type', '', '{}'), (6, 'long-type', repeat('x', 257), '{}'),
		(7, 'good', 'wanted', '{}')`)
	if got, want := all.AwaitDelivered(t, 1), []string{"good"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	picky.AwaitDelivered(t, 1)
	want := []string{
		"all/empty-type", "all/long-type", "all/no-type", "all/row:0", "all/row:1", "all/row:2", "all/row:3",
		"other/empty-type", "other/no-type", // no one can say whether they are wanted
		"picky/empty-type", "picky/no-type", "picky/row:0", "picky/row:1", "picky/row:2", "picky/row:3",
	}
	eventually(t, "dead letters", func() bool { return len(dead(db)) >= len(want) })
	if got := dead(db); !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
	eventually(t, "the slot has passed all", passed(t, db, all.await(t, "good")))
	if got := db.Texts(`SELECT id FROM loose WHERE published_at IS NOT NULL`); !slices.Equal(got, []string{"good"}) {
		t.Errorf("marked %v, want only the good one", got)
	}
	if got := metric(t, o, "walpost_deliveries_total", "outcome=dead,subscriber=all"); got != 7 {
		t.Errorf("counted %v dead letters of the first subscriber, want 7", got)
	}
	if got := db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead' AND error = ''`); got != 0 {
		t.Errorf("%d dead letters have no reason", got)
	}
}

// S-07: one rule makes a row an event, whether it comes by the stream, or from the table: at the first start, for a new
// subscriber with from: beginning, or by reference from a debt.
func TestRelay_judgesARowByTheStreamAsByTheTable(t *testing.T) {
	t.Parallel()
	for _, ours := range []bool{true, false} { // owed by reference, and with a copy
		t.Run(fmt.Sprintf("ours=%v", ours), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(`CREATE TABLE long (n serial PRIMARY KEY, id text, type text, partition_key text, aggregate_type text, aggregate_id text,
				version text, topic text, revision text, created_at text, payload jsonb, published_at timestamptz)`)
			insert := func(prefix string) {
				db.Exec(`INSERT INTO long (id, type, partition_key, payload) VALUES
					($1 || '-good', 'x', repeat('k', 1024), '{}'), ($1 || '-key', 'x', repeat('k', 1025), '{}'), ($1 || '-type', repeat('x', 257), 'k', '{}')`, prefix)
				for _, column := range []string{"aggregate_type", "aggregate_id", "version", "topic", "revision", "created_at"} {
					db.Exec(`INSERT INTO long (id, type, partition_key, payload, `+column+`) VALUES ($1, 'x', 'k', '{}', repeat('l', 1025))`, prefix+"-"+column)
				}
			}
			insert("table")
			first, late := keeping(nil), keeping(nil)
			late.Named("late")
			source := &outbox.Source{Name: "long", Schema: "public", Table: "long", Mark: true, Ours: ours}
			r := streaming(t, oneSource(options(t, db, first), source))
			insert("stream")
			eventually(t, "dead letters of both", func() bool { return len(dead(db)) == 16 })
			first.AwaitDelivered(t, 2)
			r.shutDown()
			o := oneSource(options(t, db, first, late), source)
			o.Subscriptions[1].FromBeginning = true
			streaming(t, o)
			late.AwaitDelivered(t, 2)
			eventually(t, "dead letters of the late one", func() bool { return len(dead(db)) == 32 })

			reasons := `SELECT string_agg(split_part(event_id, '-', 2) || ': ' || error, E'\n' ORDER BY event_id) FROM walpost.owed
				WHERE state = 'dead' AND subscriber = $1 AND event_id LIKE $2`
			want := db.Text(reasons, "sub", "stream-%")
			for _, place := range [][2]string{{"sub", "table-%"}, {"late", "stream-%"}, {"late", "table-%"}} {
				if got := db.Text(reasons, place[0], place[1]); got != want {
					t.Errorf("%s, %s:\n%s\nwant, as by the stream:\n%s", place[0], place[1], got, want)
				}
			}
			if want, got := "key: key has 1025 bytes, at most 1024 are allowed", db.Text(`SELECT 'key: ' || error FROM walpost.owed WHERE event_id = 'table-key' LIMIT 1`); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got := db.Int(`SELECT count(*) FROM walpost.owed WHERE length(key) > 1024 OR length(event_type) > 256`); got != 0 {
				t.Errorf("%d rows of walpost.owed hold a name that is too long", got)
			}
			if got := db.Texts(`SELECT id FROM long WHERE published_at IS NOT NULL ORDER BY 1`); !slices.Equal(got, []string{"stream-good", "table-good"}) {
				t.Errorf("marked %v, want only the good ones", got)
			}
		})
	}
}

// A payload that a subscriber cannot read is its own affair.
func TestRelay_keepsAPermanentErrorToItsSubscriber(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	reading := keeping(func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == "bad" {
			return subscriber.Permanent(errors.New("user_id is missing\x00"))
		}
		return nil
	})
	fine := subscribertest.Recording()
	o := options(t, db, reading, fine)
	streaming(t, o)
	insertAll(db, "a", []string{"bad", "good"})
	reading.AwaitDelivered(t, 1)
	if got, want := fine.AwaitDelivered(t, 2), []string{"bad", "good"}; !slices.Equal(got, want) {
		t.Errorf("the other subscriber got %v, want %v", got, want)
	}
	eventually(t, "the slot has passed all", passed(t, db, reading.await(t, "good")))
	if got, want := dead(db), []string{"keeping/bad"}; !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
	if got := db.Text(`SELECT error FROM walpost.owed`); got != "user_id is missing" {
		t.Errorf("reason %q", got)
	}
	if got := stateOfRow(db, "bad"); got != "unmarked" {
		t.Errorf("a row with a dead letter is %s", got)
	}
}

// F-08: an event whose dead letter cannot be written is open, whatever happens.
func TestRelay_keepsAnEventOpenWhileItsDeadLetterIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room for dead letters'; END $$`)
	db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON walpost.owed FOR EACH ROW EXECUTE FUNCTION refuse()`)
	never := func(context.Context, subscriber.Delivery) error { return subscriber.Permanent(errors.New("never")) }
	first := keeping(never)
	o := options(t, db, first)
	r, kill := startMortal(t, db, o)
	insert(db, "e", "a")
	open := first.await(t, "e")
	eventually(t, "refusals are counted", func() bool { return metric(t, o, "walpost_dead_letter_errors_total", "subscriber=sub") >= 3 })
	if got := r.Progress().OpenEvents; got != 1 {
		t.Errorf("%d events are open, want 1", got)
	}
	if got := confirmed(t, db); got > open.Position.Commit {
		t.Errorf("confirmed %v, beyond the open event at %v", got, open.Position.Commit)
	}
	if got := len(first.Calls()); got != 1 {
		t.Errorf("the subscriber was asked %d times, want once: it has said never", got)
	}
	kill()

	second := keeping(never)
	o = options(t, db, second)
	streaming(t, o)
	eventually(t, "refusals are counted", func() bool { return metric(t, o, "walpost_dead_letter_errors_total", "subscriber=sub") >= 1 })
	db.Exec(`DROP TRIGGER refuse ON walpost.owed`)
	eventually(t, "the slot has passed the event", passed(t, db, open))
	if got, want := dead(db), []string{"sub/e"}; !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
}

// What cannot be recorded is not confirmed, and the health check says so.
func TestRelay_confirmsNothingWhileMarksAreRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	o := options(t, db, sub)
	r := streaming(t, o)
	db.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'hands off'; END $$`)
	db.Exec(`CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
	insert(db, "e", "a")
	ev := sub.await(t, "e")
	eventually(t, "the health check says it", func() bool { return !r.Health().Ready })
	wantWords(t, errors.New(fmt.Sprint(r.Health().Problems)), "nothing can be confirmed", "hands off")
	eventually(t, "errors are counted", func() bool { return metric(t, o, "walpost_record_errors_total", "") >= 3 })
	if got := confirmed(t, db); got > ev.Position.Commit {
		t.Errorf("confirmed %v, beyond the unmarked event at %v", got, ev.Position.Commit)
	}
	insert(db, "meanwhile", "a")
	sub.AwaitDelivered(t, 2) // subscribers do not wait for marks
	db.Exec(`DROP TRIGGER refuse ON outbox`)
	eventually(t, "ready again", func() bool { return r.Health().Ready })
	eventually(t, "the slot has passed all", passed(t, db, sub.await(t, "meanwhile")))
}

// A row that its owner deletes at once is no reason to wait for ever.
func TestRelay_doesNotWaitForARowThatIsGone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	streaming(t, options(t, db, sub))
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('gone', 'lesson.completed', 'a', '{}'), ('stays', 'lesson.completed', 'a', '{}')`)
	db.Exec(`DELETE FROM outbox WHERE event_id = 'gone'`)
	eventually(t, "the slot has passed both", passed(t, db, sub.await(t, "stays")))
}

// Another poller is at work: told and counted, no fault.
func TestRelay_countsRowsThatSomeoneElseMarked(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	blocked := subscribertest.Blocking()
	o := options(t, db, blocked)
	streaming(t, o)
	insertAll(db, "a", []string{"theirs", "ours"})
	blocked.AwaitCalls(t, 1)
	db.Exec(`UPDATE outbox SET published_at = '2001-01-01', attempts = 7 WHERE event_id = 'theirs'`)
	blocked.Release()
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	eventually(t, "the count", func() bool { return metric(t, o, "walpost_marked_elsewhere_total", "") == 1 })
	if got := db.Int(`SELECT count(*) FROM outbox WHERE event_id = 'theirs' AND published_at = '2001-01-01' AND attempts = 7`); got != 1 {
		t.Error("the other poller's mark was changed")
	}
}

// Failed attempts are written with the mark, over all subscribers.
func TestRelay_writesAttemptsWithTheMark(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	streaming(t, options(t, db, subscribertest.Failing(2).Named("two"), subscribertest.Failing(1).Named("one")))
	insert(db, "e", "a")
	eventually(t, "the mark", func() bool { return unmarked(db) == 0 })
	if got := db.Int(`SELECT attempts FROM outbox`); got != 3 {
		t.Errorf("%d failed attempts, want 3", got)
	}
}

// Retention deletes what everyone has, and never what is owed or waits.
func TestRelay_deletesOldRowsOnlyWhenNoOneNeedsThem(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	make := func() (*kept, relay.Options) {
		sub := keeping(func(_ context.Context, d subscriber.Delivery) error {
			switch d.ID {
			case "owed":
				return subscriber.Permanent(errors.New("never"))
			case "waiting":
				return errAway
			}
			return nil
		})
		return sub, options(t, db, sub)
	}
	first, o := make()
	r := streaming(t, o)
	insert(db, "old", "a")
	insert(db, "young", "a")
	insert(db, "owed", "b")
	insert(db, "waiting", "c")
	first.await(t, "waiting")
	eventually(t, "marks and the dead letter", func() bool { return unmarked(db) == 2 && len(dead(db)) == 1 })
	r.shutDown()
	// Also one that is owed and marked, as after a mark by hand: debt is stronger.
	db.Exec(`UPDATE outbox SET published_at = now() - interval '30 days' WHERE event_id IN ('old', 'owed')`)

	_, o = make()
	o.Sources[0].Retention = 168 * time.Hour
	streaming(t, o)
	eventually(t, "the old row is gone", func() bool { return db.Int(`SELECT count(*) FROM outbox WHERE event_id = 'old'`) == 0 })
	if got, want := db.Texts(`SELECT event_id FROM outbox ORDER BY 1`), []string{"owed", "waiting", "young"}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
}

// S-294: a debt holds the confirmed position, so that a repair would bring again what committed after it and is marked. Retention
// spares the rows of that, by which the relay knows.
func TestRelay_keepsOldRowsThatTheSlotStillBrings(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", func(_ context.Context, d subscriber.Delivery) error {
		if d.Key == "away" {
			return errAway
		}
		return nil
	})
	run := func(retention time.Duration) *running {
		o := owing(options(t, db, sub))
		o.Sources[0].Retention = retention
		return streaming(t, o)
	}
	r := run(0)
	insert(db, "before", "a")
	eventually(t, "its mark", func() bool { return unmarked(db) == 0 })
	db.Exec(`UPDATE outbox SET published_at = now() - interval '1 hour'`)
	insert(db, "owed", "away")
	awaitOwed(t, db, "sub", 1)
	insert(db, "behind", "a")
	eventually(t, "its mark", func() bool { return unmarked(db) == 1 })
	r.shutDown()

	r = run(time.Nanosecond)
	eventually(t, "what is confirmed is deleted", func() bool { return db.Int(`SELECT count(*) FROM outbox WHERE event_id = 'before'`) == 0 })
	if got, want := db.Texts(`SELECT event_id FROM outbox ORDER BY 1`), []string{"behind", "owed"}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	sub.behave(taking)
	eventually(t, "nothing is owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
	r.shutDown()

	run(time.Nanosecond)
	eventually(t, "all of it is deleted", func() bool { return db.Int(`SELECT count(*) FROM outbox`) == 0 })
}
