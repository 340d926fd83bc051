package debt_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	recorded "github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/testdb"
)

func dead(t *testing.T, store *debt.Store, subscriber, reason string, events ...*event.Event) {
	t.Helper()
	for _, e := range events {
		if _, err := store.Dead(t.Context(), subscriber, lane.Owed{Event: e, Attempts: 2, Err: reason}); err != nil {
			t.Fatal(err)
		}
	}
}

func discard(t *testing.T, store *debt.Store, filter debt.Filter) int {
	t.Helper()
	outcome, err := store.Discard(t.Context(), filter, "me", "why not")
	if err != nil {
		t.Fatal(err)
	}
	return outcome.Deliveries
}

func ids(owed []lane.Owed) string {
	var ids []string
	for _, o := range owed {
		ids = append(ids, o.Event.ID)
	}
	return strings.Join(ids, " ")
}

func TestList_choosesByEveryField(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db)
	events := fill(t, db, 4)
	events[1].Type = "other"
	record(t, store, "a", events[:3]...)
	dead(t, store, "a", "503 from the receiver", events[3])
	dead(t, store, "b", "100% wrong", events[0])
	record(t, store, "b", events[1])
	pay(t, store, "b", 0, lane.Paid{Event: events[1]})
	db.Exec(`UPDATE walpost.owed SET recorded_at = '2024-01-01' WHERE event_id = 'e3'`)
	year := time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		filter debt.Filter
		want   string
	}{
		{debt.Filter{}, "a/e1 a/e2 a/e3 a/e4 b/e1"},
		{debt.Filter{Limit: 2}, "a/e1 a/e2"},
		{debt.Filter{Subscriber: "b"}, "b/e1"},
		{debt.Filter{State: lane.StateDead}, "a/e4 b/e1"},
		{debt.Filter{State: lane.StatePaid}, "b/e2"},
		{debt.Filter{State: "no'such"}, ""},
		{debt.Filter{Source: "lessons", Events: []string{"e1"}}, "a/e1 b/e1"},
		{debt.Filter{Source: "another"}, ""},
		{debt.Filter{Events: []string{"e2", "e4", "e9"}}, "a/e2 a/e4"},
		{debt.Filter{Type: "other"}, "a/e2"},
		{debt.Filter{Key: "k3"}, "a/e3"},
		{debt.Filter{Since: year}, "a/e1 a/e2 a/e4 b/e1"},
		{debt.Filter{Until: year}, "a/e3"},
		{debt.Filter{Error: "503"}, "a/e4"},
		{debt.Filter{Error: "%"}, "b/e1"},
		{debt.Filter{Error: "503", Type: "other"}, ""},
	} {
		rows, err := store.List(t.Context(), test.filter)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, row := range rows {
			got = append(got, row.Subscriber+"/"+row.Event.ID)
		}
		if got := strings.Join(got, " "); got != test.want {
			t.Errorf("%+v: got %s, want %s", test.filter, got, test.want)
		}
	}
}

func TestFitting_countsWhatTheFilterChoosesAndWhatComesLaterDoesNot(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 4)
	record(t, store, "a", events[:2]...)
	dead(t, store, "a", "no", events[2])
	dead(t, store, "b", "no", events[2])
	counts, at, err := store.Fitting(t.Context(), debt.Filter{Subscriber: "a", Limit: 1})
	if want := []debt.Count{{"a", "dead", 1}, {"a", "waiting", 2}}; err != nil || !slices.Equal(counts, want) {
		t.Errorf("got %v, %v, want %v", counts, err, want)
	}
	record(t, store, "a", events[3])
	want(t, "discarded", discard(t, store, debt.Filter{Subscriber: "a", Until: at}), 3)
	want(t, "waiting", ids(waiting(t, store, "a")), "e4")
}

