package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-22: a receiver that is dead for good holds WAL up to the budget and not beyond; the other one notices
// nothing, and in the end everything is paid.
func TestRelay_holdsWALForADebtUpToTheBudgetAndThenLetsGo(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, nil)) // WAL belongs to a server, and it is counted here
	well, dead := newChanging("well", taking), newChanging("dead", away)
	o := owing(options(t, db, well, dead))
	o.WALBudget = 8 << 20
	r := streaming(t, o)
	insertAll(db, "a", numbered("e", 10))
	first := well.await(t, "e-0")
	awaitOwed(t, db, "dead", 10)

	junk(db, 2)
	held := func() float64 { return metric(t, o, "walpost_holding_wal_bytes", "subscriber=dead") }
	eventually(t, "the WAL that is held is told", func() bool { return held() > 2<<20 })
	if got := confirmed(t, db); got > first.Position.Commit {
		t.Errorf("confirmed %v below the budget, beyond the owed event at %v", got, first.Position.Commit)
	}
	if got := metric(t, o, "walpost_holding_wal_bytes", "subscriber=well"); got != 0 {
		t.Errorf("the other subscriber is said to hold %v bytes", got)
	}
	// All its events have one key, so it may be in debt as a whole or with that key.
	inDebt := func(name string) bool {
		got := metric(t, o, "walpost_in_debt", "subscriber="+name)+metric(t, o, "walpost_keys_in_debt", "subscriber="+name) > 0
		if p := r.of(name); (p.InDebt || p.KeysInDebt > 0) != got {
			t.Errorf("the metrics of %s say in debt: %v, the progress %+v", name, got, p)
		}
		return got
	}
	if !inDebt("dead") || inDebt("well") {
		t.Errorf("in debt: the dead one %v, the other one %v, want only the dead one", inDebt("dead"), inDebt("well"))
	}
	if h := r.Health(); !h.Ready {
		t.Errorf("debt alone fails the health check: %+v", h)
	}

	junk(db, 12)
	insert(db, "late", "a")
	eventually(t, "the slot lets go", passed(t, db, first))
	eventually(t, "nothing is held any more", func() bool { return held() == 0 })
	well.await(t, "late")
	awaitOwed(t, db, "dead", 11)

	dead.behave(taking)
	want := append(numbered("e", 10), "late")
	if got := dead.AwaitDelivered(t, 11); !slices.Equal(got, want) {
		t.Errorf("paid %v, want %v", got, want)
	}
	if got := well.Delivered(); !slices.Equal(got, want) {
		t.Errorf("the other one got %v, want %v", got, want)
	}
	eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && db.Int(`SELECT count(*) FROM walpost.owed`) == 0 })
}

// F-08: while the debt cannot be written, what it is about stays open and the slot stays before it, over a
// kill too, and the health check says so.
func TestRelay_keepsAnEventOpenWhileItsDebtIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	allow := refuse(db, "walpost.owed")
	refused := func(r *running, o relay.Options) {
		t.Helper()
		eventually(t, "refusals are counted", func() bool { return metric(t, o, "walpost_debt_errors_total", "subscriber=dead") >= 2 })
		eventually(t, "the health check says it", func() bool { return !r.Health().Ready })
		wantWords(t, errors.New(fmt.Sprint(r.Health().Problems)), `"dead"`, "no room here")
		if got := r.of("dead").Open; got != 1 {
			t.Errorf("%d deliveries are open, want 1", got)
		}
	}
	well, dead := newChanging("well", taking), newChanging("dead", away)
	o := owing(options(t, db, well, dead))
	o.WALBudget = 0 // nothing is held for debt, but this is none yet
	r, kill := startMortal(t, db, o)
	insert(db, "e", "a")
	open := dead.await(t, "e")
	refused(r, o)
	if got := confirmed(t, db); got > open.Position.Commit {
		t.Errorf("confirmed %v, beyond the open event at %v", got, open.Position.Commit)
	}
	kill()

	o = owing(options(t, db, newChanging("well", taking), newChanging("dead", away)))
	o.WALBudget = 0
	r = streaming(t, o)
	refused(r, o)
	allow()
	eventually(t, "the slot has passed the event", passed(t, db, open))
	if got := db.Texts(`SELECT subscriber || '/' || event_id || '/' || state FROM walpost.owed`); !slices.Equal(got, []string{"dead/e/waiting"}) {
		t.Errorf("owed is %v, want exactly the one delivery", got)
	}
	eventually(t, "ready again", func() bool { return r.Health().Ready })
}

