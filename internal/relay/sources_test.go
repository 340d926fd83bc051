package relay_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// shop is a second source: another service's table.
func shop(db *testdb.DB) *outbox.Source {
	db.Exec(`CREATE SCHEMA IF NOT EXISTS shop; CREATE TABLE IF NOT EXISTS shop.events (LIKE outbox INCLUDING ALL)`)
	return &outbox.Source{Name: "orders", Schema: "shop", Table: "events", Mark: true}
}

func order(db *testdb.DB, id string) {
	db.Exec(`INSERT INTO shop.events (id, event_id, event_type, partition_key, payload) VALUES (nextval('outbox_id_seq'), $1, 'order.paid', 'a', '{}')`, id)
}

// published are the tables that the publication carries.
func published(db *testdb.DB) []string {
	return db.Texts(`SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = 'walpost' ORDER BY 1`)
}

// wantNoRepair fails if the slot was made again or a repair was recorded.
func wantNoRepair(t *testing.T, db *testdb.DB) {
	t.Helper()
	if got := db.Texts(`SELECT why FROM walpost.audit WHERE action = 'repair'`); len(got) > 0 {
		t.Errorf("repaired because of %q, want no repair", got)
	}
}

// S-90: the order of the sources in the configuration means nothing.
func TestRelay_repairsNothingWhenTheSourcesAreInAnotherOrder(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	orders := shop(db)
	sub := keeping(nil)
	o := options(t, db, sub)
	o.Sources = []*outbox.Source{lessons(), orders}
	r := streaming(t, o)
	insert(db, "before", "a")
	sub.await(t, "before")
	r.shutDown()
	o = options(t, db, sub)
	o.Sources = []*outbox.Source{orders, lessons()}
	streaming(t, o)
	insert(db, "after", "a")
	order(db, "order")
	sub.await(t, "after")
	sub.await(t, "order")
	wantNoRepair(t, db)
}

// S-91, S-92: a source that is added says nothing about the others, not even about one without marks, and what waits in it
// is sent.
func TestRelay_passesOverANewSourceAlone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	orders := shop(db)
	unmarked := lessons()
	unmarked.Mark = false
	sub := keeping(nil)
	r := streaming(t, oneSource(options(t, db, sub), unmarked))
	insert(db, "before", "a")
	sub.await(t, "before")
	r.shutDown()
	order(db, "waits-1")
	order(db, "waits-2")
	o := options(t, db, sub)
	o.Sources = []*outbox.Source{unmarked, orders}
	r = streaming(t, o)
	order(db, "comes")
	insert(db, "after", "a")
	sub.AwaitDelivered(t, 5)
	once(t, sub, []string{"before", "waits-1", "waits-2", "comes", "after"})
	wantNoRepair(t, db)
	eventually(t, "the marks of the new source", func() bool { return db.Int(`SELECT count(*) FROM shop.events WHERE published_at IS NULL`) == 0 })
	r.shutDown()
}

// S-92: a source without marks is added and taken back: the slot goes on, and its rows are counted and passed over.
func TestRelay_passesOverRowsOfATableThatWasASource(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	orders := shop(db)
	orders.Mark = false
	sub := keeping(nil)
	streaming(t, options(t, db, sub)).shutDown()
	slot := db.Text(`SELECT state || ours FROM walpost.slots`)
	o := options(t, db, sub)
	o.Sources = []*outbox.Source{lessons(), orders}
	r := streaming(t, o)
	order(db, "order")
	sub.await(t, "order")
	r.shutDown()

	order(db, "passed over")
	o, log := logged(t, options(t, db, sub))
	r = streaming(t, o)
	order(db, "passed over, too")
	insert(db, "after", "a")
	sub.await(t, "after")
	eventually(t, "the confirmed position has passed them", passed(t, db, sub.await(t, "after")))
	if got := metric(t, o, "walpost_rows_passed_over_total", "source=orders"); got != 2 {
		t.Errorf("%v rows were passed over, want 2", got)
	}
	if got := strings.Count(log.String(), "was a source"); got != 1 {
		t.Errorf("said %d times, want once", got)
	}
	r.shutDown()
	once(t, sub, []string{"order", "after"})
	wantNoRepair(t, db)
	if got := db.Text(`SELECT state || ours FROM walpost.slots`); got != slot {
		t.Errorf("the slot is %s, want %s", got, slot)
	}

	orders.Mark = true // back, with marks: what is unpublished is sent
	db.Exec(`UPDATE shop.events SET published_at = now() WHERE event_id = 'order'`)
	o = options(t, db, sub)
	o.Sources = []*outbox.Source{lessons(), orders}
	streaming(t, o)
	sub.await(t, "passed over, too")
	once(t, sub, []string{"order", "after", "passed over", "passed over, too"})
}

