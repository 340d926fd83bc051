package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// A mark that is not true shows when the slot is lost: the repair leaves out what is marked. So each of these
// tests ends by losing the slot and comparing what the subscribers have had with the outbox.

// loseSlotAndCompare drops the slot of a relay that has ended, lets it repair with subscribers that are well, and
// compares: each has had the events that are for it, and at last every row is marked.
func loseSlotAndCompare(t *testing.T, db *testdb.DB, o relay.Options, want map[*changing][]string) {
	t.Helper()
	db.Exec(dropSlot, o.Slot)
	for sub := range want {
		sub.behave(taking)
	}
	r := nextLife(t, o)
	eventually(t, "every row is marked after the repair", func() bool { return unmarked(db) == 0 })
	for sub, ids := range want {
		eventually(t, fmt.Sprintf("%s has had %v", sub.Name(), ids), func() bool {
			had := sub.Delivered()
			return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(had, id) })
		})
	}
	r.shutDown()
}

// unwilling takes nothing, and wants no event a second time.
func unwilling(context.Context, subscriber.Delivery) error {
	return subscriber.Permanent(errors.New("no event for me"))
}

// nextLife starts a relay once more with the same options.
func nextLife(t *testing.T, o relay.Options) *running {
	t.Helper()
	o.Registry = prometheus.NewRegistry()
	return streaming(t, o)
}

// killable is a relay with several subscribers whose names stay the same over its lives.
func killable(t *testing.T, db *testdb.DB, subs ...*changing) relay.Options {
	t.Helper()
	var list []subscriber.Subscriber
	for _, sub := range subs {
		list = append(list, sub)
	}
	return options(t, db, list...)
}

