package relay_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// A subscriber that leaves the configuration is owed what committed before and it has not had; nothing that commits
// later is for it. Each of these tests ends by losing the slot: whatever is marked then, no one gets any more.

// insertTyped commits an event of a type.
func insertTyped(db *testdb.DB, id, eventType string) {
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, $2, 'a', '{}')`, id, eventType)
}

// owedTo are the ids of what waits for a subscriber, in order.
func owedTo(db *testdb.DB, name string) []string {
	return db.Texts(`SELECT event_id FROM walpost.owed WHERE subscriber = $1 AND state = 'waiting' ORDER BY epoch, commit_lsn, ordinal`, name)
}

// awaitDeparture waits until everything that a subscriber is to be owed is recorded.
func awaitDeparture(t *testing.T, db *testdb.DB, name string) {
	t.Helper()
	eventually(t, name+" has left", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.subscribers WHERE name = $1 AND gone_at IS NOT NULL AND wants = '[]'`, name) == 1
	})
}

// took are the ids that a subscriber has handled without an error.
func took(subs ...*changing) map[string]bool {
	ids := make(map[string]bool)
	for _, sub := range subs {
		for _, call := range sub.Calls() {
			if call.Done && call.Err == nil {
				ids[call.EventID] = true
			}
		}
	}
	return ids
}

// loseSlot makes the table the only truth that is left. The relay must have ended.
func loseSlot(t *testing.T, db *testdb.DB) {
	t.Helper()
	eventually(t, "the slot is free", func() bool {
		return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active`, db.Name) == 0
	})
	db.Exec(`SELECT pg_drop_replication_slot($1)`, db.Name)
}

// wantMarksTrue compares the marks with what was taken: a row is marked when every subscriber whose event it is has it.
func wantMarksTrue(t *testing.T, db *testdb.DB, wanted map[string][]string, had map[string]map[string]bool) {
	t.Helper()
	for _, id := range db.Texts(`SELECT event_id FROM outbox WHERE published_at IS NOT NULL`) {
		for name, ids := range wanted {
			if slices.Contains(ids, id) && !had[name][id] {
				t.Errorf("%s is marked, and %s has never had it", id, name)
			}
		}
	}
}

// S-70
func TestRelay_owesToALeaverWhatItHadOpenWhenTheProcessWasKilled(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *running, kill func()){
		"killed":  func(_ *running, kill func()) { kill() },
		"stopped": func(r *running, _ func()) { r.shutDown() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			a, b := newChanging("a", taking), newChanging("b", hanging)
			r, kill := startMortal(t, db, options(t, db, a, b))
			insert(db, "e", "a")
			a.AwaitDelivered(t, 1)
			b.AwaitCalls(t, 1)
			end(r, kill)
			insert(db, "between", "a")

			a2 := newChanging("a", taking)
			o, log := logged(t, options(t, db, a2))
			r = streaming(t, o)
			insert(db, "later", "a")
			a2.await(t, "later")
			awaitDeparture(t, db, "b")
			if got, want := owedTo(db, "b"), []string{"e", "between"}; !slices.Equal(got, want) {
				t.Errorf("owed to the one that left are %v, want %v", got, want)
			}
			for _, word := range []string{"has left the configuration", "subscriber=b", "last=between"} {
				if !strings.Contains(log.String(), word) {
					t.Errorf("the log does not say %q", word)
				}
			}
			eventually(t, "what committed after it left is marked, and nothing else", func() bool {
				return slices.Equal(db.Texts(`SELECT event_id FROM outbox WHERE published_at IS NULL ORDER BY id`), []string{"e", "between"})
			})
			eventually(t, "the slot has passed all", passed(t, db, a2.await(t, "later")))
			r.shutDown()

			loseSlot(t, db)
			a3 := newChanging("a", taking)
			r = streaming(t, options(t, db, a3))
			insert(db, "last", "a")
			a3.await(t, "last")
			if got, want := owedTo(db, "b"), []string{"e", "between"}; !slices.Equal(got, want) {
				t.Errorf("after the slot was lost %v are owed to the one that left, want %v", got, want)
			}
			r.shutDown()

			a4, b2 := newChanging("a", taking), newChanging("b", taking)
			o, log = logged(t, options(t, db, a4, b2))
			r = streaming(t, o)
			insert(db, "again", "a")
			if got, want := b2.AwaitDelivered(t, 3), []string{"e", "between", "again"}; !slices.Equal(got, want) {
				t.Errorf("back, it got %v, want %v", got, want)
			}
			if !strings.Contains(log.String(), "has no event of the time between") {
				t.Error("the log does not name the gap")
			}
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			r.shutDown()
			wantMarksTrue(t, db, map[string][]string{"a": {"e", "between", "later", "last", "again"}, "b": {"e", "between", "again"}},
				map[string]map[string]bool{"a": took(a, a2, a3, a4), "b": took(b, b2)})
		})
	}
}

// S-71
func TestRelay_keepsRowsUnmarkedUntilALeaverIsForgotten(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	b, c := newChanging("b", hanging), newChanging("c", away)
	_, kill := startMortal(t, db, owing(options(t, db, newChanging("a", taking), b, c)))
	insertAll(db, "a", numbered("e", 3))
	b.AwaitCalls(t, 1)
	awaitOwed(t, db, "c", 3)
	insert(db, "open", "b")
	b.AwaitCalls(t, 2)
	kill()

	r := streaming(t, options(t, db, newChanging("a", taking))) // both leave at once
	awaitDeparture(t, db, "b")
	awaitDeparture(t, db, "c")
	want := append(numbered("e", 3), "open")
	for _, name := range []string{"b", "c"} {
		if got := owedTo(db, name); !slices.Equal(got, want) {
			t.Errorf("%v are owed to %s, want %v", got, name, want)
		}
	}
	insert(db, "later", "a")
	eventually(t, "the later one is marked", func() bool { return unmarked(db) == 4 })
	for i, name := range []string{"b", "c"} {
		if err := book(db).Forget(t.Context(), name, "test", "gone for good"); err != nil {
			t.Fatal(err)
		}
		if i == 0 && unmarked(db) != 4 {
			t.Error("a row is marked although another one that left is owed it")
		}
	}
	eventually(t, "all marks, nothing owed", func() bool {
		db.Exec(`SELECT pg_switch_wal()`)
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE state <> 'paid'`) == 0
	})
	r.shutDown()
	loseSlot(t, db)
	a := newChanging("a", taking)
	r = streaming(t, options(t, db, a))
	insert(db, "last", "a")
	a.await(t, "last")
	if got := owedTo(db, "b"); len(got) > 0 {
		t.Errorf("%v are owed to one that was forgotten", got)
	}
	r.shutDown()
}

