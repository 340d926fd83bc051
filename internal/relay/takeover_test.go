package relay_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-30: while another session reads the slot the relay waits, and takes over when that one ends.
func TestRelay_waitsForAnotherReaderAndTakesOver(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	streaming(t, options(t, db, subscribertest.Recording())).shutDown()
	other := reader(t, db)
	sub := subscribertest.Recording()
	o := options(t, db, sub)
	r := start(t, o)
	eventually(t, "waiting", func() bool { return r.Health().State == relay.Waiting })
	if h := r.Health(); !h.Ready || len(h.Problems) == 0 {
		t.Errorf("health %+v of one that stands by, want ready and who holds the slot", h)
	}
	if got := metric(t, o, "walpost_reconnects_total", ""); got > 3 {
		t.Errorf("%v reconnects while the slot is in use: it does not wait, it hammers", got)
	}
	insert(db, "e", "a")
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sub.AwaitDelivered(t, 1); got[0] != "e" {
		t.Errorf("delivered %v, want e", got)
	}
	r.awaitStreaming()
}

// reader reads the slot of the test as another program would.
func reader(t *testing.T, db *testdb.DB) *pgconn.PgConn {
	t.Helper()
	config, err := postgres.ReplicationConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	err = pglogrepl.StartReplication(t.Context(), conn, db.Name, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'walpost'"}})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// F-30: two relays on one slot: the second waits until the first has left.
func TestRelay_deliversOneAtATime(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first, second := subscribertest.Recording(), subscribertest.Recording()
	one := streaming(t, options(t, db, first))
	two := start(t, options(t, db, second))
	eventually(t, "the second waits", func() bool { return two.Health().State == relay.Waiting })
	insertAll(db, "a", numbered("first", 10))
	first.AwaitDelivered(t, 10)
	one.shutDown()
	insertAll(db, "a", numbered("second", 10))
	second.AwaitDelivered(t, 10)
	once(t, first, numbered("first", 10))
	once(t, second, numbered("second", 10))
}

// The session is lost before anything was recorded of a slot that was just made.
func TestRelay_comesBackWhenItsFirstSessionIsEndedOverRowsThatWaited(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertAll(db, "a", numbered("waiting", 3))
	blocked := subscribertest.Blocking()
	r := start(t, options(t, db, blocked))
	blocked.AwaitCalls(t, 1)
	r.awaitStreaming()
	const reader = `SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE slot_name = $1`
	pid := db.Int(reader, db.Name)
	db.Exec(`SELECT pg_terminate_backend($1)`, pid)
	insertAll(db, "a", numbered("after", 3))
	eventually(t, "another session", func() bool {
		select {
		case err := <-r.ended:
			r.ended <- err
			t.Fatalf("relay ended with %v", err)
		default:
		}
		now := db.Int(reader, db.Name)
		return now != 0 && now != pid
	})
	blocked.Release()
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	once(t, blocked, append(numbered("waiting", 3), numbered("after", 3)...))
}

// S-290: a leader that is cut off hands out nothing new long before its lease ends, since it can record none of it. What it
// has in its handlers goes on.
func TestRelay_handsOutNothingNewWhileItsLeaseDoesNotAnswer(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	quick := make(chan struct{})
	var o relay.Options
	var inDoubt atomic.Int64 // attempts that began then
	sub := keeping(func(context.Context, subscriber.Delivery) error {
		if _, again := o.Lease.MayBegin(); again != nil {
			inDoubt.Add(1)
		}
		select {
		case <-quick:
		case <-time.After(time.Millisecond):
		}
		return nil
	})
	o = options(t, db, sub)
	o.Subscriptions[0].Lane.Concurrency = 1
	line, url := newLine(t, db.DSN)
	o = withLease(t, o, url)
	r := streaming(t, o)
	const events = 8000 // more than a lease lasts
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) SELECT 'e' || n, 't', 'k' || n % 50, '{}' FROM generate_series(1, $1) n`, events)
	eventually(t, "all are received, and some of them delivered", func() bool {
		return metric(t, o, "walpost_events_received_total", "source=lessons") == events && len(sub.events()) > 20
	})
	acquired := o.Lease.State().Acquired
	line.swallow()
	eventually(t, "it does not know whether it leads", func() bool { return metric(t, o, "walpost_lease_doubts_total", "") > 0 })
	if len(sub.events()) >= events {
		t.Error("nothing was left to hand out, so nothing was tested")
	}
	eventually(t, "it leads again", func() bool { return o.Lease.State().Acquired > acquired && o.Lease.Valid() })
	if got := inDoubt.Load(); got > 1 { // one may have asked just before
		t.Errorf("%d attempts began while the lease did not answer, want none", got)
	}
	close(quick)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	if got := len(sub.events()); got != events {
		t.Errorf("%d attempts for %d events", got, events)
	}
}
