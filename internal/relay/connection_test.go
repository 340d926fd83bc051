package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// once checks that each event was handed over once, and that none is missing.
func once(t *testing.T, sub interface{ Calls() []subscribertest.Call }, want []string) {
	t.Helper()
	if got := ids(sub.Calls()); !same(got, want) {
		t.Errorf("handed over %v, want each of these once: %v", got, want)
	}
}

// F-32: the walsender is ended while events are delivered, open and still to be read.
func TestRelay_comesBackWhenItsSessionIsEnded(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	handle, release := blockingOne("open")
	sub := keeping(handle)
	o := options(t, db, sub)
	o.Subscriptions[0].Lane.Timeout = time.Minute
	r := streaming(t, o)
	insert(db, "first", "a")
	eventually(t, "the slot has passed the first event", passed(t, db, sub.await(t, "first")))
	insert(db, "open", "open")
	sub.await(t, "open")
	want := []string{"first", "open"}
	for round := range 3 {
		batch := numbered(fmt.Sprintf("round-%d", round), 20)
		want = append(want, batch...)
		insertAll(db, "a", batch[:10])
		db.Exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, db.Name)
		insertAll(db, "a", batch[10:])
		sub.AwaitCalls(t, len(want))
		r.awaitStreaming()
	}
	if got := stateOfRow(db, "open"); got != "unmarked" {
		t.Errorf("the open event is %s", got)
	}
	once(t, sub, want)
	release()
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	if got := metric(t, o, "walpost_reconnects_total", ""); got < 3 {
		t.Errorf("%v reconnects were counted, want 3", got)
	}
	r.shutDown()
	once(t, sub, want)
	if got := stillToCome(db); got != 0 {
		t.Errorf("the server would send %d rows again", got)
	}
}

func stateOfRow(db *testdb.DB, id string) string {
	return db.Text(`SELECT CASE WHEN published_at IS NULL THEN 'unmarked' ELSE 'marked' END FROM outbox WHERE event_id = $1`, id)
}

// The session ends in the middle of a transaction that does not fit into the window.
func TestRelay_goesOnInTheMiddleOfATransaction(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	blocked := subscribertest.Blocking()
	o := options(t, db, blocked)
	o.Window.Events = 20
	o.Subscriptions[0].Lane.Timeout = time.Minute
	r := streaming(t, o)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e-' || n, 'lesson.completed', 'one', '{}' FROM generate_series(0, 99) n`)
	eventually(t, "a full window", func() bool { return r.Progress().OpenEvents == 20 })
	db.Exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, db.Name)
	blocked.Release()
	blocked.AwaitDelivered(t, 100)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	if got, want := ids(blocked.Calls()), numbered("e", 100); !slices.Equal(got, want) {
		t.Errorf("handed over %v, want %v", got, want)
	}
}

// F-31: a fast stop of the server must not wait for an event that no one can finish, whatever its
// wal_sender_timeout.
func TestRelay_letsPostgresStopWhileAnEventIsOpen(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"wal_sender_timeout": "0"})
	db := testdb.On(t, server)
	handle, release := blockingOne("open")
	sub := keeping(handle)
	o := options(t, db, sub)
	o.Subscriptions[0].Lane.Timeout = time.Minute
	r := streaming(t, o)
	insert(db, "open", "a")
	open := sub.await(t, "open")
	begun := time.Now()
	// Restart fails when a fast stop takes longer than ten seconds.
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("stop and start took %v", time.Since(begun))
	db.Pool.Reset()
	if got := confirmed(t, db); got > open.Position.Commit {
		t.Errorf("confirmed %v, beyond the open event at %v", got, open.Position.Commit)
	}
	r.awaitStreaming()
	insert(db, "after", "b")
	sub.await(t, "after")
	release()
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	eventually(t, "the slot has passed the event", passed(t, db, open))
	once(t, sub, []string{"open", "after"})
}

// F-31: the server goes away under load, politely and not.
func TestRelay_losesAndRepeatsNothingWhenTheServerRestarts(t *testing.T) {
	for name, restart := range map[string]func(context.Context, *pgserver.Server) error{
		"fast stop": func(ctx context.Context, s *pgserver.Server) error { return s.Restart(ctx) },
		"crash": func(ctx context.Context, s *pgserver.Server) error {
			if err := s.Kill(ctx); err != nil {
				return err
			}
			return s.StartAgain(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testdb.NewServer(t, nil)
			db := testdb.On(t, server)
			sub := keeping(nil)
			r := streaming(t, options(t, db, sub))
			var want []string
			for round := range 2 {
				before, after := numbered(fmt.Sprintf("before-%d", round), 50), numbered(fmt.Sprintf("after-%d", round), 50)
				insertAll(db, "a", before)
				if err := restart(t.Context(), server); err != nil {
					t.Fatal(err)
				}
				db.Pool.Reset()
				insertAll(db, "a", after)
				want = append(append(want, before...), after...)
				sub.AwaitDelivered(t, len(want))
			}
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			r.shutDown()
			if got := ids(sub.Calls()); !slices.Equal(got, want) {
				t.Errorf("handed over %v, want %v", got, want)
			}
			if got := stillToCome(db); got != 0 {
				t.Errorf("the server would send %d rows again", got)
			}
		})
	}
}

// A frozen server is no server that is gone: nothing is lost or repeated when it thaws.
func TestRelay_outlivesAFrozenServer(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	sub := keeping(nil)
	r := streaming(t, options(t, db, sub))
	insertAll(db, "a", numbered("before", 10))
	sub.AwaitDelivered(t, 10)
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	// Long enough for a status to be due: how long no one answers is what this test is about.
	time.Sleep(4 * time.Second)
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	insertAll(db, "a", numbered("after", 10))
	sub.AwaitDelivered(t, 20)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.shutDown()
	once(t, sub, append(numbered("before", 10), numbered("after", 10)...))
}

// waits collects how long the relay waits before it opens its stream again.
type waits struct {
	slog.Handler
	mu  sync.Mutex
	all []time.Duration // guarded by mu
}

func (w *waits) Handle(ctx context.Context, line slog.Record) error {
	if line.Message == "the stream broke, will open it again" {
		line.Attrs(func(a slog.Attr) bool {
			if a.Key == "wait" {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.all = append(w.all, a.Value.Duration())
			}
			return true
		})
	}
	return w.Handler.Handle(ctx, line)
}

func (w *waits) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Max(w.all)
}

// S-55: each session is ended soon, and each has delivered something before: that is no server that is away.
func TestRelay_comesBackAtOnceAfterASessionThatDelivered(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	o := options(t, db, sub)
	said := &waits{Handler: o.Log.Handler()}
	o.Log = slog.New(said)
	r := streaming(t, o)
	for round := range 8 {
		id := fmt.Sprintf("round-%d", round)
		insert(db, id, "a")
		sub.await(t, id)
		db.Exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, db.Name)
		eventually(t, "the session is counted", func() bool { return metric(t, o, "walpost_reconnects_total", "") >= float64(round+1) })
	}
	if got := said.longest(); got > time.Second {
		t.Errorf("waited up to %s before the next session, want at most 1s", got)
	}
	r.shutDown()
}