// S-92: what is refused leaves the publication and the slot as they were.
func TestRelay_leavesPublicationAndSlotAsTheyWereWhenItRefuses(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	unmarked := lessons()
	unmarked.Mark = false
	sub := keeping(nil)
	r := streaming(t, oneSource(options(t, db, sub), unmarked))
	insert(db, "before", "a")
	sub.await(t, "before")
	r.shutDown()
	db.Exec(`ALTER PUBLICATION walpost DROP TABLE outbox`)
	o := options(t, db, sub)
	o.Sources = []*outbox.Source{unmarked, shop(db)}
	wantWords(t, start(t, o).refused(), `source "lessons" are not marked`)
	if got := published(db); len(got) != 0 {
		t.Errorf("the publication carries %v after the refusal, want nothing as before", got)
	}
	if got := db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, db.Name); got != 1 {
		t.Errorf("%d slots, want the one that there was", got)
	}
}

// S-93: a source with another name is the same source: its debt, its inbox, its marks and what subscribers want of it
// carry over.
func TestRelay_followsASourceThatHasAnotherName(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	down := newChanging("down", away)
	o := owing(options(t, db, down))
	o.Subscriptions[0].Filter = event.Filter{Sources: []string{"lessons"}}
	r := streaming(t, o)
	insertAll(db, "a", numbered("owed", 3))
	awaitOwed(t, db, "down", 3)
	r.shutDown()
	db.Exec(`UPDATE walpost.owed SET state = 'dead', error = 'x' WHERE event_id = 'owed-0'`)
	insert(db, "away", "b")

	courses := lessons()
	courses.Name = "courses"
	sub := newChanging("down", taking)
	o = oneSource(options(t, db, sub), courses)
	o.Subscriptions[0].Filter = event.Filter{Sources: []string{"courses"}}
	r = streaming(t, o)
	insert(db, "after", "b")
	sub.AwaitDelivered(t, 4)
	got := slices.Sorted(slices.Values(ids(sub.Calls())))
	if want := []string{"after", "away", "owed-1", "owed-2"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	eventually(t, "marks of all but the dead letter", func() bool { return unmarked(db) == 1 })
	if got := db.Texts(`SELECT DISTINCT source FROM walpost.owed`); !slices.Equal(got, []string{"courses"}) {
		t.Errorf("what is owed is of %v, want courses", got)
	}
	wantNoRepair(t, db)
	r.shutDown()
}

// S-94: a repair waits for no transaction before it streams, and for none that has not written to the table, such as one
// that was prepared in another database and forgotten.
func TestRelay_streamsWhileARepairWaitsForAWriter(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"max_prepared_transactions": "5"})
	db, other := testdb.On(t, server), testdb.On(t, server)
	streaming(t, options(t, db, subscribertest.Recording())).shutDown()
	prepare := func(db *testdb.DB, gid, sql string) {
		conn := session(t, db.DSN)
		for _, sql := range []string{`BEGIN`, sql, `PREPARE TRANSACTION '` + gid + `'`} {
			mustExec(t, conn, sql)
		}
	}
	prepare(other, "elsewhere", `INSERT INTO outbox (event_id, event_type, payload) VALUES ('elsewhere', 't', '{}')`)
	t.Cleanup(func() { other.Exec(`ROLLBACK PREPARED 'elsewhere'`) })
	db.Exec(`ALTER PUBLICATION walpost DROP TABLE outbox`)
	insert(db, "in the hole", "a")
	prepare(db, "forgotten", `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('late', 't', 'a', '{}')`)
	db.Exec(`ALTER PUBLICATION walpost ADD TABLE outbox`)

	sub := keeping(nil)
	o, log := logged(t, options(t, db, sub))
	r := streaming(t, o)
	insert(db, "after", "a")
	sub.await(t, "in the hole")
	sub.await(t, "after")
	eventually(t, "who is waited for", func() bool {
		return strings.Contains(strings.Join(r.Health().Problems, "\n"), "'forgotten'") && strings.Contains(log.String(), "'forgotten'")
	})
	if h := r.Health(); !h.Ready || strings.Contains(strings.Join(h.Problems, "\n"), "elsewhere") {
		t.Errorf("health %+v, want it ready, and no word of another database", h)
	}
	r.shutDown() // a second pass that was not made is not forgotten
	r = streaming(t, options(t, db, sub))
	eventually(t, "who is waited for", func() bool { return strings.Contains(strings.Join(r.Health().Problems, "\n"), "'forgotten'") })
	db.Exec(`COMMIT PREPARED 'forgotten'`)
	sub.await(t, "late")
	eventually(t, "nothing is waited for", func() bool { return len(r.Health().Problems) == 0 && r.Health().Ready })
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	once(t, sub, []string{"in the hole", "after", "late"})
	eventually(t, "no second pass is to come", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.slots WHERE fingerprint::text LIKE '%second_pass%'`) == 0
	})
	r.shutDown()
}

// S-191: a filter decides what becomes a delivery, not what is owed already: that was promised under the filter of its time,
// and stays until it is sent or a person discards it.
func TestRelay_sendsWhatIsOwedWhateverTheFilterIsNow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	o := owing(options(t, db, newChanging("down", away)))
	r := streaming(t, o)
	insertTyped(db, "1", "x")
	insertTyped(db, "2", "y")
	awaitOwed(t, db, "down", 2)
	r.shutDown()
	sub := newChanging("down", taking)
	o = options(t, db, sub)
	o.Subscriptions[0].Filter.Events = []string{"y"}
	r = streaming(t, o)
	insertTyped(db, "3", "x")
	insertTyped(db, "4", "y")
	sub.AwaitDelivered(t, 3)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	got := slices.Sorted(slices.Values(ids(sub.Calls())))
	if want := []string{"1", "2", "4"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want what was owed and what fits now, %v", got, want)
	}
	r.shutDown()
}

// S-134, S-494: a source is taken out while a subscriber is owed rows of it by reference: these wait until it is back, and what
// else the subscriber is owed is sent, as is what comes.
func TestRelay_paysTheRestWhileASourceIsTakenOut(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"orders", "deals"} { // as which it comes back
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			paysTheRestWhileASourceIsTakenOut(t, name)
		})
	}
}

func paysTheRestWhileASourceIsTakenOut(t *testing.T, name string) {
	db := testdb.New(t)
	orders := shop(db)
	orders.Ours = true
	failing := subscribertest.Handling("sub", away)
	o := options(t, db, failing)
	o.Sources = []*outbox.Source{lessons(), orders}
	o.Subscriptions[0].Lane.StallAfter = 1 // it owes at once
	r := streaming(t, o)
	order(db, "order-1")
	insertAll(db, "a", numbered("a", 3))
	order(db, "order-2")
	eventually(t, "all are owed by reference", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting' AND NOT copied`) == 5
	})
	r.shutDown()

	sub := subscribertest.Recording()
	r = streaming(t, options(t, db, sub))
	insert(db, "live", "a")
	if got, want := sub.AwaitDelivered(t, 4), append(numbered("a", 3), "live"); !slices.Equal(got, want) {
		t.Errorf("without the source it got %v, want %v", got, want)
	}
	eventually(t, "the rows of the source alone are owed", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE source = 'lessons'`) == 0 && owed(db, "sub", "waiting") == 2
	})
	eventually(t, "it says what waits, and for what", func() bool {
		subs := r.Progress().Subscribers
		return len(subs) == 1 && maps.Equal(subs[0].AbsentSources, map[string]int64{"orders": 2})
	})
	if health := r.Health(); !health.Ready {
		t.Errorf("it is not ready: %v", health.Problems)
	}
	r.shutDown()

	back := subscribertest.Recording()
	o = options(t, db, back)
	orders.Name = name
	o.Sources = []*outbox.Source{lessons(), orders}
	streaming(t, o)
	if got, want := back.AwaitDelivered(t, 2), []string{"order-1", "order-2"}; !slices.Equal(got, want) {
		t.Errorf("with the source it got %v, want %v", got, want)
	}
	eventually(t, "nothing is owed", func() bool { return owed(db, "sub", "waiting") == 0 })
	eventually(t, "all marks", func() bool { return db.Int(`SELECT count(*) FROM shop.events WHERE published_at IS NULL`) == 0 })
	once(t, back, []string{"order-1", "order-2"})
}
