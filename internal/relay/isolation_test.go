package relay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// insertMany writes n events of 20 keys in one transaction.
func insertMany(db *testdb.DB, prefix string, n int) {
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT $1 || '-' || n, 'lesson.completed', 'k' || n % 20, '{}' FROM generate_series(0, $2::int - 1) n`, prefix, n)
}

// F-34: one hangs, and there are more events than the window holds, at default settings.
func TestRelay_deliversToTheOthersWhileOneHangs(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const events = 12_000
	before, after := newTally("before", taking), newTally("after", taking)
	hangs := newChanging("hangs", hanging)
	o := options(t, db, before, hangs, after)
	o.Drain = 100 * time.Millisecond
	if o.Window.Events >= events {
		t.Fatalf("the window holds %d events, so nothing is tested with %d", o.Window.Events, events)
	}
	r := streaming(t, o)
	for i := range 120 {
		insertMany(db, fmt.Sprint("e", i), events/120)
	}
	before.await(t, events)
	after.await(t, events)
	if got := r.of("hangs"); got.Delivered != 0 || got.Dead != 0 || !got.InDebt {
		t.Errorf("progress of the one that hangs: %+v, want it in debt and nothing dead", got)
	}
	if h := r.Health(); !h.Ready {
		t.Errorf("health %+v, want ready", h)
	}
}

// F-34: one key fails, the others of the same subscriber flow.
func TestRelay_deliversTheOtherKeysWhileOneFails(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", func(_ context.Context, d subscriber.Delivery) error {
		if d.Key == "k7" {
			return errors.New("not this one")
		}
		return nil
	})
	o := owing(options(t, db, sub))
	r := streaming(t, o)
	insertMany(db, "first", 200)
	sub.AwaitDelivered(t, 190)
	awaitOwed(t, db, "sub", 10)
	// Nothing but that key has come for a while, so it looks like an outage, until others come.
	insertMany(db, "second", 200)
	sub.AwaitDelivered(t, 380)
	awaitOwed(t, db, "sub", 20)
	// Alone again, the key looks like an outage once more: whether it or everything is in debt changes.
	eventually(t, "no more than the key is owed", func() bool { p := r.of("sub"); return p.InDebt || p.KeysInDebt == 1 })
	sub.behave(taking)
	sub.AwaitDelivered(t, 400)
	var want []string
	for _, prefix := range []string{"first", "second"} {
		for n := 7; n < 200; n += 20 {
			want = append(want, fmt.Sprintf("%s-%d", prefix, n))
		}
	}
	got := slices.DeleteFunc(sub.Delivered(), func(id string) bool { return !slices.Contains(want, id) })
	if !slices.Equal(got, want) {
		t.Errorf("the key came as %v, want %v", got, want)
	}
}

// F-34: nearly everyone is dead.
func TestRelay_deliversToTheOneLivingAmongFiftyDead(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	living := newTally("living", taking)
	subs := []subscriber.Subscriber{}
	for i := range 50 {
		subs = append(subs, newTally(fmt.Sprint("dead", i), away))
	}
	o := options(t, db, append(subs, living)...)
	o.Window.Events = 400 // less than there are events
	o.Drain = 100 * time.Millisecond
	r := streaming(t, o)
	insertMany(db, "e", 1000)
	living.await(t, 1000)
	for _, s := range r.Progress().Subscribers {
		if s.Name != "living" && (s.Dead > 0 || s.Delivered > 0) {
			t.Errorf("%s: %+v, want nothing delivered and nothing dead", s.Name, s)
		}
	}
}

// F-41: whatever was in hand when the process died is taken up again.
func TestRelay_takesUpAtOnceWhatAKillFoundInHand(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first := newChanging("sub", hanging)
	o := options(t, db, first)
	o.Subscriptions[0].Lane.Concurrency = 64
	o.Subscriptions[0].Lane.Timeout = time.Minute
	_, kill := startMortal(t, db, o)
	for i := range 50 {
		insert(db, fmt.Sprint("e-", i), fmt.Sprint("k-", i))
	}
	first.AwaitCalls(t, 50)
	kill()
	second := newChanging("sub", taking)
	begun := time.Now()
	streaming(t, options(t, db, second))
	second.AwaitDelivered(t, 50)
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("taken up after %v, want seconds", took)
	}
	once(t, second, numbered("e", 50))
}

// F-41: handlers that misbehave in every way cost their own key time and nothing else, and no event is ever
// in two calls at once.
func TestRelay_outlivesHandlersThatMisbehave(t *testing.T) {
	t.Parallel()
	const timeout = 200 * time.Millisecond
	for name, misbehave := range map[string]handler{
		"panics":                     func(context.Context, subscriber.Delivery) error { panic("at the disco") },
		"blocks until its deadline":  hanging,
		"returns after its deadline": func(context.Context, subscriber.Delivery) error { return lateBy(timeout / 2) },
		"ignores its context for long": func(context.Context, subscriber.Delivery) error {
			return lateBy(timeout + 1500*time.Millisecond) // beyond the grace that a handler has
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var mu sync.Mutex
			inHand, twice := make(map[string]bool), false
			sub := newChanging("sub", func(ctx context.Context, d subscriber.Delivery) error {
				mu.Lock()
				twice = twice || inHand[d.ID]
				inHand[d.ID] = true
				mu.Unlock()
				defer func() { mu.Lock(); defer mu.Unlock(); delete(inHand, d.ID) }()
				if d.Key == "bad" && d.Attempt <= 2 {
					<-time.After(timeout / 2)
					return misbehave(ctx, d)
				}
				return nil
			})
			o := options(t, db, sub)
			o.Subscriptions[0].Lane.Timeout = timeout
			o.Subscriptions[0].Lane.Concurrency = 1
			streaming(t, o)
			insertAll(db, "bad", []string{"bad-0", "bad-1"})
			insertAll(db, "good", numbered("good", 5))
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			if got := ids(sub.Calls()); slices.Index(got, "good-4") > slices.Index(got, "bad-1") {
				t.Errorf("handed over %v, want the other key not behind the bad one", got)
			}
			// Not more is handed over of the key than its first event, until that is delivered.
			if got, want := ofKey(sub.Calls(), "bad"), []string{"bad-0", "bad-0", "bad-0", "bad-1", "bad-1", "bad-1"}; !slices.Equal(got, want) {
				t.Errorf("attempts %v, want %v", got, want)
			}
			mu.Lock()
			defer mu.Unlock()
			if twice {
				t.Error("an event was in two calls at once")
			}
		})
	}
}

// lateBy does not look at any context.
func lateBy(d time.Duration) error {
	<-time.After(d)
	return errors.New("too late")
}

// A handler that never returns is named everywhere and holds its key only, also when the key has fallen
// into debt. When it does return, the key is paid in order.
func TestRelay_namesAHandlerThatNeverReturns(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	free := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(free) })
	t.Cleanup(letGo)
	sub := newChanging("sub", func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == "stuck" {
			<-free
		}
		return nil
	})
	o, log := logged(t, owing(options(t, db, sub)))
	o.Subscriptions[0].Lane.Timeout = 100 * time.Millisecond
	o.WALBudget = 0
	r := streaming(t, o)
	insertAll(db, "a", []string{"stuck", "behind-0", "behind-1"})
	stuck := sub.await(t, "stuck")
	eventually(t, "it is named", func() bool { return slices.Equal(r.of("sub").Overdue, []string{"stuck"}) })
	if got := metric(t, o, "walpost_overdue_handlers", "subscriber=sub"); got != 1 {
		t.Errorf("%v overdue handlers, want 1", got)
	}
	if !strings.Contains(log.String(), "handler does not return") || !strings.Contains(log.String(), "event=stuck") {
		t.Error("the log does not name the event")
	}
	awaitOwed(t, db, "sub", 3)
	insertAll(db, "b", numbered("other", 5))
	if got, want := sub.AwaitDelivered(t, 5), numbered("other", 5); !slices.Equal(got, want) {
		t.Errorf("delivered %v, want only the other key, %v", got, want)
	}
	eventually(t, "the slot has passed the event", passed(t, db, stuck))
	insert(db, "behind-2", "a")
	awaitOwed(t, db, "sub", 4)
	if got, want := ofKey(sub.Calls(), "a"), []string{"stuck"}; !slices.Equal(got, want) {
		t.Errorf("handed over %v while the handler runs, want %v", got, want)
	}
	letGo()
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	// What came of the first call no one knows: it returned after its deadline.
	if got, want := ofKey(sub.Calls(), "a"), []string{"stuck", "stuck", "behind-0", "behind-1", "behind-2"}; !slices.Equal(got, want) {
		t.Errorf("handed over %v, want %v", got, want)
	}
	if got := r.of("sub").Overdue; len(got) > 0 {
		t.Errorf("overdue after it returned: %v", got)
	}
}

// F-29: nothing leaves the window for longer than wal_sender_timeout, in the middle of a large transaction
// and with a handler that hangs. The session has a timeout of 10 s whatever the server's is.
func TestRelay_keepsItsSessionWhileTheWindowIsFullForLong(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"wal_sender_timeout": "2s", "logical_decoding_work_mem": "64kB"})
	db := testdb.On(t, server)
	sub, hangs := newTally("sub", taking), newTally("hangs", hanging)
	o := options(t, db, sub, hangs)
	o.Window.Events = 100
	o.Subscriptions[1].Lane.Timeout = 15 * time.Second
	o.Drain = 100 * time.Millisecond
	r := streaming(t, o)
	db.Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(2); RETURN NULL; END $$`)
	db.Exec(`CREATE TRIGGER wait BEFORE UPDATE ON walpost.slots FOR EACH STATEMENT EXECUTE FUNCTION wait()`)
	gate := session(t, db.DSN)
	mustExec(t, gate, `SELECT pg_advisory_lock(2)`)
	const events = 5_000
	insertMany(db, "e", events)
	eventually(t, "a full window", func() bool { return r.Progress().OpenEvents == 100 })
	full := time.Now()
	eventually(t, "13 seconds to pass", func() bool { return time.Since(full) > 13*time.Second })
	if got := r.Progress().OpenEvents; got != 100 {
		t.Errorf("%d events are open, want the 100 of a full window", got)
	}
	mustExec(t, gate, `SELECT pg_advisory_unlock(2)`)
	sub.await(t, events)
	insertMany(db, "single", 3)
	sub.await(t, events+3)
	if got := metric(t, o, "walpost_reconnects_total", ""); got != 0 {
		t.Errorf("%v reconnects, want none", got)
	}
	log, err := os.ReadFile(server.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "terminating walsender") {
		t.Error("the server has ended a session for its silence")
	}
}