// S-70: the filter that counts for a leaver is the one that was in force: sources, the patterns of the configuration and
// the types that it understands.
func TestRelay_owesToALeaverOnlyWhatItWanted(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	b, c := newChanging("b", hanging), newChanging("c", hanging)
	c.Wanting("x.one")
	o := options(t, db, newChanging("a", taking), b, c)
	o.Subscriptions[1].Filter.Events = []string{"x.*"}
	_, kill := startMortal(t, db, o)
	insertTyped(db, "1", "x.one")
	insertTyped(db, "2", "y.two")
	insertTyped(db, "3", "x.two")
	b.AwaitCalls(t, 1)
	kill()

	r := streaming(t, options(t, db, newChanging("a", taking)))
	awaitDeparture(t, db, "b")
	awaitDeparture(t, db, "c")
	if got, want := owedTo(db, "b"), []string{"1", "3"}; !slices.Equal(got, want) {
		t.Errorf("%v are owed to the one with a filter, want %v", got, want)
	}
	if got, want := owedTo(db, "c"), []string{"1"}; !slices.Equal(got, want) {
		t.Errorf("%v are owed to the one that understands one type, want %v", got, want)
	}
	eventually(t, "what neither wanted is marked", func() bool { return unmarked(db) == 2 })
	r.shutDown()
}

