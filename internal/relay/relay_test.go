package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testwait"
)

// running is a relay under test.
type running struct {
	*relay.Relay
	t     *testing.T
	stop  context.CancelFunc
	ended chan error
}

// lessons is the source of the reference service.
func lessons() *outbox.Source {
	return &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox", Mark: true, Ours: true}
}

// options are those of a relay on db with the given subscribers.
func options(t *testing.T, db *testdb.DB, subs ...subscriber.Subscriber) relay.Options {
	o := relay.Options{
		Pool: db.Pinned, ReplicationURL: db.DSN,
		Slot: db.Name, Publication: "walpost",
		Sources:  []*outbox.Source{lessons()},
		Window:   ack.Window{Events: 10000, Bytes: 32 << 20},
		Drain:    5 * time.Second,
		MaxEvent: 16 << 20, WALBudget: relay.Auto,
		Registry: prometheus.NewRegistry(),
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, sub := range subs {
		if fake, ok := sub.(interface {
			Named(string) *subscribertest.Fake
		}); ok && len(subs) == 1 {
			fake.Named("sub") // the same one in each life of the relay, however it behaves
		}
		o.Subscriptions = append(o.Subscriptions, relay.Subscription{Subscriber: sub, Lane: lane.Options{
			Ordering: lane.ByKey, Concurrency: 8, Timeout: 10 * time.Second,
			Backoff:    lane.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
			StallAfter: time.Minute,
		}})
	}
	return o
}

func start(t *testing.T, o relay.Options) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Relay: relay.New(o), t: t, stop: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); r.wait() })
	return r
}

// shutDown stops softly and fails the test if that was an error.
func (r *running) shutDown() {
	r.t.Helper()
	r.stop()
	if err := r.wait(); err != nil {
		r.t.Fatalf("relay ended with %v", err)
	}
}

// wait returns what Run returned; it may be called more than once.
func (r *running) wait() error {
	err := <-r.ended
	r.ended <- err
	return err
}

// eventually waits for what no channel tells.
var eventually = testwait.Eventually

// insert writes one event in a transaction of its own.
func insert(db *testdb.DB, id, key string) {
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', $2, '{"n": 1}')`, id, key)
}

// ids are the events that were handed over, in that order.
func ids(calls []subscribertest.Call) []string {
	var ids []string
	for _, c := range calls {
		ids = append(ids, c.EventID)
	}
	return ids
}

func confirmedPast(db *testdb.DB, lsn string) func() bool {
	return func() bool {
		return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn >= $2::pg_lsn`, db.Name, lsn) == 1
	}
}

// confirmedCalls tells whether the slot has passed every event that a subscriber was called with. The end of the WAL would be
// another question: what others write behind the last event is confirmed a minute later.
func confirmedCalls(t *testing.T, db *testdb.DB, sub interface{ Calls() []subscribertest.Call }) func() bool {
	return func() bool {
		at := confirmed(t, db)
		return !slices.ContainsFunc(sub.Calls(), func(c subscribertest.Call) bool { return c.Position.Commit >= at })
	}
}

func TestRelay_deliversWhatWaitedAndWhatComesAndConfirmsIt(t *testing.T) {
	db := testdb.New(t)
	insert(db, "before-1", "a")
	insert(db, "before-2", "a")
	sub := subscribertest.Recording()
	r := start(t, options(t, db, sub))
	eventually(t, "the relay streams", func() bool { return r.Health().Ready })
	for i := range 10 {
		insert(db, fmt.Sprintf("after-%d", i), "a")
	}
	eventually(t, "12 deliveries", func() bool { return len(sub.Calls()) == 12 })
	want := []string{"before-1", "before-2"}
	for i := range 10 {
		want = append(want, fmt.Sprintf("after-%d", i))
	}
	if got := ids(sub.Calls()); !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	eventually(t, "all rows are marked", func() bool { return db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0 })
	eventually(t, "the slot has passed the events", confirmedCalls(t, db, sub))
	r.shutDown()
	if got := r.Health().State; got != relay.Stopped {
		t.Errorf("state %q after the end, want %q", got, relay.Stopped)
	}
}