// What a killed process has left running on the server cannot come to the debt after its successor has
// read what is owed: the successor waits for it.
func TestRelay_waitsForTransactionsThatADeadPredecessorLeftBehind(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	// At its commit, the first record of a debt waits for us.
	db.Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(3); RETURN NULL; END $$`)
	db.Exec(`CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON walpost.owed DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	gate := session(t, db.DSN)
	mustExec(t, gate, `SELECT pg_advisory_lock(3)`)
	first := newChanging("sub", away)
	_, kill := startMortal(t, db, owing(options(t, db, first)))
	insertAll(db, "a", numbered("e", 5))
	const held = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`
	eventually(t, "the debt is about to commit", func() bool { return db.Int(held) == 1 })
	kill()
	if got := db.Int(held); got != 1 {
		t.Fatalf("%d sessions hold the debt back, want the one that the dead process left", got)
	}

	second := newChanging("sub", taking)
	r := start(t, owing(options(t, db, second)))
	eventually(t, "the successor waits for it", func() bool {
		return db.Int(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
			AND wait_event <> 'advisory' AND query LIKE '%walpost.fence%'`) == 1
	})
	if got := len(second.Calls()); got != 0 || r.Health().State == relay.Streaming {
		t.Errorf("%d events were handed over in state %s, want none yet", got, r.Health().State)
	}
	mustExec(t, gate, `SELECT pg_advisory_unlock(3)`)
	if got, want := second.AwaitDelivered(t, 5), numbered("e", 5); !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	insert(db, "after", "a")
	eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
	once(t, second, append(numbered("e", 5), "after"))
}