// S-71: what stands in the debt of a leaver already stays as it is: dead, waiting, paused.
func TestRelay_leavesTheDebtOfALeaverAsItIs(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	b := newChanging("b", away)
	r, kill := startMortal(t, db, owing(options(t, db, newChanging("a", taking), b)))
	insertAll(db, "a", numbered("waits", 2))
	awaitOwed(t, db, "b", 2)
	if err := book(db).Pause(t.Context(), "b", "test", "leaving"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool { return r.of("b").Paused })
	db.Exec(`UPDATE walpost.owed SET state = 'dead' WHERE event_id = 'waits-0'`)
	insert(db, "paused", "a")
	awaitOwed(t, db, "b", 2) // waits-1 and this one
	kill()
	insert(db, "between", "a")

	r = streaming(t, options(t, db, newChanging("a", taking)))
	awaitDeparture(t, db, "b")
	if got, want := owedTo(db, "b"), []string{"waits-1", "paused", "between"}; !slices.Equal(got, want) {
		t.Errorf("%v wait for the one that left, want %v", got, want)
	}
	if got := owed(db, "b", "dead"); got != 1 {
		t.Errorf("%d dead letters, want 1", got)
	}
	r.shutDown()
	loseSlot(t, db)

	b = newChanging("b", taking)
	r = streaming(t, options(t, db, newChanging("a", taking), b))
	insert(db, "again", "a")
	awaitOwed(t, db, "b", 4)
	if got := len(b.Calls()); got > 0 || !r.of("b").Paused {
		t.Errorf("%d calls of one that a person has paused before it left", got)
	}
	if err := book(db).Resume(t.Context(), "b", "test", "back"); err != nil {
		t.Fatal(err)
	}
	if got, want := b.AwaitDelivered(t, 4), []string{"waits-1", "paused", "between", "again"}; !slices.Equal(got, want) {
		t.Errorf("resumed, it got %v, want %v", got, want)
	}
	eventually(t, "only the dead letter is unmarked", func() bool { return unmarked(db) == 1 })
	r.shutDown()
}

// leaving is a start without b that cannot record what is owed to b: it ends as if it had been killed.
func leaving(t *testing.T, db *testdb.DB) (allow func()) {
	t.Helper()
	b := newChanging("b", hanging)
	_, kill := startMortal(t, db, options(t, db, newChanging("a", taking), b))
	insert(db, "before", "a")
	b.AwaitCalls(t, 1)
	kill()
	allow = refuse(db, "walpost.owed")
	a := newChanging("a", taking)
	r, kill := startMortal(t, db, options(t, db, a))
	insert(db, "after", "a")
	after := a.await(t, "after")
	eventually(t, "it is said what cannot be recorded", func() bool {
		return strings.Contains(strings.Join(r.Health().Problems, "; "), `owed to subscriber "b", which has left the configuration, cannot be recorded`)
	})
	if h := r.Health(); h.Ready {
		t.Error("ready, although nothing of the one that left can be recorded")
	}
	if got := confirmed(t, db); got >= after.Position.Commit {
		t.Errorf("confirmed %v, beyond an event that is neither finished nor owed", got)
	}
	eventually(t, "the event that no one else waits for is marked", func() bool { return unmarked(db) == 1 })
	kill()
	return allow
}

// S-71
func TestRelay_goesOnRecordingForALeaverAfterACrash(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	leaving(t, db)()
	r := streaming(t, options(t, db, newChanging("a", taking)))
	awaitDeparture(t, db, "b")
	if got, want := owedTo(db, "b"), []string{"before"}; !slices.Equal(got, want) {
		t.Errorf("%v are owed to the one that left, want %v", got, want)
	}
	eventually(t, "what committed after it left is marked", func() bool { return unmarked(db) == 1 })
	r.shutDown()
	loseSlot(t, db)
	r = streaming(t, options(t, db, newChanging("a", taking)))
	if got, want := owedTo(db, "b"), []string{"before"}; !slices.Equal(got, want) {
		t.Errorf("after the slot was lost %v are owed to the one that left, want %v", got, want)
	}
	r.shutDown()
}

