package relay_test

import (
	"slices"
	"testing"

	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// A subscriber that is new to a slot begins with all rows that the table has, if it wants to, and gets
// what the stream brings of them no second time.
func TestRelay_letsANewSubscriberBeginAtTheBeginning(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	old := subscribertest.Recording().Named("sub")
	r := streaming(t, options(t, db, old))
	insertAll(db, "a", numbered("before", 5))
	old.AwaitDelivered(t, 5)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	insertAll(db, "a", numbered("while-away", 5))

	again, late := subscribertest.Recording().Named("sub"), subscribertest.Recording().Named("late")
	o := options(t, db, again, late)
	o.Subscriptions[1].FromBeginning = true
	r = streaming(t, o)
	insertAll(db, "a", numbered("after", 5))
	want := slices.Concat(numbered("before", 5), numbered("while-away", 5), numbered("after", 5))
	if got := late.AwaitDelivered(t, len(want)); !slices.Equal(got, want) {
		t.Errorf("the new one got %v, want %v", got, want)
	}
	if got := again.AwaitDelivered(t, 10); !slices.Equal(got, want[5:]) {
		t.Errorf("the old one got %v, want %v", got, want[5:])
	}
	r.shutDown()

	// It is not new any more.
	last := subscribertest.Recording().Named("late")
	o = options(t, db, subscribertest.Recording().Named("sub"), last)
	o.Subscriptions[1].FromBeginning = true
	r = streaming(t, o)
	insertAll(db, "a", numbered("at-last", 2))
	if got, want := last.AwaitDelivered(t, 2), numbered("at-last", 2); !slices.Equal(got, want) {
		t.Errorf("after a restart it got %v, want %v", got, want)
	}
	r.shutDown()
}