// awaitMarks returns when everything has been looked at that was still to be marked. The row of an event that no one is owed,
// and that is gone, comes behind the others.
func awaitMarks(t *testing.T, db *testdb.DB, o relay.Options) {
	t.Helper()
	end, err := event.ParseLSN(db.Text(`SELECT pg_current_wal_insert_lsn()::text`))
	if err != nil {
		t.Fatal(err)
	}
	last := &event.Event{Source: "lessons", ID: "the last to be marked", Occurrence: "never", Row: "-1", Position: event.Position{Epoch: 1, Commit: end - 1}, Bound: end}
	err = postgres.InTx(t.Context(), db.Pinned, func(tx pgx.Tx) error {
		return peopleOf(t, db, o).MarkLater(t.Context(), tx, []lane.Owed{{Event: last}})
	})
	if err != nil {
		t.Fatal(err)
	}
	if db.Int(`SELECT count(*) FROM walpost.owed WHERE event_id = $1`, last.ID) == 0 {
		t.Fatal("nothing is to be marked")
	}
	eventually(t, "the marks", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE event_id = $1 AND mark`, last.ID) == 0
	})
}

// S-20: a new subscriber wants few of the rows that it begins with.
func TestMark_aPassForANewSubscriberMarksNoRow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	old, late := newChanging("old", away), newChanging("late", taking)
	streaming(t, killable(t, db, old)).shutDown()
	ids := numbered("away", 5)
	insertAll(db, "a", ids)

	o := killable(t, db, old, late)
	o.Subscriptions[1].FromBeginning = true
	o.Subscriptions[1].Filter = event.Filter{Events: []string{"invoice.*"}}
	r, kill := startMortal(t, db, o)
	eventually(t, "the old one is tried", func() bool { return r.of("old").Failed > 0 })
	awaitMarks(t, db, o)
	if got := unmarked(db); got != 5 {
		t.Errorf("%d rows wait for a mark, want the 5 that no subscriber has had", got)
	}
	kill()
	loseSlotAndCompare(t, db, o, map[*changing][]string{old: ids, late: nil})
}

// S-21: the debt of one is paid, and the event is open for another one.
func TestMark_waitsForEverySubscriberAfterTheDebtOfOneIsPaid(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	old, late := newChanging("old", away), newChanging("late", taking)
	streaming(t, killable(t, db, old)).shutDown()
	insert(db, "r", "a")

	o := killable(t, db, old, late)
	o.Subscriptions[1].FromBeginning = true
	r, kill := startMortal(t, db, o)
	eventually(t, "the new one has it", func() bool { return len(late.Delivered()) == 1 && owed(db, "late", "waiting") == 0 })
	eventually(t, "the old one is tried", func() bool { return r.of("old").Failed > 1 })
	awaitMarks(t, db, o)
	if got := unmarked(db); got != 1 {
		t.Error("the row is marked, and the old subscriber has not had the event")
	}
	kill()
	loseSlotAndCompare(t, db, o, map[*changing][]string{old: {"r"}, late: {"r"}})
}

// S-22: a person sends an event again, or gives it up, that is open for another subscriber.
func TestMark_waitsForEverySubscriberAfterWhatAPersonDid(t *testing.T) {
	t.Parallel()
	byHand := func(t *testing.T, what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	// deadReplay replays the event to the one that has had it, and lets it refuse.
	deadReplay := func(t *testing.T, db *testdb.DB, o relay.Options, well *changing) {
		t.Helper()
		well.behave(unwilling)
		asked := askForReplay(t, o, replay.Request{Subscriber: "well", Source: "lessons"})
		awaitReplay(t, o, asked.ID, "the replay is done", isDone)
		if got := owed(db, "well", "dead"); got != 1 {
			t.Fatalf("%d dead letters of the replay, want 1", got)
		}
		well.behave(taking)
	}
	for name, act := range map[string]func(t *testing.T, db *testdb.DB, o relay.Options, well *changing){
		"owed add": func(t *testing.T, db *testdb.DB, o relay.Options, well *changing) {
			_, _, err := peopleOf(t, db, o).Add(t.Context(), "well", []string{"e"}, lane.StateWaiting, "ada", "once more")
			byHand(t, "add", err)
			eventually(t, "it is sent once more", func() bool { return len(well.Delivered()) == 2 && owed(db, "well", "waiting") == 0 })
		},
		"owed add and discard": func(t *testing.T, db *testdb.DB, o relay.Options, _ *changing) {
			_, _, err := peopleOf(t, db, o).Add(t.Context(), "well", []string{"e"}, lane.StateDead, "ada", "once more")
			byHand(t, "add", err)
			_, err = peopleOf(t, db, o).Discard(t.Context(), debt.Filter{Subscriber: "well"}, "ada", "no")
			byHand(t, "discard", err)
		},
		"redrive of a replay's dead letter": func(t *testing.T, db *testdb.DB, o relay.Options, well *changing) {
			deadReplay(t, db, o, well)
			_, err := peopleOf(t, db, o).Redrive(t.Context(), debt.Filter{Subscriber: "well"}, "ada", "try")
			byHand(t, "redrive", err)
			eventually(t, "it is sent once more", func() bool {
				return len(well.Delivered()) == 2 && owed(db, "well", "dead") == 0 && owed(db, "well", "waiting") == 0
			})
		},
		"discard of a replay's dead letter": func(t *testing.T, db *testdb.DB, o relay.Options, well *changing) {
			deadReplay(t, db, o, well)
			_, err := peopleOf(t, db, o).Discard(t.Context(), debt.Filter{Subscriber: "well"}, "ada", "no")
			byHand(t, "discard", err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			old, well := newChanging("old", away), newChanging("well", taking)
			o := killable(t, db, old, well)
			r, kill := startMortal(t, db, o)
			insert(db, "e", "a")
			eventually(t, "the one that is well has it", func() bool { return slices.Contains(well.Delivered(), "e") })
			act(t, db, o, well)
			tried := r.of("old").Failed
			eventually(t, "the other one is tried again", func() bool { return r.of("old").Failed > tried })
			awaitMarks(t, db, o)
			if got := unmarked(db); got != 1 {
				t.Error("the row is marked, and one subscriber has not had the event")
			}
			kill()
			loseSlotAndCompare(t, db, o, map[*changing][]string{old: {"e"}, well: {"e"}})
		})
	}
}

// peopleOf is the debt as people change it, on the sources of the options.
func peopleOf(t *testing.T, db *testdb.DB, o relay.Options) *debt.Store {
	t.Helper()
	store := debt.NewStore(db.Pinned, o.Slot)
	var tables []*outbox.Table
	for _, source := range o.Sources {
		table, err := source.Inspect(t.Context(), db.Pinned)
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	store.Use(tables)
	return store
}

// swallow makes the table keep its rows as they are: BEFORE UPDATE returns what it is given here.
func swallow(db *testdb.DB, returns string) {
	db.Exec(`CREATE FUNCTION public.append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN ` + returns + `; END $$`)
	db.Exec(`CREATE TRIGGER keep_as_it_is BEFORE UPDATE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.append_only()`)
}

// S-24: what keeps the row as it is is named, and nothing is confirmed meanwhile.
func TestMark_thatDoesNotTakeStopsTheConfirmAndNamesWhy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(db *testdb.DB, role string)
		heal  func(db *testdb.DB, role string)
		words []string
	}{
		"a trigger returns NULL": {
			func(db *testdb.DB, _ string) { swallow(db, "NULL") },
			func(db *testdb.DB, _ string) { db.Exec(`DROP TRIGGER keep_as_it_is ON public.outbox`) },
			[]string{"keep_as_it_is", "public.outbox", "mark: off"},
		},
		"a trigger returns OLD": {
			func(db *testdb.DB, _ string) { swallow(db, "OLD") },
			func(db *testdb.DB, _ string) { db.Exec(`DROP TRIGGER keep_as_it_is ON public.outbox`) },
			[]string{"keep_as_it_is", "public.outbox", "mark: off"},
		},
		"a trigger raises": {
			func(db *testdb.DB, _ string) {
				db.Exec(`CREATE FUNCTION public.append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'rows are never changed'; END $$`)
				db.Exec(`CREATE TRIGGER keep_as_it_is BEFORE UPDATE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.append_only()`)
			},
			func(db *testdb.DB, _ string) { db.Exec(`DROP TRIGGER keep_as_it_is ON public.outbox`) },
			[]string{"rows are never changed", "keep_as_it_is", "public.outbox", "mark: off"},
		},
		"a rule": {
			func(db *testdb.DB, _ string) {
				db.Exec(`CREATE RULE keep_it AS ON UPDATE TO public.outbox DO INSTEAD NOTHING`)
			},
			func(db *testdb.DB, _ string) { db.Exec(`DROP RULE keep_it ON public.outbox`) },
			[]string{"keep_it", "public.outbox", "mark: off"},
		},
		"row level security": {
			func(db *testdb.DB, _ string) { db.Exec(`ALTER TABLE public.outbox ENABLE ROW LEVEL SECURITY`) },
			func(db *testdb.DB, _ string) { db.Exec(`ALTER TABLE public.outbox DISABLE ROW LEVEL SECURITY`) },
			[]string{"row level security", "BYPASSRLS", "mark: off"},
		},
		"a right": {
			func(db *testdb.DB, role string) { db.Exec(`REVOKE UPDATE ON public.outbox FROM ` + role) },
			func(db *testdb.DB, role string) { db.Exec(`GRANT UPDATE ON public.outbox TO ` + role) },
			[]string{"GRANT", "UPDATE", "published_at", "mark: off"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub := newChanging("sub", taking)
			owner := killable(t, db, sub)
			streaming(t, owner).shutDown() // what only the owner may make is there
			role, dsn := role(t, db, "LOGIN REPLICATION")
			db.Exec(`GRANT USAGE ON SCHEMA walpost, public TO ` + role)
			db.Exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walpost TO ` + role)
			db.Exec(`GRANT USAGE ON ALL SEQUENCES IN SCHEMA walpost TO ` + role)
			db.Exec(`GRANT SELECT, UPDATE ON public.outbox TO ` + role)
			o, log := logged(t, killable(t, db, sub))
			o.Pool, o.ReplicationURL = openPool(t, dsn, 4), dsn
			r := nextLife(t, o)
			test.spoil(db, role)
			insert(db, "e", "a")
			eventually(t, "it is delivered", func() bool { return len(sub.Delivered()) > 0 })
			eventually(t, "the reason in /ready", func() bool {
				h := r.Health()
				text := strings.Join(h.Problems, "\n")
				return !h.Ready && !slices.ContainsFunc(test.words, func(word string) bool { return !strings.Contains(text, word) })
			})
			at := r.Progress().Confirmed
			insert(db, "later", "a")
			eventually(t, "the later one is delivered", func() bool { return len(sub.Delivered()) > 1 })
			if got := r.Progress().Confirmed; got > at {
				t.Errorf("%v is confirmed after %v, though the row is not marked", got, at)
			}
			if text := log.String(); strings.Contains(text, "another poller") {
				t.Error("it is told as another poller")
			}
			test.heal(db, role)
			eventually(t, "all rows are marked", func() bool { return unmarked(db) == 0 })
			eventually(t, "it is well", func() bool { return r.Health().Ready })
			r.shutDown()
			loseSlotAndCompare(t, db, owner, map[*changing][]string{sub: {"e", "later"}})
			if got := sub.Delivered(); !slices.Equal(got, []string{"e", "later"}) {
				t.Errorf("delivered %v, want each once: the marks were true", got)
			}
		})
	}
}

