package debt_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/testdb"
)

func redrive(t *testing.T, store *debt.Store, filter debt.Filter) debt.Outcome {
	t.Helper()
	outcome, err := store.Redrive(t.Context(), filter, "me", "fixed")
	if err != nil {
		t.Fatal(err)
	}
	return outcome
}

// told is what is answered about events, as event/subscriber:result.
func told(outcome debt.Outcome) string {
	var answers []string
	for _, a := range outcome.Answers {
		answers = append(answers, fmt.Sprintf("%s/%s:%s", a.Event, a.Subscriber, a.Result))
	}
	return strings.Join(answers, " ")
}

func TestRedrive_makesWhatFitsWaitAtItsPlace(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 5)
	subscribe(db, "a", "b")
	record(t, store, "a", events[1], events[4])
	dead(t, store, "a", "503", events[2], events[0])
	dead(t, store, "a", "no such user", events[3])
	dead(t, store, "b", "503", events[0])
	db.Exec(`UPDATE walpost.owed SET first_failure = now() - interval '1 day', next_attempt = now() + interval '1 day'`)

	want(t, "redriven", redrive(t, store, debt.Filter{Subscriber: "a", Error: "503"}).Deliveries, 2)
	owed := waiting(t, store, "a")
	want(t, "waiting", ids(owed), "e1 e2 e3 e5")
	first := owed[0]
	want(t, "position", first.Event.Position, events[0].Position)
	want(t, "payload", string(first.Event.Payload), string(events[0].Payload))
	want(t, "attempts", first.Attempts, 2)
	want(t, "error", first.Err, "503")
	want(t, "is due", first.NextAttempt.IsZero(), true)
	want(t, "its limits begin again", first.FirstFailure.IsZero(), true)
	want(t, "still dead", db.Text(`SELECT string_agg(subscriber || event_id, ' ' ORDER BY subscriber) FROM walpost.owed WHERE state = 'dead'`), "ae4 be1")
	want(t, "audit", db.Text(`SELECT who || ' ' || action || ' ' || why || ' ' || (what - 'x')::text FROM walpost.audit`),
		`me redrive fixed {"error": "503", "state": "dead", "deliveries": 2, "subscriber": "a"}`)
}

func TestRedrive_tellsOfEachEventWhatBecameOfIt(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 6)
	subscribe(db, "a", "b", "left")
	db.Exec(`UPDATE walpost.subscribers SET gone_at = now() WHERE name = 'left'`)
	invalid := *events[4]
	invalid.Invalid = "its type is empty"
	dead(t, store, "a", "no", events[0], events[1], &invalid)
	dead(t, store, "b", "no", events[0])
	dead(t, store, "left", "no", events[0])
	record(t, store, "a", events[2], events[3])
	pay(t, store, "a", 0, lane.Paid{Event: events[3]})
	all := []string{"e1", "e2", "e3", "e4", "e5", "e6"}

	outcome := redrive(t, store, debt.Filter{Events: all, Key: "k1", Limit: 1})
	want(t, "redriven up to the limit", outcome.Deliveries, 1)
	want(t, "told", told(outcome), "e1/a:redriven e1/b:dead e1/left:gone e2/a:dead e3/a:waiting e4/a:paid e5/a:invalid e6/:not owed")
	outcome = redrive(t, store, debt.Filter{Events: all})
	want(t, "redriven", outcome.Deliveries, 2)
	want(t, "left", fmt.Sprint(outcome.Invalid, outcome.Gone), "1 1")
	want(t, "told", told(outcome), "e1/a:waiting e1/b:redriven e1/left:gone e2/a:redriven e3/a:waiting e4/a:paid e5/a:invalid e6/:not owed")
	if got := outcome.Answers[6].String(); !strings.Contains(got, "its type is empty") || !strings.Contains(got, "insert the event again") {
		t.Errorf("an invalid one is told %q", got)
	}
	want(t, "told of one subscriber", told(redrive(t, store, debt.Filter{Events: []string{"e1"}, Subscriber: "b", Source: "lessons"})), "e1/b:waiting")
	want(t, "the invalid one", db.Text(`SELECT state || invalid FROM walpost.owed WHERE event_id = 'e5'`), "deadits type is empty")
	want(t, "audits, none of what changed nothing", db.Int(`SELECT count(*) FROM walpost.audit`), 2)
}

func TestDiscard_tellsOfEachEventWhatBecameOfIt(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 4)
	stand(db, events[1].Position.Commit)
	dead(t, store, "a", "no", events[0], events[1])
	record(t, store, "a", events[2])
	outcome, err := store.Discard(t.Context(), debt.Filter{Events: []string{"e2", "e1", "e3", "e4"}, State: lane.StateDead}, "me", "")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "told", told(outcome), "e2/a:discarded e1/a:discarded e3/a:waiting e4/:not owed")
	outcome, err = store.Discard(t.Context(), debt.Filter{Events: []string{"e1", "e2"}}, "me", "")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "told again", told(outcome), "e1/a:paid e2/a:paid")
}