func TestListAndShow_tellWhatIsRecorded(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 1)
	record(t, store, "a", events...)
	dead(t, store, "b", "no", events...)
	for _, show := range []bool{false, true} {
		rows, err := store.List(t.Context(), debt.Filter{Events: []string{"e1"}})
		payload := ""
		if show {
			rows, err = store.Show(t.Context(), "e1")
			payload = `{"n": 1}`
		}
		if err != nil || len(rows) != 2 {
			t.Fatalf("got %d rows, %v", len(rows), err)
		}
		for i, row := range rows {
			want(t, "payload", string(row.Event.Payload), payload)
			want(t, "key", row.Event.Key, "k1")
			want(t, "position", row.Event.Position, events[0].Position)
			want(t, "copied", row.Copied, i == 1)
			if age := time.Since(row.RecordedAt); age < 0 || age > time.Hour {
				t.Errorf("recorded at %v, want just now", row.RecordedAt)
			}
		}
		if b := rows[1]; b.Subscriber != "b" || b.State != lane.StateDead || b.Err != "no" || b.Attempts != 2 {
			t.Errorf("got %+v", b)
		}
	}
}

func TestDiscard_leavesTheMarkOfWhatNoOneElseIsOwedToTheLeader(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 3)
	stand(db, 1000)
	dead(t, store, "a", "no", events...)
	dead(t, store, "b", "no", events[1])
	record(t, store, "b", events[2])
	want(t, "discarded", discard(t, store, debt.Filter{Subscriber: "a"}), 3)
	want(t, "marked, without a leader", marked(db), "")
	markRows(t, store)
	want(t, "marked, while two are owed to b", marked(db), "e1:2")
	want(t, "discarded", discard(t, store, debt.Filter{Subscriber: "b", Key: "k2"}), 1)
	markRows(t, store)
	want(t, "marked, while one is owed to b", marked(db), "e1:2 e2:2")
	want(t, "left", db.Text(`SELECT string_agg(subscriber || event_id || state, ' ') FROM walpost.owed`), "be3waiting")
	want(t, "audit", strings.Join(db.Texts(`SELECT who || ' ' || action || ' ' || (what->>'deliveries') || ' ' || (what->>'subscriber') || ' ' || why FROM walpost.audit ORDER BY id`), "; "),
		"me discard 3 a why not; me discard 1 b why not")
}

func TestDiscard_marksTheRowOfSeveralSubscribersOnce(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 1)
	stand(db, 1000)
	dead(t, store, "a", "no", events...)
	dead(t, store, "b", "no", events...)
	want(t, "discarded", discard(t, store, debt.Filter{Events: []string{"e1"}}), 2)
	markRows(t, store)
	want(t, "marked", marked(db), "e1:4")
}

// After a crash the stream brings the event again: it must be known that a person has given it up.
func TestDiscard_keepsInMindWhatTheStreamMightBringAgain(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 1)
	stand(db, events[0].Position.Commit)
	record(t, store, "a", events...)
	want(t, "discarded", discard(t, store, debt.Filter{Subscriber: "a"}), 1)
	states, err := store.Known(t.Context(), "a", events)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "state", states[0].State, lane.StatePaid)
	markRows(t, store, events[0])
	want(t, "marked, while it is open for another subscriber", marked(db), "")
	want(t, "discarded again", discard(t, store, debt.Filter{Subscriber: "a"}), 0)
	markRows(t, store)
	want(t, "marked", marked(db), "e1:0")
	states, err = store.Known(t.Context(), "a", events)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "state", states[0].State, lane.StatePaid) // the slot stands before it
	stand(db, 1000)
	if n, err := store.Clean(t.Context()); n != 1 || err != nil {
		t.Errorf("cleaned %d, %v, want 1", n, err)
	}
}

func TestDiscard_stopsAtTheLimitAndTakesManyPieces(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 2300)
	stand(db, 1<<40)
	record(t, store, "a", events...)
	want(t, "discarded", discard(t, store, debt.Filter{Subscriber: "a", Limit: 3}), 3)
	want(t, "discarded", discard(t, store, debt.Filter{Subscriber: "a"}), 2297)
	want(t, "audited", db.Text(`SELECT string_agg(what->>'deliveries', ' ' ORDER BY id) FROM walpost.audit`), "3 1000 1000 297")
}

