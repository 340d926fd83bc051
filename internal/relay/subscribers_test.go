package relay_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// A subscriber that is new to a slot starts at now, and the log says so.
func TestRelay_startsANewSubscriberAtNow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	old := newChanging("old", taking)
	r := streaming(t, options(t, db, old))
	insertAll(db, "a", numbered("before", 5))
	old.AwaitDelivered(t, 5)
	r.shutDown()
	insertAll(db, "a", numbered("between", 5))

	old, young := newChanging("old", taking), newChanging("young", taking)
	o, log := logged(t, options(t, db, old, young))
	r = streaming(t, o)
	insertAll(db, "a", numbered("after", 5))
	if got, want := old.AwaitDelivered(t, 10), append(numbered("between", 5), numbered("after", 5)...); !slices.Equal(got, want) {
		t.Errorf("the old one got %v, want %v", got, want)
	}
	if got, want := young.AwaitDelivered(t, 5), numbered("after", 5); !slices.Equal(got, want) {
		t.Errorf("the new one got %v, want %v", got, want)
	}
	if !strings.Contains(log.String(), "subscriber is new to this slot and starts at now") || !strings.Contains(log.String(), "subscriber=young") {
		t.Error("the log does not name the new one")
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()

	// The next time it is one of the old ones.
	insertAll(db, "a", numbered("later", 5))
	young = newChanging("young", taking)
	streaming(t, options(t, db, newChanging("old", taking), young))
	if got, want := young.AwaitDelivered(t, 5), numbered("later", 5); !slices.Equal(got, want) {
		t.Errorf("the new one got %v after a restart, want %v", got, want)
	}
}

// A paused subscriber owes from that moment, over restarts; resumed it gets everything, in order.
func TestRelay_owesToAPausedSubscriberAndPaysWhenItIsResumed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub, other := newChanging("sub", taking), newChanging("other", taking)
	o := options(t, db, sub, other)
	r := streaming(t, o)
	insert(db, "before", "a")
	sub.AwaitDelivered(t, 1)
	if err := book(db).Pause(t.Context(), "sub", "test", "their deployment"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool { return r.of("sub").Paused })
	insertAll(db, "a", numbered("first", 5))
	awaitOwed(t, db, "sub", 5)
	other.AwaitDelivered(t, 6)
	r.shutDown()

	again := newChanging("sub", taking)
	r = streaming(t, options(t, db, again, newChanging("other", taking)))
	insertAll(db, "a", numbered("second", 5))
	awaitOwed(t, db, "sub", 10)
	if got := len(sub.Calls()) + len(again.Calls()); got != 1 {
		t.Errorf("%d calls while it is paused, want only the one before", got)
	}
	if h := r.Health(); !h.Ready || !r.of("sub").Paused {
		t.Errorf("health %+v, progress %+v, want ready and paused", h, r.of("sub"))
	}
	if err := book(db).Resume(t.Context(), "sub", "test", "deployed"); err != nil {
		t.Fatal(err)
	}
	insert(db, "after", "a")
	want := slices.Concat(numbered("first", 5), numbered("second", 5), []string{"after"})
	if got := again.AwaitDelivered(t, 11); !slices.Equal(got, want) {
		t.Errorf("resumed with %v, want %v", got, want)
	}
	eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
	eventually(t, "it is live again", func() bool { p := r.of("sub"); return !p.Paused && !p.InDebt && p.KeysInDebt == 0 })
}