// Two people press the button at the same time. A lock holds one delivery, so that both have begun.
func TestRedrive_ofTheSameDeliveriesByTwoHappensOnce(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 1200)
	subscribe(db, "a")
	record(t, store, "a", events...)
	db.Exec(`UPDATE walpost.owed SET state = 'dead'`)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `SELECT FROM walpost.owed WHERE event_id = 'e7' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	outcomes := make([]debt.Outcome, 2)
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i := range outcomes {
		both.Go(func() { outcomes[i], errs[i] = store.Redrive(t.Context(), debt.Filter{Subscriber: "a"}, "me", "") })
	}
	for db.Int(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) < 2 {
		if t.Context().Err() != nil {
			t.Fatal("they do not meet")
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	want(t, "redriven by both", outcomes[0].Deliveries+outcomes[1].Deliveries, 1200)
	want(t, "waiting", len(waiting(t, store, "a")), 1000)
	want(t, "still dead", db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead'`), 0)
	want(t, "audited", db.Int(`SELECT sum((what->>'deliveries')::int) FROM walpost.audit`), 1200)
}

// A relay looks for the highest number of the audit, so each piece must raise it.
func TestRedrive_inPiecesShowsEachToTheRelayInOneRowOfTheAudit(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 1001)
	subscribe(db, "a")
	record(t, store, "a", events...)
	db.Exec(`UPDATE walpost.owed SET state = 'dead'`)
	seen := func() int64 {
		look, err := store.Changes(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		return look.Change
	}
	before := seen()
	want(t, "redriven", redrive(t, store, debt.Filter{Subscriber: "a"}).Deliveries, 1001)
	want(t, "changes seen", seen()-before, 2)
	want(t, "audited", db.Text(`SELECT string_agg(what->>'deliveries', ' ') FROM walpost.audit`), "1001")
}

// S-202: later it can be told of each event whether it was discarded or delivered, of the last one as of the first.
func TestDiscard_namesEveryDeliveryInTheAudit(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 1201)
	subscribe(db, "a")
	record(t, store, "a", events...)
	want(t, "discarded", discard(t, store, debt.Filter{Subscriber: "a"}), 1201)
	want(t, "notes", db.Int(`SELECT count(*) FROM walpost.audit`), 2)
	want(t, "audited", db.Int(`SELECT sum((what->>'deliveries')::int) FROM walpost.audit`), 1201)
	want(t, "named", db.Int(`SELECT count(DISTINCT c->>'event') FROM walpost.audit, jsonb_array_elements(what->'chosen') c`), 1201)
}

// An event over max_event has no copy. It is judged again by the limit of the day on which it is read.
func TestRedrive_judgesAgainWhatWasTooLarge(t *testing.T) {
	db := testdb.New(t)
	events := fill(t, db, 3)
	subscribe(db, "a")
	db.Exec(`UPDATE outbox SET payload = jsonb_build_object('text', repeat('x', 2000)) WHERE id < 3`)
	for _, e := range events[:2] {
		e.Limit(10)
	}
	first := open(t, db, lessons())
	dead(t, first, "a", events[0].Invalid, events[0])
	dead(t, first, "a", events[1].Invalid, events[1])
	record(t, first, "a", events[2])
	outcome := redrive(t, first, debt.Filter{Events: []string{"e1", "e2"}})
	want(t, "told", told(outcome), "e1/a:redriven e2/a:redriven")

	for _, test := range []struct {
		limit   int
		invalid bool
	}{{0, false}, {5000, false}, {1000, true}} {
		store := open(t, db, lessons()).Limit(test.limit)
		// No one knows how large they are, so each is read alone.
		var read []string
		var after event.Position
		for range 3 {
			page, err := store.Waiting(t.Context(), "a", lane.Query{After: after, Limit: 100, Bytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			owed := page.Owed
			read = append(read, ids(owed))
			after = owed[0].Event.Position
			if e := owed[0].Event; e.ID != "e3" {
				want(t, "payload is there", len(e.Payload) > 2000, !test.invalid)
				want(t, "says that it is too large", strings.Contains(e.Invalid, "max_event is 1000"), test.invalid)
			}
		}
		want(t, "read", strings.Join(read, "|"), "e1|e2|e3")
	}
}

func TestRedrive_saysWhatItCannotMean(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 1)
	subscribe(db, "left")
	dead(t, store, "left", "no", events...)
	db.Exec(`UPDATE walpost.subscribers SET gone_at = now()`)
	for _, test := range []struct {
		filter debt.Filter
		says   string
	}{
		{debt.Filter{}, "chooses everything"},
		{debt.Filter{State: lane.StateDead, Limit: 1}, "chooses everything"},
		{debt.Filter{Subscriber: "left", State: lane.StateWaiting}, "sent by themselves"},
		{debt.Filter{Subscriber: "left", State: lane.StatePaid}, "delivered or discarded already"},
		{debt.Filter{Events: make([]string, 1001)}, "at most 1000"},
		{debt.Filter{Subscriber: "missing"}, `no subscriber "missing"`},
		{debt.Filter{Subscriber: "left"}, "has left the configuration"},
	} {
		if _, err := store.Redrive(t.Context(), test.filter, "me", ""); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: got %v, want it to say %q", test.filter, err, test.says)
		}
	}
	outcome := redrive(t, store, debt.Filter{Type: "t"})
	want(t, "left for want of a subscriber", fmt.Sprint(outcome.Deliveries, outcome.Gone), "0 1")
	counts, _, err := store.Redrivable(t.Context(), debt.Filter{Type: "t"})
	if err != nil || len(counts) != 1 || counts[0] != (debt.Redrivable{Subscriber: "left", Gone: 1}) {
		t.Errorf("counted %v, %v", counts, err)
	}
}
