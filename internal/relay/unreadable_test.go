package relay_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// spoil puts a byte into a row's payload that no session in UTF-8 can be sent.
func spoil(db *testdb.DB, id string) {
	db.Exec(`UPDATE outbox SET payload = jsonb_build_object('x', 'caf' || chr(233)) WHERE event_id = $1`, id)
}

// wantUnreadable waits for the dead letter of a row that cannot be read: it says why and points to the row.
func wantUnreadable(t *testing.T, db *testdb.DB, subscriber, id string) {
	t.Helper()
	var letter []string
	eventually(t, id+" is a dead letter of "+subscriber, func() bool {
		letter = db.Texts(`SELECT invalid FROM walpost.owed WHERE subscriber = $1 AND event_id = $2 AND state = 'dead' AND row_id <> '' AND NOT copied AND NOT lost`, subscriber, id)
		return len(letter) == 1
	})
	if !strings.Contains(letter[0], `cannot send column "payload"`) {
		t.Errorf("it says %q", letter[0])
	}
}

// S-132: every reader of a table gets the other rows, and a dead letter that points to the one that the server
// cannot send: a debt by reference, a new subscriber that begins at the beginning, a replay.
func TestRelay_makesADeadLetterOfARowThatNoOneCanRead(t *testing.T) {
	t.Parallel()
	db := testdb.NewEncoded(t, "SQL_ASCII")
	old := subscribertest.Handling("old", away)
	o := options(t, db, old, subscribertest.Recording().Named("other"))
	o.Subscriptions[0].Lane.StallAfter = 1 // it owes at once
	r := streaming(t, o)
	insertAll(db, "a", numbered("a", 3))
	insertAll(db, "b", numbered("b", 3))
	eventually(t, "all are owed by reference", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'waiting' AND NOT copied`) == 6
	})
	r.shutDown()
	spoil(db, "a-1")

	again, late := subscribertest.Recording().Named("old"), subscribertest.Recording().Named("late")
	o = options(t, db, again, subscribertest.Recording().Named("other"), late)
	o.Subscriptions[2].FromBeginning = true
	r = streaming(t, o)
	for name, sub := range map[string]*subscribertest.Fake{"old": again, "late": late} {
		got := slices.Sorted(slices.Values(sub.AwaitDelivered(t, 5)))
		if want := []string{"a-0", "a-2", "b-0", "b-1", "b-2"}; !slices.Equal(got, want) {
			t.Errorf("%s got %v, want %v", name, got, want)
		}
		wantUnreadable(t, db, name, "a-1")
	}

	asked := askForReplay(t, o, replay.Request{Subscriber: "other", Source: "lessons"})
	done := awaitReplay(t, o, asked.ID, "the replay is done", isDone)
	if done.Delivered != 5 || done.Dead != 1 {
		t.Errorf("the replay: %d delivered, %d dead, %d invalid, want 5 and one dead letter; %s", done.Delivered, done.Dead, done.Invalid, done.Problem)
	}
	wantUnreadable(t, db, "other", "a-1")
	if health := r.Health(); health.State != relay.Streaming {
		t.Errorf("it is %s", health.State)
	}
	r.shutDown()
}