func TestDiscard_refusesAFilterThatChoosesEverything(t *testing.T) {
	store := open(t, testdb.New(t))
	for _, filter := range []debt.Filter{{}, {Limit: 10}, {State: lane.StateDead}, {Subscriber: "a", State: lane.StatePaid}} {
		if _, err := store.Discard(t.Context(), filter, "me", ""); err == nil {
			t.Errorf("%+v: got no error", filter)
		}
	}
}

// S-62: any role that can connect can hold any advisory lock.
func TestAdd_waitsForNoAdvisoryLock(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db, lessons())
	fill(t, db, 1)
	subscribe(db, "a")
	stand(db, 0x58)
	holder, err := db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	_, err = holder.Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended('walpost add ' || $1, 0)),
		pg_advisory_lock(hashtextextended('walpost audit ' || $1, 0))`, slot)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if added, _, err := store.Add(ctx, "a", []string{"e1"}, lane.StateWaiting, "me", "why not"); err != nil || added != 1 {
		t.Errorf("added %d, %v; want one", added, err)
	}
}

func TestAdd_makesEventsOwedBeforeAllThatTheStreamBrings(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 12)
	subscribe(db, "a")
	stand(db, 0x58)
	record(t, store, "a", events[10])
	add := func(state lane.State, ids ...string) int {
		t.Helper()
		n, missing, err := store.Add(t.Context(), "a", ids, state, "me", "why not")
		if slices.Contains(ids, "no one's") != slices.Equal(missing, []string{"no one's"}) {
			t.Errorf("missing of %q are %q", ids, missing)
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// Sorted as text e10 comes before e2; the table knows better.
	want(t, "added", add(lane.StateWaiting, "e10", "e2", "no one's", "e11", "e2"), 2)
	want(t, "added again", add(lane.StateWaiting, "e2"), 0)
	want(t, "added after those", add(lane.StateWaiting, "e1"), 1)
	got := waiting(t, store, "a")
	want(t, "waiting", ids(got), "e2 e10 e1 e11")
	want(t, "position", got[1].Event.Position, event.Position{Epoch: 1, Commit: 0x57, Ordinal: 1})
	want(t, "payload", string(got[1].Event.Payload), `{"n": 10}`)
	want(t, "dead", add(lane.StateDead, "e3"), 1)
	want(t, "waiting", ids(waiting(t, store, "a")), "e2 e10 e1 e11")
	want(t, "audit", db.Text(`SELECT who || action || (what->>'events') || (what->>'deliveries') FROM walpost.audit ORDER BY id LIMIT 1`),
		`meadd["e10", "e11", "e2", "no one's"]2`)
}

func TestAdd_ofWaitingOnesAsDeadEndsAnOutage(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 4)
	subscribe(db, "a")
	stand(db, 1000)
	record(t, store, "a", events[:3]...)
	dead(t, store, "a", "of its own", events[3])
	db.Exec(`DELETE FROM outbox WHERE id = 2`)
	n, _, err := store.Add(t.Context(), "a", []string{"e1", "e2", "e4"}, lane.StateDead, "me", "the receiver is gone for good")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "ended", n, 2)
	want(t, "waiting", ids(waiting(t, store, "a")), "e3")
	rows, err := store.List(t.Context(), debt.Filter{State: lane.StateDead})
	if err != nil {
		t.Fatal(err)
	}
	for i, reason := range []string{"made dead by me: the receiver is gone for good", "made dead by me: the receiver is gone for good", "of its own"} {
		want(t, "reason", rows[i].Err, reason)
		want(t, "copied", rows[i].Copied, i != 1)
	}
	want(t, "invalid", rows[1].Event.Invalid, debt.Gone)
}

func TestAdd_refusesWhatCannotBeMeant(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db, lessons())
	add := func(state lane.State, ids ...string) string {
		t.Helper()
		_, _, err := store.Add(t.Context(), "a", ids, state, "me", "")
		if err == nil {
			t.Fatal("got no error")
		}
		return err.Error()
	}
	for _, test := range []struct{ got, want string }{
		{add(lane.StatePaid, "e1"), `must be waiting or dead`},
		{add(lane.StateWaiting, make([]string, 1001)...), `too many`},
		{add(lane.StateWaiting, "e1"), `slot "s" is not known`},
	} {
		if !strings.Contains(test.got, test.want) {
			t.Errorf("got %q, want it to say %q", test.got, test.want)
		}
	}
	stand(db, 8)
	if got := add(lane.StateWaiting, "e1"); !strings.Contains(got, `no subscriber "a"`) {
		t.Errorf("got %q", got)
	}
}

func TestSubscribers_tellWhereTheyStand(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 3)
	subscribe(db, "b", "a")
	db.Exec(`UPDATE walpost.subscribers SET gone_at = '2024-01-01Z' WHERE name = 'b'`)
	db.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ('another', 'c')`)
	record(t, store, "a", events[:2]...)
	dead(t, store, "a", "no", events[2])
	pay(t, store, "a", 0x20)
	if err := store.Pause(t.Context(), "a", "me", "maintenance"); err != nil {
		t.Fatal(err)
	}
	got, err := store.Subscribers(t.Context())
	if err != nil || len(got) != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	a := got[0]
	if a.LastSeen.IsZero() || a.Waiting.Since.IsZero() || a.Dead.Since.IsZero() {
		t.Errorf("got no times: %+v", a)
	}
	a.LastSeen, a.Waiting.Since, a.Dead.Since = time.Time{}, time.Time{}, time.Time{}
	want(t, "a", a, debt.SubscriberRow{
		Subscriber: recorded.Subscriber{Name: "a", Paused: true, Secured: event.Position{Epoch: 1, Commit: 0x20}, Wants: `[{"any": [{}]}]`},
		Waiting:    debt.Sum{Number: 2, Oldest: events[0].Position}, Dead: debt.Sum{Number: 1, Oldest: events[2].Position},
	})
	b := got[1]
	b.LastSeen = time.Time{}
	want(t, "b", b, debt.SubscriberRow{Subscriber: recorded.Subscriber{
		Name: "b", GoneAt: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), Wants: `[{"any": [{}]}]`}})
}

