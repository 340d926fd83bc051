package relay_test

import (
	"slices"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-05
func TestRelay_deliversWhatWasWrittenWhileItWasAway(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	streaming(t, options(t, db, subscribertest.Recording())).shutDown()
	want := numbered("away", 10)
	insertAll(db, "a", want)
	sub := subscribertest.Recording()
	r := streaming(t, options(t, db, sub))
	if got := sub.AwaitDelivered(t, 10); !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	r.shutDown()
}

// F-05: killed in the first moment, before any ack.
func TestRelay_deliversWhatWasWrittenWhileItWasAwayEvenIfItIsKilledAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	streaming(t, options(t, db, subscribertest.Recording())).shutDown()
	want := numbered("away", 10)
	insertAll(db, "a", want)

	blocked := subscribertest.Blocking()
	_, kill := startMortal(t, db, options(t, db, blocked))
	blocked.AwaitCalls(t, 1)
	kill()

	sub := subscribertest.Recording()
	streaming(t, options(t, db, sub))
	if got := sub.AwaitDelivered(t, 10); !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
}

// Rows that wait before the slot exists are not lost either when the first relay is killed over them.
func TestRelay_deliversWhatWaitedBeforeTheSlotEvenIfItIsKilledOverIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	want := numbered("waiting", 10)
	insertAll(db, "a", want)
	blocked := subscribertest.Blocking()
	line, dsn := newLine(t, db.DSN)
	o := options(t, db, blocked)
	o.Pool, o.ReplicationURL, o.Drain = openPool(t, dsn, 4), dsn, 50*time.Millisecond
	r := start(t, o)
	blocked.AwaitCalls(t, 1)
	line.end()
	r.stop()

	sub := subscribertest.Recording()
	streaming(t, options(t, db, sub))
	if got := sub.AwaitDelivered(t, 10); !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	if got := db.Int(`SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`); got != 1 {
		t.Errorf("%d slots, want 1", got)
	}
}

// F-44: what is confirmed is the end of the commit, not its start.
func TestRelay_doesNotGetTheLastTransactionAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first := keeping(nil)
	_, kill := startMortal(t, db, options(t, db, first))
	insert(db, "last", "a")
	eventually(t, "the slot has passed the event", passed(t, db, first.await(t, "last")))
	kill()
	if got := stillToCome(db); got != 0 {
		t.Errorf("after a kill the server would send %d confirmed rows again", got)
	}
	for range 3 {
		sub := subscribertest.Recording()
		streaming(t, options(t, db, sub)).shutDown()
		if got := sub.Calls(); len(got) != 0 {
			t.Errorf("came again on a quiet outbox: %v", got)
		}
	}
}

// What a stop interrupts is not confirmed, however often it is interrupted.
func TestRelay_keepsWhatAStopFoundInHand(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for range 2 {
		failing := subscribertest.Failing(-1)
		r := streaming(t, options(t, db, failing))
		if db.Int(`SELECT count(*) FROM outbox`) == 0 {
			insert(db, "open", "a")
		}
		failing.AwaitCalls(t, 1)
		r.shutDown()
		if got := stillSent(db); got != 1 {
			t.Fatalf("the server would send %d rows, want the open one", got)
		}
	}
	sub := subscribertest.Recording()
	streaming(t, options(t, db, sub))
	if got := sub.AwaitDelivered(t, 1); got[0] != "open" {
		t.Errorf("delivered %v, want the open event", got)
	}
}