// F-08: the health check tells of a refused dead letter although other events move.
func TestRelay_saysThatADeadLetterIsRefusedWhileOthersFlow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	allow := refuse(db, "walpost.owed")
	sub := newChanging("sub", func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == "bad" {
			return subscriber.Permanent(errors.New("never"))
		}
		return nil
	})
	o := options(t, db, sub)
	r := streaming(t, o)
	insert(db, "bad", "a")
	eventually(t, "the health check says it", func() bool { return !r.Health().Ready })
	wantWords(t, errors.New(fmt.Sprint(r.Health().Problems)), `dead letter of subscriber "sub"`, "no room here")
	insertAll(db, "b", numbered("good", 5))
	sub.AwaitDelivered(t, 5)
	if r.Health().Ready {
		t.Error("ready although the dead letter is still refused")
	}
	allow()
	eventually(t, "ready again", func() bool { return r.Health().Ready })
	if got, want := dead(db), []string{"sub/bad"}; !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
}

// F-16: a wrong secret at the receiver for a while, and few attempts until an event counts as poison.
func TestRelay_losesNothingOfAWindowInWhichTheReceiverRefuses(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", func(context.Context, subscriber.Delivery) error { return errors.New("401 Unauthorized: wrong secret") })
	o := owing(options(t, db, sub))
	o.Subscriptions[0].Lane.MaxAttempts = 3
	r := streaming(t, o)
	insertAll(db, "a", numbered("during", 10))
	sub.AwaitCalls(t, 20)
	awaitOwed(t, db, "sub", 10)
	if got := db.Int(`SELECT count(*) FROM walpost.owed WHERE error LIKE '401 Unauthorized%' AND attempts > 0`); got == 0 {
		t.Error("no owed delivery says why it was refused")
	}
	if got := r.of("sub"); got.Failed < 20 || !strings.Contains(got.LastError, "401") {
		t.Errorf("progress %+v, want the failures counted and named", got)
	}
	sub.behave(taking)
	insertAll(db, "a", numbered("after", 10))
	want := append(numbered("during", 10), numbered("after", 10)...)
	if got := sub.AwaitDelivered(t, 20); !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	if got := dead(db); len(got) > 0 {
		t.Errorf("dead letters %v, want none", got)
	}
}

// F-17: of two transactions the one with the lower id commits later.
func TestRelay_missesNoRowThatCommitsAfterAHigherId(t *testing.T) {
	t.Parallel()
	const insertOne = `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', 'a', '{}')`
	t.Run("live and in debt", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		sub := newChanging("sub", taking)
		o := owing(options(t, db, sub))
		o.Sources[0].Retention = time.Nanosecond // whatever may be deleted is
		streaming(t, o)
		slow := session(t, db.DSN)
		mustExec(t, slow, `BEGIN`)
		mustExec(t, slow, insertOne, "live-low")
		insert(db, "live-high", "a")
		sub.AwaitDelivered(t, 1)
		mustExec(t, slow, `COMMIT`)
		sub.AwaitDelivered(t, 2)

		sub.behave(away)
		mustExec(t, slow, `BEGIN`)
		mustExec(t, slow, insertOne, "owed-low")
		insert(db, "owed-high", "a")
		awaitOwed(t, db, "sub", 1)
		mustExec(t, slow, `COMMIT`)
		awaitOwed(t, db, "sub", 2)
		sub.behave(taking)
		if got, want := sub.AwaitDelivered(t, 4), []string{"live-high", "live-low", "owed-high", "owed-low"}; !slices.Equal(got, want) {
			t.Errorf("delivered %v, want %v", got, want)
		}
	})
	t.Run("while the slot is made", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		sub := newChanging("sub", taking)
		slow := session(t, db.DSN)
		mustExec(t, slow, `BEGIN`)
		mustExec(t, slow, insertOne, "low")
		insert(db, "before", "a")
		r := start(t, options(t, db, sub))
		eventually(t, "the slot waits for the open transaction", func() bool {
			return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, db.Name) == 1
		})
		insert(db, "high", "a")
		mustExec(t, slow, `COMMIT`)
		r.awaitStreaming()
		insert(db, "after", "a")
		sub.AwaitDelivered(t, 4)
		once(t, sub, []string{"before", "low", "high", "after"})
	})
}

