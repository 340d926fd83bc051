package relay_test

import (
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// told are the positions that the server has from the relay: in the status and in the slot.
func told(t *testing.T, db *testdb.DB) (highest event.LSN, statuses string) {
	t.Helper()
	return lsn(t, db.Text(`
			SELECT greatest(r.write_lsn, r.flush_lsn, r.replay_lsn, s.confirmed_flush_lsn)::text
			FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = $1`, db.Name)),
		db.Text(`
			SELECT coalesce(max(r.reply_time)::text, '') FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
			WHERE s.slot_name = $1`, db.Name)
}

// F-01, F-02: the first event ever of a new slot is open; keepalives and other WAL say that the server is
// far beyond it.
func TestRelay_neverTellsThePositionOfAKeepaliveWhileAnEventIsOpen(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	failing := keeping(away)
	r, kill := startMortal(t, db, options(t, db, failing))
	insert(db, "open", "a")
	open := failing.await(t, "open")
	junk(db, 5)
	end := lsn(t, db.Text(`SELECT pg_current_wal_insert_lsn()::text`))
	db.Exec(`SELECT pg_switch_wal()`)

	// Until a keepalive told us of all that, and two statuses were sent after it.
	var first, second string
	eventually(t, "two statuses after the keepalive", func() bool {
		highest, at := told(t, db)
		if highest > open.Position.Commit {
			t.Fatalf("the server was told %v, beyond the open event at %v", highest, open.Position.Commit)
		}
		switch {
		case r.Progress().Received < end:
		case first == "":
			first = at
		case at != first && second == "":
			second = at
		}
		return second != "" && at != second
	})
	kill()

	well := keeping(nil)
	streaming(t, options(t, db, well))
	again := well.await(t, "open")
	if again.Position != open.Position {
		t.Errorf("came again at position %v, want %v", again.Position, open.Position)
	}
	eventually(t, "the slot has passed the event", passed(t, db, again))
}

// F-04: acks in another order than commits.
func TestRelay_confirmsOnlyTheUnbrokenPrefix(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	handle, _ := blockingOne("k1")
	first := keeping(handle)
	o := options(t, db, first)
	o.Subscriptions[0].Lane.Timeout = time.Minute
	_, kill := startMortal(t, db, o)
	insert(db, "before", "k0")
	eventually(t, "the event before is confirmed", passed(t, db, first.await(t, "before")))
	insert(db, "k1", "k1")
	insertAll(db, "k2", numbered("k2", 100))
	first.AwaitDelivered(t, 101)
	open := first.await(t, "k1")
	// All that is finished is marked, so it was recorded; only the one is not.
	eventually(t, "100 marks", func() bool { return unmarked(db) == 1 })
	if got := confirmed(t, db); got > open.Position.Commit {
		t.Errorf("confirmed %v, beyond the open event at %v", got, open.Position.Commit)
	}
	kill()

	second := keeping(nil)
	streaming(t, options(t, db, second))
	eventually(t, "the slot has passed the event", passed(t, db, second.await(t, "k1")))
}

// F-23: what is told begins where the slot stands, never goes back and reaches the end.
func TestRelay_neverTellsLessThanTheSlotHasAndReachesTheEnd(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	streaming(t, options(t, db, subscribertest.Recording())).shutDown()
	slot := confirmed(t, db)
	insertAll(db, "a", numbered("first", 50))
	junk(db, 20)
	insertAll(db, "a", numbered("second", 50))

	highest := slot
	watch := func() {
		t.Helper()
		got := lsn(t, db.Text(`
			SELECT coalesce(least(r.flush_lsn, r.write_lsn, r.replay_lsn, s.confirmed_flush_lsn), s.confirmed_flush_lsn)::text
			FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = $1`, db.Name))
		if got < highest {
			t.Fatalf("the server was told %v after %v", got, highest)
		}
		highest = got
	}
	// The last of the first half blocks, so that the restart is in the middle.
	handle, _ := blockingOne("first-49")
	half := keeping(handle)
	o := options(t, db, half)
	o.Subscriptions[0].Lane.Timeout = time.Minute
	_, kill := startMortal(t, db, o)
	eventually(t, "all but one of the first half", func() bool { watch(); return len(half.Delivered()) == 49 })
	eventually(t, "marks of them", func() bool { watch(); return unmarked(db) == 51 })
	kill()
	watch()

	rest := keeping(nil)
	r := streaming(t, options(t, db, rest))
	eventually(t, "the rest", func() bool { watch(); return len(rest.Delivered()) >= 51 })
	last := rest.await(t, "second-49")
	eventually(t, "the slot has passed the last event", func() bool { watch(); return passed(t, db, last)() })
	r.shutDown()
	watch()

	none := subscribertest.Recording()
	marker := streaming(t, options(t, db, none))
	insert(db, "marker", "a")
	if got, want := none.AwaitDelivered(t, 1), "marker"; got[0] != want {
		t.Errorf("after the last restart %q came again", got)
	}
	marker.shutDown()
	watch()
}

// F-01: several subscribers; the slot waits for the slowest of them.
func TestRelay_confirmsWhenEverySubscriberThatWantsTheEventHasIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	fast, slow := keeping(nil), subscribertest.Blocking()
	fast.Named("fast")
	other := subscribertest.Recording().Named("other").Wanting("something.else")
	o := options(t, db, fast, slow, other)
	o.Subscriptions[1].Lane.Timeout = time.Minute
	r := streaming(t, o)
	insert(db, "e", "a")
	fast.AwaitDelivered(t, 1)
	slow.AwaitCalls(t, 1)
	ev := fast.await(t, "e")
	_, before := told(t, db)
	eventually(t, "another status", func() bool { _, at := told(t, db); return at != before })
	if got := confirmed(t, db); got > ev.Position.Commit {
		t.Errorf("confirmed %v, beyond event at %v that one subscriber has not taken", got, ev.Position.Commit)
	}
	if got := unmarked(db); got != 1 {
		t.Errorf("%d unmarked rows, want 1", got)
	}
	slow.Release()
	eventually(t, "the slot has passed the event", passed(t, db, ev))
	r.shutDown()
	if got := len(other.Calls()); got != 0 {
		t.Errorf("a subscriber that does not want the type got %d calls", got)
	}
}

// The window holds back the reader, not the memory.
func TestRelay_readsNoMoreThanTheWindowHolds(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	blocked := subscribertest.Blocking()
	o := options(t, db, blocked)
	o.Window.Events = 10
	o.Subscriptions[0].Lane.Timeout = time.Minute
	r := streaming(t, o)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e-' || n, 'lesson.completed', n::text, '{}' FROM generate_series(1, 100) n`)
	eventually(t, "a full window", func() bool { return r.Progress().OpenEvents == 10 })
	_, before := told(t, db)
	eventually(t, "another status although nothing is read", func() bool { _, at := told(t, db); return at != before })
	if got := r.Progress().OpenEvents; got != 10 {
		t.Errorf("%d events are open, want the 10 that the window holds", got)
	}
	blocked.Release()
	blocked.AwaitDelivered(t, 100)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
}
