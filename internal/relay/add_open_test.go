package relay_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testdb"
)

// addOwed is `walpost owed add` of one event.
func addOwed(t *testing.T, db *testdb.DB, o relay.Options, id string, state lane.State) {
	t.Helper()
	changed, missing, err := peopleOf(t, db, o).Add(t.Context(), "sub", []string{id}, state, "ada", "by hand")
	if err != nil || changed != 1 || len(missing) > 0 {
		t.Fatalf("owed add --state %s: %d changed, not found %v, %v", state, changed, missing, err)
	}
}

// S-37: a person ends an event that the relay has in hand and tries again and again. Its key goes on without it.
func TestAdd_deadOfAnEventThatIsTriedAgainEndsIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := newChanging("sub", away)
	o := options(t, db, sub)
	o.Subscriptions[0].Lane.StallAfter = time.Hour
	o.Subscriptions[0].Lane.MaxAttempts = 0
	r := streaming(t, o)
	insertAll(db, "k", numbered("e", 2))
	eventually(t, "the first event is tried, and the second waits", func() bool { return len(sub.events()) > 1 && r.of("sub").Open == 2 })
	addOwed(t, db, o, "e-0", lane.StateDead)
	eventually(t, "the relay has let go of it", func() bool { return r.of("sub").Open == 1 })
	sub.behave(taking)
	eventually(t, "nothing is open", func() bool { return r.of("sub").Open == 0 })
	if got, want := sub.Delivered(), []string{"e-1"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	eventually(t, "the mark of the other one", func() bool { return unmarked(db) == 1 })
	if got := owed(db, "sub", "dead"); got != 1 {
		t.Errorf("%d dead letters, want the one that was added", got)
	}
}

// S-37: the stream has not brought the event yet when a person adds it: the window is full. It comes once, behind
// the earlier ones of its key.
func TestAdd_ofAnEventThatIsStillToComeKeepsTheOrderOfItsKey(t *testing.T) {
	t.Parallel()
	const rows = 200
	for name, running := range map[string]bool{"while the relay runs": true, "while no relay runs": false} {
		for state, left := range map[lane.State]int{lane.StateWaiting: rows, lane.StateDead: rows - 1} {
			t.Run(string(state)+" "+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.New(t)
				slow := func(context.Context, subscriber.Delivery) error {
					time.Sleep(25 * time.Millisecond) // a relay without a lease looks for changes every 2 s
					return nil
				}
				sub := newChanging("sub", slow)
				small := func() relay.Options {
					o := options(t, db, sub)
					o.Window = ack.Window{Events: 20, Bytes: 1 << 20}
					return o
				}
				r := streaming(t, small())
				if !running {
					r.shutDown()
				}
				db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
					SELECT 'e-' || n, 'lesson.completed', 'k', '{}' FROM generate_series(0, $1) n`, rows-1)
				last := numbered("e", rows)[rows-1]
				if running {
					sub.await(t, "e-0")
				}
				addOwed(t, db, small(), last, state)
				if !running {
					r = streaming(t, small())
				}
				eventually(t, "everything is delivered", func() bool {
					return len(sub.Delivered()) >= left && r.of("sub").Open == 0 && owed(db, "sub", "waiting") == 0
				})
				if got, want := sub.Delivered(), numbered("e", left); !slices.Equal(got, want) {
					t.Errorf("delivered %d, want each of %d once and in order: %v", len(got), len(want), got)
				}
			})
		}
	}
}