// S-26: what was read once of a table changes: the relay looks again when a mark fails.
func TestMark_looksAtTheTableAgainWhenItsKeyHasAnotherType(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`DROP TABLE outbox`)
	db.Exec(`CREATE TABLE outbox (id int PRIMARY KEY, event_id text, event_type text, partition_key text, payload jsonb, published_at timestamptz)`)
	sub := newChanging("sub", taking)
	o := killable(t, db, sub)
	r := nextLife(t, o)
	row := func(n int64, id string) {
		db.Exec(`INSERT INTO outbox (id, event_id, event_type, partition_key, payload) VALUES (`+fmt.Sprint(n)+`, $1, 'x', 'a', '{}')`, id)
	}
	row(1, "small")
	eventually(t, "its mark", func() bool { return unmarked(db) == 0 })
	db.Exec(`ALTER TABLE outbox ALTER COLUMN id TYPE bigint`)
	row(3_000_000_000, "large")
	eventually(t, "it is delivered", func() bool { return slices.Contains(sub.Delivered(), "large") })
	eventually(t, "its mark", func() bool { return unmarked(db) == 0 })
	eventually(t, "it is well", func() bool { return r.Health().Ready })
	r.shutDown()
	loseSlotAndCompare(t, db, o, map[*changing][]string{sub: {"small", "large"}})
}