// S-71
func TestRelay_letsALeaverComeBackBeforeEverythingIsRecorded(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	leaving(t, db)()
	a, b := newChanging("a", taking), newChanging("b", taking)
	o, log := logged(t, options(t, db, a, b))
	r := streaming(t, o)
	insert(db, "again", "a")
	if got, want := b.AwaitDelivered(t, 2), []string{"before", "again"}; !slices.Equal(got, want) {
		t.Errorf("back, it got %v, want %v", got, want)
	}
	if !strings.Contains(log.String(), "has no event of the time between") {
		t.Error("the log does not name the gap")
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	// The gap stays one in the next life.
	b2 := newChanging("b", taking)
	r = streaming(t, options(t, db, newChanging("a", taking), b2))
	insert(db, "last", "a")
	if got, want := b2.AwaitDelivered(t, 1), []string{"last"}; !slices.Equal(got, want) {
		t.Errorf("after a restart it got %v, want %v", got, want)
	}
	r.shutDown()
	wantMarksTrue(t, db, map[string][]string{"b": {"before", "again", "last"}}, map[string]map[string]bool{"b": took(b, b2)})
}

// S-71: the slot is lost when a subscriber leaves, or while what is owed to it is being recorded: the table has it all.
func TestRelay_owesToALeaverFromTheTableWhenTheSlotIsLost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		trouble func(t *testing.T, db *testdb.DB)
		early   bool // before the first start without it
		want    []string
	}{
		"lost when it leaves":          {loseSlot, true, []string{"before"}},
		"moved when it leaves":         {func(_ *testing.T, db *testdb.DB) { db.Exec(advance, db.Name) }, true, []string{"before"}},
		"lost while it is recorded":    {loseSlot, false, []string{"before"}},
		"moved while it is recorded":   {func(_ *testing.T, db *testdb.DB) { db.Exec(advance, db.Name) }, false, []string{"before"}},
		"nothing while it is recorded": {func(*testing.T, *testdb.DB) {}, false, []string{"before"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			if test.early {
				b := newChanging("b", hanging)
				_, kill := startMortal(t, db, options(t, db, newChanging("a", taking), b))
				insert(db, "before", "a")
				b.AwaitCalls(t, 1)
				kill()
			} else {
				leaving(t, db)()
			}
			test.trouble(t, db)
			a := newChanging("a", taking)
			r := streaming(t, options(t, db, a))
			insert(db, "later", "a")
			a.await(t, "later")
			awaitDeparture(t, db, "b")
			if got := owedTo(db, "b"); !slices.Equal(got, test.want) {
				t.Errorf("%v are owed to the one that left, want %v", got, test.want)
			}
			eventually(t, "only what is owed to it is unmarked", func() bool { return unmarked(db) == int64(len(test.want)) })
			r.shutDown()
			b := newChanging("b", taking)
			r = streaming(t, options(t, db, newChanging("a", taking), b))
			insert(db, "again", "a")
			if got, want := b.AwaitDelivered(t, len(test.want)+1), append(slices.Clone(test.want), "again"); !slices.Equal(got, want) {
				t.Errorf("back, it got %v, want %v", got, want)
			}
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			r.shutDown()
		})
	}
}

