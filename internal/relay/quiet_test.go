package relay_test

import (
	"fmt"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// An idle relay writes nothing, so its slot may stay behind by this much, and a little for what comes
// while it looks.
const quiet = 16 << 20

func behind(db *testdb.DB) int64 {
	return db.Int(`SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1`, db.Name)
}

// busyNeighbour lets others write some megabytes a second until the slot has moved twice, and then
// until the server could forget the WAL of both moves.
func busyNeighbour(t *testing.T, db, other *testdb.DB) {
	t.Helper()
	write := func() {
		junk(other, 1)
		other.Exec(`SELECT pg_sleep(0.15)`) // a busy neighbour, not a bulk load: the test wants time, not bytes
	}
	var moves []event.LSN
	last := confirmed(t, db)
	eventually(t, "the slot moves while others write", func() bool {
		write()
		if now := confirmed(t, db); now != last {
			last = now
			moves = append(moves, now)
		}
		return len(moves) == 2
	})
	// restart_lsn can move to where the server logged which transactions run; a checkpoint does that.
	eventually(t, "restart_lsn follows", func() bool {
		write()
		other.Exec(`CHECKPOINT`)
		return lsn(t, db.Text(`SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, db.Name)) >= moves[1]
	})
	eventually(t, "the slot catches up", func() bool { return behind(db) < quiet+1<<20 })
}

// F-19
func TestRelay_confirmsOnTheWayWhileOtherTablesAreBusyAndTheOutboxIsQuiet(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, nil))
	r := streaming(t, options(t, db, subscribertest.Recording()))
	busyNeighbour(t, db, db)
	if got := r.Progress().OpenEvents; got != 0 {
		t.Errorf("%d events are open on a quiet outbox", got)
	}
}

// F-20: and after a restart nothing that was confirmed is read again.
func TestRelay_confirmsOnTheWayWhileAnotherDatabaseIsBusy(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db, other := testdb.On(t, server), testdb.On(t, server)
	r, kill := startMortal(t, db, options(t, db, subscribertest.Recording()))
	busyNeighbour(t, db, other)

	before := confirmed(t, db)
	kill()
	if got := confirmed(t, db); got < before {
		t.Errorf("the slot stands at %v after a kill, it stood at %v", got, before)
	}
	if got := behind(db); got > quiet+2<<20 {
		t.Errorf("%d bytes are read again after a kill, want at most the %d that an idle relay does not record", got, quiet)
	}
	again := subscribertest.Recording()
	r = streaming(t, options(t, db, again))
	insert(db, "e", "a")
	again.AwaitDelivered(t, 1) // what is owed is known by then
	junk(other, 2)
	end := lsn(t, db.Text(`SELECT pg_current_wal_insert_lsn()::text`))
	eventually(t, "a keepalive", func() bool { return r.Progress().Received >= end })
	r.shutDown()
	if got := confirmed(t, db); got < end {
		t.Errorf("the slot stands at %v after a clean stop, below the %v that was read: it is read again", got, end)
	}
}

// F-19, F-21: no write access, and no write, is needed for an outbox that is merely idle.
func TestRelay_writesNothingWhileItIsIdle(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"autovacuum": "off"})
	db := testdb.On(t, server)
	r := streaming(t, options(t, db, subscribertest.Recording()))
	const versions = `SELECT concat(xmin, ' ', confirmed) FROM walpost.slots`
	eventually(t, "the slot is ready", func() bool { return db.Text(`SELECT state FROM walpost.slots`) == "ready" })
	before := db.Text(versions)
	for i := range 2 {
		junk(db, 1)
		end := lsn(t, db.Text(`SELECT pg_current_wal_insert_lsn()::text`))
		eventually(t, fmt.Sprintf("keepalive %d", i), func() bool { return r.Progress().Received >= end })
	}
	if got := db.Text(versions); got != before {
		t.Errorf("walpost.slots changed from %q to %q without an event", before, got)
	}
	// It is not that it would not: an event is a reason to write.
	insert(db, "e", "a")
	eventually(t, "a record", func() bool { return db.Text(versions) != before })
}