// The owner of the outbox deletes rows that are owed. Where they are not ours there is a copy.
func TestRelay_paysFromTheCopyWhenTheRowIsGone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", away)
	o := owing(options(t, db, sub))
	o.Sources[0].Ours = false
	streaming(t, o)
	insertAll(db, "a", numbered("e", 5))
	awaitOwed(t, db, "sub", 5)
	db.Exec(`DELETE FROM outbox`)
	sub.behave(taking)
	if got, want := sub.AwaitDelivered(t, 5), numbered("e", 5); !slices.Equal(got, want) {
		t.Errorf("paid %v, want %v", got, want)
	}
	for _, call := range sub.Calls() {
		if call.Payload != `{"n": 1}` {
			t.Errorf("%s has payload %s", call.EventID, call.Payload)
		}
	}
	eventually(t, "nothing is owed", func() bool { return db.Int(`SELECT count(*) FROM walpost.owed`) == 0 })
}

// Where only walpost may delete rows there is no copy: that is a loss, and it is said.
func TestRelay_countsALossWhenARowOfOursIsGone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", away)
	o := owing(options(t, db, sub))
	r := streaming(t, o)
	insertAll(db, "a", []string{"gone", "stays"})
	awaitOwed(t, db, "sub", 2)
	db.Exec(`DELETE FROM outbox WHERE event_id = 'gone'`)
	// The event that is in hand is sent from memory; after a restart it is read again.
	r.shutDown()
	first := o
	sub = newChanging("sub", taking)
	o = owing(options(t, db, sub))
	r = streaming(t, o)
	if got, want := sub.AwaitDelivered(t, 1), []string{"stays"}; !slices.Equal(got, want) {
		t.Errorf("paid %v, want %v", got, want)
	}
	eventually(t, "the dead letter", func() bool { return slices.Equal(dead(db), []string{"sub/gone"}) })
	if got := db.Text(`SELECT error FROM walpost.owed WHERE state = 'dead'`); got != debt.Gone {
		t.Errorf("reason %q, want %q", got, debt.Gone)
	}
	// If the first life had not read the event before its row went, it has met the loss itself.
	const counter, labels = "walpost_deliveries_total", "outcome=dead,subscriber=sub"
	if got := metric(t, first, counter, labels) + metric(t, o, counter, labels); got != 1 {
		t.Errorf("%v dead letters are counted, want 1", got)
	}
	eventually(t, "the loss is counted", func() bool { return r.of("sub").Lost == 1 })
	h := r.Health()
	wantWords(t, errors.New(fmt.Sprint(h.Problems)), `1 event is lost for subscriber "sub"`)
	if !h.Ready {
		t.Error("not ready for what no relay can fix")
	}
}

// A stop with a subscriber that is away takes no longer than what is in hand; the next life pays what is
// open, in order, and repeats nothing.
func TestRelay_stopsQuicklyWithADeadSubscriberAndPaysAfterwards(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	well, dead := newChanging("well", taking), newChanging("dead", away)
	o := options(t, db, well, dead) // nothing falls into debt before the stop
	o.Drain = time.Minute
	r := streaming(t, o)
	insertAll(db, "a", numbered("a", 20))
	insertAll(db, "b", numbered("b", 20))
	well.AwaitDelivered(t, 40)
	dead.AwaitCalls(t, 5)
	begun := time.Now()
	r.shutDown()
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the stop took %v, with a drain of a minute", took)
	}
	if got := owed(db, "dead", "waiting"); got != 40 {
		t.Errorf("%d deliveries are owed after the stop, want 40", got)
	}
	insertAll(db, "a", numbered("meanwhile", 5))

	well, dead = newChanging("well", taking), newChanging("dead", taking)
	streaming(t, options(t, db, well, dead))
	dead.AwaitDelivered(t, 45)
	for key, want := range map[string][]string{"a": append(numbered("a", 20), numbered("meanwhile", 5)...), "b": numbered("b", 20)} {
		if got := ofKey(dead.Calls(), key); !slices.Equal(got, want) {
			t.Errorf("key %s came as %v, want %v", key, got, want)
		}
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	once(t, well, numbered("meanwhile", 5))
}