// S-73: a narrowed filter applies to what commits from the start on: what committed before and was wanted then still comes.
func TestRelay_narrowsAFilterFromTheStartOn(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	a, b := newChanging("a", taking), newChanging("b", hanging)
	_, kill := startMortal(t, db, options(t, db, a, b))
	insertTyped(db, "1", "x")
	insertTyped(db, "2", "y")
	b.AwaitCalls(t, 1)
	a.AwaitDelivered(t, 2)
	kill()

	b2 := newChanging("b", hanging)
	o := options(t, db, newChanging("a", taking), b2)
	o.Subscriptions[1].Filter.Events = []string{"y"}
	_, kill = startMortal(t, db, o)
	insertTyped(db, "3", "x")
	b2.AwaitCalls(t, 1)
	kill() // before it had any of them: the next life still knows what was wanted

	b3 := newChanging("b", taking)
	o = options(t, db, newChanging("a", taking), b3)
	o.Subscriptions[1].Filter.Events = []string{"y"}
	r := streaming(t, o)
	insertTyped(db, "4", "y")
	if got, want := b3.AwaitDelivered(t, 3), []string{"1", "2", "4"}; !slices.Equal(got, want) {
		t.Errorf("the narrowed one got %v, want %v", got, want)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	loseSlot(t, db)
	r = streaming(t, options(t, db, newChanging("a", taking), newChanging("b", taking)))
	r.shutDown()
	wantMarksTrue(t, db, map[string][]string{"b": {"1", "2", "4"}}, map[string]map[string]bool{"b": took(b3)})
}

// S-73: a new name carries everything over: position, what is open, debt, dead letters, replays and inbox.
func TestRelay_carriesEverythingOverToANewName(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	b := newChanging("old", away)
	_, kill := startMortal(t, db, owing(options(t, db, newChanging("a", taking), b)))
	insertAll(db, "a", numbered("owed", 2))
	awaitOwed(t, db, "old", 2)
	db.Exec(`UPDATE walpost.owed SET state = 'dead' WHERE event_id = 'owed-0'`)
	b.behave(hanging)
	insert(db, "open", "other key")
	kill()
	db.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence) VALUES ($1, 'old', 'lessons', 'done', '')`, db.Name)
	insert(db, "between", "a")

	b2 := newChanging("young", taking)
	o, log := logged(t, options(t, db, newChanging("a", taking), b2))
	o.Subscriptions[1].RenamedFrom = "old"
	r := streaming(t, o)
	insert(db, "later", "a")
	got := b2.AwaitDelivered(t, 4)
	slices.Sort(got)
	if want := []string{"between", "later", "open", "owed-1"}; !slices.Equal(got, want) {
		t.Errorf("under its new name it got %v, want %v", got, want)
	}
	if got := owed(db, "young", "dead"); got != 1 {
		t.Errorf("%d dead letters under the new name, want 1", got)
	}
	for _, table := range []string{"owed", "inbox", "replays"} {
		if got := db.Int(`SELECT count(*) FROM walpost.` + table + ` WHERE subscriber = 'old'`); got != 0 {
			t.Errorf("%d rows of walpost.%s have the former name", got, table)
		}
	}
	if got := db.Texts(`SELECT name FROM walpost.subscribers ORDER BY name`); !slices.Equal(got, []string{"a", "young"}) {
		t.Errorf("known are %v", got)
	}
	if !strings.Contains(log.String(), "renamed_from=old") {
		t.Error("the log does not say who was renamed")
	}
	eventually(t, "only the dead letter is unmarked", func() bool { return unmarked(db) == 1 })
	r.shutDown()

	// The option may stay: there is nothing to carry over any more.
	loseSlot(t, db)
	b3 := newChanging("young", taking)
	o = options(t, db, newChanging("a", taking), b3)
	o.Subscriptions[1].RenamedFrom = "old"
	r = streaming(t, o)
	insert(db, "last", "a")
	if got, want := b3.AwaitDelivered(t, 1), []string{"last"}; !slices.Equal(got, want) {
		t.Errorf("after the slot was lost it got %v, want %v", got, want)
	}
	r.shutDown()

	// Both are known: a person decides.
	db.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ($1, 'old')`, db.Name)
	o = options(t, db, newChanging("a", taking), newChanging("young", taking))
	o.Subscriptions[1].RenamedFrom = "old"
	wantWords(t, start(t, o).refused(), `"young"`, `"old"`, "renamed_from", "forget")
}