// S-25: one locked row stops neither the confirm nor, with a full window, the other subscribers.
func TestMark_ofALockedRowWaitsOutsideTheWindow(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, nil)) // the making of other slots waits for the transaction that holds the lock
	sub, other := newChanging("sub", taking), newChanging("other", taking)
	o := killable(t, db, sub, other)
	o.Window.Events = 4
	handle, release := blockingOne("locked")
	defer release()
	sub.behave(handle)
	r, kill := startMortal(t, db, o)
	insert(db, "locked", "a")
	eventually(t, "it is in its handler", func() bool { return len(sub.Calls()) > 0 })
	locker := session(t, db.DSN)
	mustExec(t, locker, `BEGIN`)
	mustExec(t, locker, `SELECT FROM outbox WHERE event_id = 'locked' FOR UPDATE`)
	release()
	more := numbered("more", 20)
	insertAll(db, "b", more)
	eventually(t, "the others are delivered to both", func() bool { return len(sub.Delivered()) == 21 && len(other.Delivered()) == 21 })
	eventually(t, "and marked, but the one that is locked", func() bool { return unmarked(db) == 1 })
	last := lsn(t, db.Text(`SELECT pg_current_wal_insert_lsn()::text`))
	insert(db, "last", "b")
	eventually(t, "the confirm goes on", func() bool { return confirmed(t, db) > last })
	if !r.Health().Ready {
		t.Errorf("it is not ready: %+v", r.Health())
	}
	kill() // what is pending survives it
	r = nextLife(t, o)
	if got := unmarked(db); got != 1 {
		t.Errorf("%d rows are not marked, want the one that is locked", got)
	}
	mustExec(t, locker, `COMMIT`)
	eventually(t, "the mark, when the row is free", func() bool { return unmarked(db) == 0 })
	eventually(t, "nothing is kept of it", func() bool { return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'paid' AND mark`) == 0 })
	r.shutDown()
	loseSlotAndCompare(t, db, o, map[*changing][]string{sub: append([]string{"locked", "last"}, more...), other: append([]string{"locked", "last"}, more...)})
	if got := len(sub.Delivered()); got != 22 {
		t.Errorf("%d deliveries, want each of 22 once", got)
	}
}

// S-23: a mark stands for the subscribers of one slot.
func TestMark_oneSlotMarksATable(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first, second := newChanging("sub", taking), newChanging("sub", taking)
	one := killable(t, db, first)
	r := nextLife(t, one)
	two := killable(t, db, second)
	two.Slot += "_2"
	t.Cleanup(func() {
		db.Exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, two.Slot)
	})
	wantWords(t, start(t, two).refused(), one.Slot, "public.outbox", "mark: off", "DELETE FROM walpost.slots")
	if got := db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, two.Slot); got != 0 {
		t.Error("the slot of the one that was refused is there")
	}

	unmarking := *lessons()
	unmarking.Mark = false
	two = oneSource(killable(t, db, second), &unmarking)
	two.Slot += "_2"
	other := nextLife(t, two)
	insert(db, "e", "a")
	eventually(t, "both have it", func() bool { return len(first.Delivered()) == 1 && len(second.Delivered()) == 1 })
	eventually(t, "the first has marked it", func() bool { return unmarked(db) == 0 })
	other.shutDown()
	r.shutDown()
	loseSlotAndCompare(t, db, one, map[*changing][]string{first: {"e"}})

	// The first one is given up: what says so makes room for the second.
	db.Exec(dropSlot, one.Slot)
	db.Exec(`DELETE FROM walpost.slots WHERE slot = $1`, one.Slot)
	two = killable(t, db, second)
	two.Slot += "_2"
	r = nextLife(t, two)
	insert(db, "f", "a")
	eventually(t, "the second has marked it", func() bool { return unmarked(db) == 0 })
	r.shutDown()
}

// S-29: a person adds an event while no relay runs, and the next one's stream has still to bring it.
func TestAdd_isKnownWhenTheStreamBringsTheEvent(t *testing.T) {
	t.Parallel()
	for state, want := range map[lane.State]int64{lane.StateWaiting: 1, lane.StateDead: 0} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub, other := newChanging("sub", taking), newChanging("other", taking)
			o := killable(t, db, sub, other)
			streaming(t, o).shutDown()
			insert(db, "e", "a")
			if _, missing, err := peopleOf(t, db, o).Add(t.Context(), "sub", []string{"e"}, state, "ada", "by hand"); err != nil || len(missing) > 0 {
				t.Fatalf("add: %v, not found %q", err, missing)
			}
			insert(db, "next", "a")
			r := nextLife(t, o)
			for _, s := range []*changing{sub, other} {
				eventually(t, s.Name()+" has what came after", func() bool { return slices.Contains(s.Delivered(), "next") })
			}
			eventually(t, "nothing waits", func() bool { return owed(db, "sub", "waiting") == 0 })
			r.shutDown()
			if got := int64(len(slices.DeleteFunc(sub.Delivered(), func(id string) bool { return id != "e" }))); got != want {
				t.Errorf("%d deliveries of the event that a person made %s, want %d: %q", got, state, want, sub.Delivered())
			}
			if got := owed(db, "sub", "dead"); got != 1-want {
				t.Errorf("%d dead letters, want %d", got, 1-want)
			}
		})
	}
}

// S-27: a repair uses what it knows: an old dead letter of one is no reason to send the event to all again.
func TestRepair_sendsNothingAgainThatAPositionTells(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	picky, counting := newChanging("picky", unwilling), newChanging("counting", taking)
	o := killable(t, db, picky, counting)
	r := nextLife(t, o)
	insertAll(db, "a", numbered("old", 3))
	eventually(t, "dead letters of one", func() bool { return owed(db, "picky", "dead") == 3 })
	eventually(t, "the other one has all", func() bool { return len(counting.Delivered()) == 3 })
	insert(db, "later", "b")
	eventually(t, "one more", func() bool { return owed(db, "picky", "dead") == 4 && len(counting.Delivered()) == 4 })
	r.shutDown()
	for range 2 { // and once more, when no event has come in between
		db.Exec(dropSlot, o.Slot)
		r = nextLife(t, o)
		eventually(t, "the repair is over, nothing waits", func() bool { return owed(db, "counting", "waiting") == 0 && owed(db, "picky", "waiting") == 0 })
		r.shutDown()
	}
	if got, want := len(counting.Delivered()), 4; got != want {
		t.Errorf("the other one had %d deliveries, want each of the %d events once", got, want)
	}
	if got := owed(db, "picky", "dead"); got != 4 {
		t.Errorf("%d dead letters, want 4 as before", got)
	}
	r = nextLife(t, o)
	picky.behave(taking)
	if _, err := peopleOf(t, db, o).Redrive(t.Context(), debt.Filter{Subscriber: "picky"}, "ada", "try"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "every row is marked", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	ids := append(numbered("old", 3), "later")
	loseSlotAndCompare(t, db, o, map[*changing][]string{picky: ids, counting: ids})
}