// ofKey are the events of one key that were handed over, in that order.
func ofKey(calls []subscribertest.Call, key string) []string {
	return ids(slices.DeleteFunc(slices.Clone(calls), func(c subscribertest.Call) bool { return c.Key != key }))
}

// F-65: a delivery that has failed for years waits no longer, and no shorter, than the others.
func TestRelay_waitsNoLongerThanTheCapWhateverTheNumberOfAttempts(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", away)
	o := owing(options(t, db, sub))
	r := streaming(t, o)
	insert(db, "e", "a")
	awaitOwed(t, db, "sub", 1)
	r.shutDown()
	for _, attempts := range []int{40, 64, 310, 100_000} {
		db.Exec(`UPDATE walpost.owed SET attempts = $1`, attempts)
		sub = newChanging("sub", away)
		o = owing(options(t, db, sub))
		o.Subscriptions[0].Lane.Backoff.Initial = 20 * time.Millisecond
		r = streaming(t, o)
		calls := sub.AwaitCalls(t, 4)
		for i := range 4 {
			if got, want := calls[i].Attempt, attempts+1+i; got != want {
				t.Errorf("attempt %d, want %d", got, want)
			}
			if i > 0 && calls[i].At.Sub(calls[i-1].At) < 20*time.Millisecond {
				t.Errorf("after %d attempts the wait is %v, want at least 20ms", calls[i].Attempt, calls[i].At.Sub(calls[i-1].At))
			}
		}
		r.shutDown()
	}
}

// The position of an event that was owed is that of its commit, on every path.
func positionsOf(events []*event.Event) []event.Position {
	positions := make([]event.Position, len(events))
	for i, ev := range events {
		positions[i] = ev.Position
	}
	return positions
}

// A debt is the same event again: position, payload and headers, by reference and from a copy.
func TestRelay_paysTheEventThatTheStreamBrought(t *testing.T) {
	t.Parallel()
	for name, ours := range map[string]bool{"by reference": true, "from a copy": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			well, dead := newChanging("well", taking), newChanging("dead", away)
			o := owing(options(t, db, well, dead))
			o.Sources[0].Ours = ours
			r := streaming(t, o)
			db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, headers)
				SELECT 'e-' || n, 'lesson.completed', 'a', jsonb_build_object('n', 12345678901234567890.123456789 + n), '{"correlation_id": "c"}'
				FROM generate_series(0, 4) n`)
			well.AwaitDelivered(t, 5)
			awaitOwed(t, db, "dead", 5)
			r.shutDown() // nothing of it stays in memory
			dead = newChanging("dead", taking)
			o = owing(options(t, db, newChanging("well", taking), dead))
			o.Sources[0].Ours = ours
			streaming(t, o)
			dead.AwaitDelivered(t, 5)
			live, paid := well.events(), dead.events()
			if got, want := positionsOf(paid), positionsOf(live); !slices.Equal(got, want) {
				t.Errorf("positions %v, want %v", got, want)
			}
			for i := range paid {
				if string(paid[i].Payload) != string(live[i].Payload) || string(paid[i].Headers) != string(live[i].Headers) || paid[i].ID != live[i].ID {
					t.Errorf("paid %s %s %s, want %s %s %s", paid[i].ID, paid[i].Payload, paid[i].Headers, live[i].ID, live[i].Payload, live[i].Headers)
				}
			}
		})
	}
}