// S-72: a position that cannot be true is not believed: what is unpublished is sent, and that is said.
func TestRelay_believesNoPositionThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]string{
		"beyond the end of the WAL":      `UPDATE walpost.subscribers SET secured_commit = 'FFFF/0' WHERE name = 'a'`,
		"of a later epoch":               `UPDATE walpost.subscribers SET secured_epoch = secured_epoch + 1 WHERE name = 'a'`,
		"of an earlier epoch":            `UPDATE walpost.subscribers SET secured_epoch = secured_epoch - 1, finished_epoch = 0 WHERE name = 'a'`,
		"of another server":              `UPDATE walpost.subscribers SET system_id = '4711', secured_commit = secured_commit + 100000 WHERE name = 'a'`,
		"finished beyond the end":        `UPDATE walpost.subscribers SET finished_commit = 'FFFF/0' WHERE name = 'a'`,
		"finished and not secured":       `UPDATE walpost.subscribers SET finished_ordinal = secured_ordinal + 1, finished_commit = secured_commit, finished_epoch = secured_epoch WHERE name = 'a'`,
		"of everyone beyond the end":     `UPDATE walpost.subscribers SET secured_commit = 'FFFF/0', finished_commit = 'FFFF/0'`,
		"of the slot beyond the end":     `UPDATE walpost.slots SET confirmed = 'FFFF/0'`,
		"of slot and subscribers beyond": `WITH s AS (UPDATE walpost.slots SET confirmed = 'FFFF/0') UPDATE walpost.subscribers SET secured_commit = 'FFFF/0'`,
		"epoch of the slot":              `UPDATE walpost.slots SET epoch = epoch - 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			a, c := newChanging("a", taking), newChanging("c", taking)
			_, kill := startMortal(t, db, options(t, db, a, c))
			insert(db, "first", "a")
			eventually(t, "positions are recorded", func() bool {
				return db.Int(`SELECT count(*) FROM walpost.subscribers WHERE secured_commit > '0/0' AND finished_commit > '0/0'`) == 2
			})
			a.behave(hanging)
			insert(db, "open", "a")
			a.AwaitCalls(t, 2)
			c.AwaitDelivered(t, 2)
			kill()
			insertAll(db, "a", numbered("between", 3))
			db.Exec(forge)

			a2, c2 := newChanging("a", taking), newChanging("c", taking)
			o, log := logged(t, options(t, db, a2, c2))
			r := streaming(t, o)
			insert(db, "later", "a")
			want := slices.Concat([]string{"open"}, numbered("between", 3), []string{"later"})
			got := a2.AwaitDelivered(t, 5)
			if got[0] == "first" { // it was not marked when the process was killed
				got = a2.AwaitDelivered(t, 6)[1:]
			}
			if !slices.Equal(got, want) {
				t.Errorf("it got %v, want %v", got, want)
			}
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			if !strings.Contains(log.String(), "is not believed") && !strings.Contains(log.String(), "not believed") {
				t.Error("the log does not say that the position is not believed")
			}
			if got := db.Int(`SELECT count(*) FROM walpost.audit WHERE action = 'repair'`); got != 1 {
				t.Errorf("%d repairs in the audit, want 1", got)
			}
			r.shutDown()
			wantPossible(t, db)

			loseSlot(t, db)
			a3, c3 := newChanging("a", taking), newChanging("c", taking)
			r = streaming(t, options(t, db, a3, c3))
			insert(db, "last", "a")
			a3.await(t, "last")
			c3.await(t, "last")
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			r.shutDown()
			all := append(want, "last")
			wantMarksTrue(t, db, map[string][]string{"a": all, "c": all}, map[string]map[string]bool{"a": took(a, a2, a3), "c": took(c, c2, c3)})
		})
	}
}

// wantPossible checks that what is recorded is what a relay can have recorded.
func wantPossible(t *testing.T, db *testdb.DB) {
	t.Helper()
	const impossible = `
		SELECT count(*) FROM walpost.subscribers s JOIN walpost.slots k USING (slot) WHERE s.system_id <> k.system_id OR s.secured_epoch <> k.epoch
		OR s.secured_commit > pg_current_wal_insert_lsn() OR k.confirmed > pg_current_wal_insert_lsn()
		OR (s.finished_epoch, s.finished_commit, s.finished_ordinal) > (s.secured_epoch, s.secured_commit, s.secured_ordinal)`
	if got := db.Int(impossible); got != 0 {
		t.Errorf("%d subscribers have positions that cannot be: %v", got, db.Texts(`SELECT s::text FROM walpost.subscribers s`))
	}
}

// S-72: the position of one subscriber is not believed: the others go on where they were, and nothing comes twice.
func TestRelay_sendsNothingAgainToThosePositionsAreBelieved(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	a, c := newChanging("a", taking), newChanging("c", away)
	r := streaming(t, owing(options(t, db, a, c)))
	insertAll(db, "a", numbered("e", 3))
	a.AwaitDelivered(t, 3)
	awaitOwed(t, db, "c", 3)
	r.shutDown()
	db.Exec(`UPDATE walpost.subscribers SET secured_commit = 'FFFF/0' WHERE name = 'c'`)
	a2, c2 := newChanging("a", taking), newChanging("c", taking)
	r = streaming(t, options(t, db, a2, c2))
	insert(db, "later", "a")
	if got, want := a2.AwaitDelivered(t, 1), []string{"later"}; !slices.Equal(got, want) {
		t.Errorf("the one whose position is believed got %v, want %v", got, want)
	}
	if got, want := c2.AwaitDelivered(t, 4), append(numbered("e", 3), "later"); !slices.Equal(got, want) {
		t.Errorf("the other one got %v, want %v", got, want)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	wantPossible(t, db)
}

// S-72: with --on-lost-slot=stop a person decides, here too.
func TestRelay_stopsOverAPositionThatCannotBeWhereThatIsWanted(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	streaming(t, options(t, db, subscribertest.Recording())).shutDown()
	db.Exec(`UPDATE walpost.subscribers SET secured_commit = 'FFFF/0'`)
	o := options(t, db, subscribertest.Recording())
	o.StopOnLostSlot = true
	wantWords(t, start(t, o).refused(), "not believed", "FFFF/0", "--on-lost-slot=repair")
}