// A subscriber that has left the configuration holds neither the slot nor, but for its debt, anything else.
// When it comes back it is paid, gets nothing of the time between, and the log names the gap.
func TestRelay_paysASubscriberThatComesBackAndTellsItsGap(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	stays, leaves := newChanging("stays", taking), newChanging("leaves", away)
	o := owing(options(t, db, stays, leaves))
	r := streaming(t, o)
	insertAll(db, "a", numbered("owed", 3))
	awaitOwed(t, db, "leaves", 3)
	r.shutDown()

	stays = newChanging("stays", taking)
	r = streaming(t, options(t, db, stays))
	insertAll(db, "a", numbered("gap", 3))
	stays.AwaitDelivered(t, 3)
	eventually(t, "the slot has passed all", passed(t, db, stays.await(t, "gap-2")))
	if got := db.Texts(`SELECT event_id FROM outbox WHERE published_at IS NULL ORDER BY id`); !slices.Equal(got, numbered("owed", 3)) {
		t.Errorf("unmarked are %v, want what is owed to the one that left", got)
	}
	r.shutDown()
	if got := owed(db, "leaves", "waiting"); got != 3 {
		t.Errorf("%d owed while it is away, want 3", got)
	}

	stays, leaves = newChanging("stays", taking), newChanging("leaves", taking)
	o, log := logged(t, owing(options(t, db, stays, leaves)))
	streaming(t, o)
	insertAll(db, "a", numbered("after", 3))
	if got, want := leaves.AwaitDelivered(t, 6), append(numbered("owed", 3), numbered("after", 3)...); !slices.Equal(got, want) {
		t.Errorf("it got %v, want %v", got, want)
	}
	if text := log.String(); !strings.Contains(text, "has no event of the time between") || !strings.Contains(text, "gone_since=") {
		t.Error("the log does not name the gap")
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
}

// Forgotten, its debt is settled and its rows are marked; should it come back, it is a new one.
func TestRelay_owesNothingToASubscriberThatWasForgotten(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := streaming(t, owing(options(t, db, newChanging("stays", taking), newChanging("leaves", away))))
	insertAll(db, "a", numbered("owed", 3))
	awaitOwed(t, db, "leaves", 3)
	r.shutDown()
	stays := newChanging("stays", taking)
	r = streaming(t, options(t, db, stays))
	if err := book(db).Forget(t.Context(), "leaves", "test", "we stopped using it"); err != nil {
		t.Fatal(err)
	}
	insert(db, "between", "a")
	eventually(t, "nothing of it is left", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE state <> 'paid'`) == 0 &&
			db.Int(`SELECT count(*) FROM walpost.subscribers WHERE name = 'leaves'`) == 0
	})
	eventually(t, "the slot has passed all", passed(t, db, stays.await(t, "between")))
	r.shutDown()

	back := newChanging("leaves", taking)
	streaming(t, options(t, db, newChanging("stays", taking), back))
	insert(db, "after", "a")
	if got, want := back.AwaitDelivered(t, 1), []string{"after"}; !slices.Equal(got, want) {
		t.Errorf("it got %v, want %v", got, want)
	}
}

// Positions inside a transaction count: a stop in the middle of a large one repeats nothing, neither to the
// one that keeps up nor to the one that is away.
func TestRelay_goesOnInsideALargeTransactionAfterAStop(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const events = 600
	var well []*tally
	var gone *changing
	subs := func(behaviour handler) []subscriber.Subscriber {
		well = append(well, newTally("well", taking))
		gone = newChanging("gone", behaviour)
		return []subscriber.Subscriber{well[len(well)-1], gone}
	}
	o := owing(options(t, db, subs(away)...))
	o.Window.Events = 50
	r := streaming(t, o)
	insertMany(db, "e", events)
	for stops := range 3 {
		eventually(t, "some are taken", func() bool { return well[stops].count() >= 60 })
		r.shutDown()
		o = owing(options(t, db, subs(away)...))
		o.Window.Events = 50
		r = streaming(t, o)
	}
	taken := func() (n int) {
		for _, life := range well {
			n += life.count()
		}
		return n
	}
	eventually(t, "everything is taken", func() bool { return taken() >= events })
	r.shutDown()
	if got := taken(); got != events {
		t.Errorf("in %d lives %d events were taken, want %d", len(well), got, events)
	}
	if well[0].count() == events {
		t.Error("the first life took everything, so nothing was tested")
	}
	if got := owed(db, "gone", "waiting"); got != events {
		t.Errorf("%d are owed, want %d", got, events)
	}
	paid := newTally("gone", taking)
	o = options(t, db, newTally("well", taking), paid)
	o.Subscriptions[1].Lane.StallAfter = time.Minute
	streaming(t, o)
	paid.await(t, events)
}