func TestPauseAndResume_areAuditedWhenTheyChangeSomething(t *testing.T) {
	db := testdb.New(t)
	store := open(t, db)
	subscribe(db, "a")
	for _, change := range []error{
		store.Pause(t.Context(), "a", "me", "\x00maintenance"), store.Pause(t.Context(), "a", "me", ""),
		store.Resume(t.Context(), "a", "you", "over"), store.Resume(t.Context(), "a", "you", ""),
	} {
		if change != nil {
			t.Error(change)
		}
	}
	got := db.Texts(`SELECT who || ' ' || action || ' ' || (what->>'subscriber') || ' ' || why FROM walpost.audit ORDER BY id`)
	if want := []string{"me pause a maintenance", "you resume a over"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := store.Pause(t.Context(), "missing", "me", ""); err == nil || !strings.Contains(err.Error(), `no subscriber "missing"`) {
		t.Errorf("got %v", err)
	}
}

func TestForget_leavesNothingOfASubscriber(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db, lessons()), fill(t, db, 4)
	subscribe(db, "a", "b")
	stand(db, events[2].Position.Commit) // the third might come again
	for _, subscriber := range []string{"a", "b"} {
		db.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence) VALUES ($1, $2, 'lessons', 'e1', $3)`, slot, subscriber, written)
	}
	record(t, store, "a", events[0], events[2])
	dead(t, store, "a", "no", events[1])
	record(t, store, "b", events[1])
	record(t, store, "a", events[3])
	pay(t, store, "a", 0, lane.Paid{Event: events[3]})
	if err := store.Forget(t.Context(), "a", "me", "not used any more"); err != nil {
		t.Fatal(err)
	}
	want(t, "waiting for b", ids(waiting(t, store, "b")), "e2")
	markRows(t, store)
	want(t, "marked", marked(db), "e1:0 e3:0 e4:0")
	stand(db, 1000)
	if n, err := store.Clean(t.Context()); n != 2 || err != nil {
		t.Errorf("cleaned %d, %v, want the two that might have come again", n, err)
	}
	want(t, "left of it", db.Int(`SELECT (SELECT count(*) FROM walpost.owed WHERE subscriber = 'a')
		+ (SELECT count(*) FROM walpost.inbox WHERE subscriber = 'a') + (SELECT count(*) FROM walpost.subscribers WHERE name = 'a')`), 0)
	want(t, "inbox of b", db.Int(`SELECT count(*) FROM walpost.inbox`), 1)
	if err := store.Forget(t.Context(), "a", "me", ""); err == nil || !strings.Contains(err.Error(), `no subscriber "a"`) {
		t.Errorf("forgotten twice: got %v", err)
	}
}

func TestPeoplesChanges_areToldToWhoListens(t *testing.T) {
	db := testdb.New(t)
	store, events := open(t, db), fill(t, db, 1)
	subscribe(db, "a")
	record(t, store, "a", events...)
	conn, err := db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `LISTEN `+pgx.Identifier{recorded.Channel}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func() error{
		func() error { return store.Pause(t.Context(), "a", "me", "") },
		func() error { _, err := store.Discard(t.Context(), debt.Filter{Subscriber: "a"}, "me", ""); return err },
		func() error { return store.Forget(t.Context(), "a", "me", "") },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		told, err := conn.Conn().WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want(t, "told of slot", told.Payload, slot)
	}
}

// S-67: any role can fill the queue of notifications, and then each transaction that has one fails.
func TestPeoplesChanges_needNoNotification(t *testing.T) {
	db := testdb.New(t)
	events := fill(t, db, 1)
	subscribe(db, "a")
	role := db.Name + "_operator"
	db.Exec(`CREATE ROLE ` + role)
	t.Cleanup(func() { db.Exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role) })
	db.Exec(`GRANT USAGE ON SCHEMA walpost TO ` + role + `; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walpost TO ` + role +
		`; GRANT SELECT, UPDATE (published_at, attempts) ON outbox TO ` + role)
	db.Exec(`REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM PUBLIC`)
	pool, err := openAs(t, db, role)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `SELECT pg_catalog.pg_notify('walpost', 's')`); err == nil {
		t.Fatal("the role can send notifications")
	}
	store := debt.NewStore(pool, slot)
	record(t, store, "a", events...)
	for _, change := range []func() error{
		func() error { return store.Pause(t.Context(), "a", "me", "") },
		func() error { return store.Resume(t.Context(), "a", "me", "") },
		func() error { return store.Unwanted(t.Context(), "a", "gone") },
		func() error { _, err := store.Discard(t.Context(), debt.Filter{Subscriber: "a"}, "me", ""); return err },
		func() error { return store.Forget(t.Context(), "a", "me", "") },
	} {
		if err := change(); err != nil {
			t.Error(err)
		}
	}
	want(t, "notes", db.Int(`SELECT count(*) FROM walpost.audit`), 5)
}

// The relay's role has DML on walpost's tables and column grants on the outbox (docs/postgres.md §11).
func TestStore_needsNoMoreRightsThanTheRelayHas(t *testing.T) {
	db := testdb.New(t)
	events := fill(t, db, 2)
	subscribe(db, "a")
	stand(db, 1000)
	role := db.Name + "_relay"
	db.Exec(`CREATE ROLE ` + role)
	t.Cleanup(func() { db.Exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role) })
	db.Exec(`GRANT USAGE ON SCHEMA walpost TO ` + role + `; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walpost TO ` + role +
		`; GRANT SELECT, UPDATE (published_at, attempts) ON outbox TO ` + role)
	pool, err := openAs(t, db, role)
	if err != nil {
		t.Fatal(err)
	}
	table, err := lessons().Inspect(t.Context(), db.Pinned)
	if err != nil {
		t.Fatal(err)
	}
	store := debt.NewStore(pool, slot)
	store.Use([]*outbox.Table{table})
	record(t, store, "a", events...)
	owed := waiting(t, store, "a")
	pay(t, store, "a", 100, lane.Paid{Event: owed[0].Event})
	want(t, "discarded", discard(t, store, debt.Filter{Subscriber: "a"}), 1)
	if err := store.Forget(t.Context(), "a", "me", ""); err != nil {
		t.Fatal(err)
	}
	markRows(t, store)
	want(t, "marked", marked(db), "e1:0 e2:0")
}
