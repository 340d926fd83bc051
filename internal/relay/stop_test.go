package relay_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-43: the stop comes right after the last ack.
func TestRelay_repeatsNothingAfterACleanStop(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for range 5 {
		sub := keeping(nil)
		r := streaming(t, options(t, db, sub))
		prefix := "round-" + db.Text(`SELECT count(*)::text FROM outbox`)
		insertAll(db, "a", numbered(prefix, 20))
		if got, want := sub.AwaitDelivered(t, 20), numbered(prefix, 20); !slices.Equal(got, want) {
			t.Fatalf("delivered %v, want %v", got, want)
		}
		// The event is there a moment before the end of its transaction; without that end nothing of it
		// can be confirmed.
		last := sub.await(t, prefix+"-19").Position.Commit
		eventually(t, "the end of the last transaction is read", func() bool { return r.Progress().Received > last })
		r.shutDown()
		if got := stillToCome(db); got != 0 {
			t.Errorf("after a clean stop the server would send %d rows again", got)
		}
		if got := unmarked(db); got != 0 {
			t.Errorf("after a clean stop %d rows are not marked", got)
		}
	}
}

// F-43: a stop in the middle of a transaction that the window does not hold. Positions inside a
// transaction count.
func TestRelay_repeatsNothingOfATransactionThatACleanStopCutInTwo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	third := make(chan struct{})
	first := keeping(func(_ context.Context, d subscriber.Delivery) error {
		if d.ID == "e-2" {
			close(third)
		}
		return nil
	})
	o := options(t, db, first)
	o.Window.Events = 3
	// Nothing leaves the window, so nothing after the third event is read.
	db.Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(2); RETURN NULL; END $$`)
	r := streaming(t, o)
	db.Exec(`CREATE TRIGGER wait BEFORE UPDATE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION wait()`)
	gate := session(t, db.DSN)
	mustExec(t, gate, `SELECT pg_advisory_lock(2)`)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e-' || n, 'lesson.completed', 'a', '{}' FROM generate_series(0, 9) n`)
	<-third
	r.stop()
	mustExec(t, gate, `SELECT pg_advisory_unlock(2)`)
	r.shutDown()
	before := first.Delivered()

	second := subscribertest.Recording()
	streaming(t, options(t, db, second))
	want := numbered("e", 10)[len(before):]
	if got := second.AwaitDelivered(t, len(want)); !slices.Equal(got, want) {
		t.Errorf("after %v were delivered and a clean stop %v came, want %v", before, got, want)
	}
}

// S-170: what is finished and could not be recorded is not open. It comes again, and the error says so.
func TestRelay_countsAtItsEndWhatIsNeitherFinishedNorOwed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	o, log := logged(t, options(t, db, sub))
	o.Drain = 10 * time.Millisecond
	r := streaming(t, o)
	mustExec(t, session(t, db.DSN), `BEGIN; LOCK TABLE walpost.slots IN SHARE MODE`) // nothing can be recorded
	insertAll(db, "a", numbered("e", 2))
	sub.AwaitDelivered(t, 2)
	r.stop()
	if err := r.wait(); err == nil || !strings.Contains(err.Error(), "it comes again") {
		t.Errorf("the relay ended with %v", err)
	}
	_, end, _ := strings.Cut(log.String(), "msg=stopped ")
	for _, fact := range []string{"left_open=0 ", "clean=false"} {
		if !strings.Contains(end, fact) {
			t.Errorf("the end has no %q: %s", fact, end)
		}
	}
}
