package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// victimDSN makes the test binary a relay of two subscribers on that database, one of which does not
// survive the event "killer"; victimSlot is its slot.
const (
	victimDSN  = "RELAY_TEST_VICTIM_DSN"
	victimSlot = "RELAY_TEST_VICTIM_SLOT"
	victimFree = "RELAY_TEST_VICTIM_FREE"
	victimPipe = "RELAY_TEST_VICTIM_PIPE"
	killed     = 7 // exit code
)

// victimBudget is 0, so that debt holds no WAL, where a test says so.
func victimBudget() int64 {
	if os.Getenv(victimFree) != "" {
		return 0
	}
	return relay.Auto
}

// victim runs until it is killed or told to stop.
func victim(dsn string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := postgres.Open(ctx, dsn, "victim")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	writing := func(name string) subscriber.Subscriber {
		sub := subscribertest.Handling(name, func(ctx context.Context, d subscriber.Delivery) error {
			if name == "fragile" && d.ID == "killer" {
				os.Exit(killed)
			}
			_, err := pool.Exec(ctx, `INSERT INTO public.taken VALUES ($1, $2)`, name, d.ID)
			return err
		})
		if os.Getenv(victimPipe) != "" {
			return sub.InPipeline()
		}
		return sub
	}
	o := relay.Options{
		Pool: pool, ReplicationURL: dsn, Slot: os.Getenv(victimSlot), Publication: "walpost",
		Sources: []*outbox.Source{lessons()}, Window: ack.Window{Events: 10000, Bytes: 32 << 20}, MaxEvent: 16 << 20,
		WALBudget: victimBudget(), Drain: 5 * time.Second, Registry: prometheus.NewRegistry(),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	for _, name := range []string{"fragile", "sturdy"} {
		o.Subscriptions = append(o.Subscriptions, relay.Subscription{Subscriber: writing(name), Lane: lane.Options{
			Ordering: lane.ByKey, Concurrency: 8, Batch: 500, Timeout: 10 * time.Second, StallAfter: time.Minute,
			Backoff: lane.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		}})
	}
	if err := relay.New(o).Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// An event that ends the process is found after a few lives without progress and becomes a dead letter; everything else is
// delivered. A pipeline, too, has one event at a time then.
func TestRelay_findsTheEventThatKillsItsProcess(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{"calls": nil, "pipeline": {victimPipe + "=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			findsTheKiller(t, env)
		})
	}
}

func findsTheKiller(t *testing.T, env []string) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE taken (subscriber text, event_id text)`)
	streaming(t, options(t, db, newChanging("fragile", taking), newChanging("sturdy", taking))).shutDown()
	want := []string{"killer"}
	for i := range 10 {
		insert(db, fmt.Sprint("before-", i), fmt.Sprint("k", i))
		want = append(want, fmt.Sprint("before-", i), fmt.Sprint("after-", i))
	}
	insert(db, "killer", "k3")
	for i := range 10 {
		insert(db, fmt.Sprint("after-", i), fmt.Sprint("k", i))
	}
	slices.Sort(want)
	has := func(name string) []string {
		return db.Texts(`SELECT DISTINCT event_id FROM taken WHERE subscriber = $1 ORDER BY 1`, name)
	}

	lives := 0
	for found := false; !found; lives++ {
		if lives == 20 { // a life in which something was confirmed does not count
			t.Fatal("20 lives did not find the event that ends them")
		}
		found = oneLife(t, db, func() bool { return len(dead(db)) > 0 && len(has("fragile")) == 20 && len(has("sturdy")) == 21 }, env...)
	}
	t.Logf("found in life %d", lives)
	if got, want := dead(db), []string{"fragile/killer"}; !slices.Equal(got, want) {
		t.Errorf("dead letters %v, want %v", got, want)
	}
	if got := has("sturdy"); !slices.Equal(got, want) {
		t.Errorf("the sturdy one got %v, want %v", got, want)
	}
	want = slices.DeleteFunc(want, func(id string) bool { return id == "killer" })
	if got := has("fragile"); !slices.Equal(got, want) {
		t.Errorf("the fragile one got %v, want %v", got, want)
	}
	if got := db.Int(`SELECT unclean_starts FROM walpost.slots WHERE slot = $1`, db.Name); got != 0 {
		t.Errorf("after a clean stop %d unclean starts are counted", got)
	}
}

// oneLife runs a victim until it has died of its event, or done is true, and then stops it.
func oneLife(t *testing.T, db *testdb.DB, done func() bool, env ...string) bool {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), victimDSN+"="+db.DSN, victimSlot+"="+db.Name)
	command.Env = append(command.Env, env...)
	command.Stderr = t.Output()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // ProcessState says how it ended
	}()
	dead := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	eventually(t, "the end of a life, or of the work", func() bool { return dead() || done() })
	wantCode := killed
	if !dead() {
		wantCode = 0
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	<-ended
	if got := command.ProcessState.ExitCode(); got != wantCode {
		t.Fatalf("exit code %d, want %d", got, wantCode)
	}
	return wantCode == 0
}

// The process may have been killed from outside, and then one event at a time is only slow: when all that it
// can have had in hand is handled, safe mode is over.
func TestRelay_endsSafeModeWhenWhatWasInHandIsHandled(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	debtor := newChanging("debtor", func(context.Context, subscriber.Delivery) error { return subscribertest.ErrFailing })
	sub := subscribertest.Recording()
	o := options(t, db, debtor, sub)
	o.Subscriptions[0].Lane.StallAfter = 100 * time.Millisecond
	streaming(t, o).shutDown()
	insert(db, "owed", "a") // and it holds the confirmed position
	db.Exec(`UPDATE walpost.slots SET unclean_starts = 5`)
	o = options(t, db, debtor, sub)
	o.Subscriptions[0].Lane.StallAfter = 100 * time.Millisecond
	o.Settled = time.Second
	r := streaming(t, o)
	sub.AwaitDelivered(t, 1)
	eventually(t, "safe mode is over", func() bool { return db.Int(`SELECT unclean_starts FROM walpost.slots`) == 0 })
	r.awaitStreaming()
	insert(db, "next", "b")
	if got, want := sub.AwaitDelivered(t, 2), []string{"owed", "next"}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
}

// A process that was overtaken says nothing about how its successor lives: the count of starts is the successor's.
func TestRelay_leavesTheCountOfStartsToItsSuccessor(t *testing.T) { // S-260
	t.Parallel()
	db := testdb.New(t)
	r := streaming(t, options(t, db, subscribertest.Recording()))
	db.Exec(`UPDATE walpost.fence SET term = term + 1; UPDATE walpost.slots SET unclean_starts = 2`)
	r.shutDown()
	if got := db.Int(`SELECT unclean_starts FROM walpost.slots`); got != 2 {
		t.Errorf("unclean_starts is %d after the clean stop of a process that was overtaken, want the 2 of its successor", got)
	}
}

// S-59: the event that ends the process is owed, above the budget, or in a replay, and meanwhile others are delivered
// and confirmed in each life. It is found all the same.
func TestRelay_findsTheEventThatKillsItsProcessOutsideOfTheStream(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"debt", "replay"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(`CREATE TABLE taken (subscriber text, event_id text)`)
			r := streaming(t, options(t, db, newChanging("fragile", taking), newChanging("sturdy", taking)))
			if place == "debt" {
				db.Exec(`UPDATE walpost.subscribers SET state = 'paused' WHERE name = 'fragile'`)
				eventually(t, "it is paused", func() bool { return r.Progress().Subscribers[0].Paused })
			}
			for i := range 5 {
				insert(db, fmt.Sprint("before-", i), fmt.Sprint("k", i))
			}
			insert(db, "killer", "k9")
			insert(db, "last", "k8")
			if place == "debt" {
				eventually(t, "all are owed", func() bool {
					return db.Int(`SELECT count(*) FROM walpost.owed WHERE subscriber = 'fragile' AND state = 'waiting'`) == 7
				})
			} else {
				eventually(t, "all is delivered and marked", func() bool { return unmarked(db) == 0 })
			}
			r.shutDown()
			if place == "debt" {
				db.Exec(`UPDATE walpost.subscribers SET state = 'live' WHERE name = 'fragile'`)
			} else {
				db.Exec(`INSERT INTO walpost.replays (slot, subscriber, who, estimated, bounds)
					VALUES ($1, 'fragile', 'me', 7, jsonb_build_object('lessons', jsonb_build_array((SELECT max(id)::text FROM outbox))))`, db.Name)
			}
			lives := 0
			for found := false; !found; lives++ {
				if lives == 8 {
					t.Fatalf("8 lives did not find the event that ends them; counted %d, quarantined %s", db.Int(`SELECT unclean_starts FROM walpost.slots`),
						db.Text(`SELECT coalesce(quarantined::text, 'none') FROM walpost.slots`))
				}
				insert(db, fmt.Sprint("live-", lives), "other")
				found = oneLife(t, db, func() bool { return slices.Contains(dead(db), "fragile/killer") }, victimFree+"=1")
			}
			t.Logf("found in life %d", lives)
		})
	}
}

// S-292: a start waits to be counted. A stop then is as clean as any other, and a lost connection is no reason to end.
func TestRelay_isStoppedCleanlyWhileItsStartIsCounted(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	streaming(t, options(t, db, subscribertest.Recording())).shutDown()
	const waits = `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%unclean_starts%' AND datname = current_database()`
	for _, what := range []string{"a stop", "a lost connection"} {
		t.Run(what, func(t *testing.T) {
			tx, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if _, err := tx.Exec(t.Context(), `SELECT FROM walpost.slots FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			o, said := logged(t, options(t, db, subscribertest.Recording()))
			r := start(t, o)
			eventually(t, "the start to be counted", func() bool { return db.Int(waits) > 0 })
			if what == "a stop" {
				r.stop()
			} else {
				db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`)
				eventually(t, "it says that it tries again", func() bool { return strings.Contains(said.String(), "will try again") })
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if what != "a stop" {
				r.awaitStreaming()
			}
			r.shutDown() // without an error
			if got := db.Int(`SELECT unclean_starts FROM walpost.slots`); got != 0 {
				t.Errorf("%d unclean starts are counted, want 0", got)
			}
		})
	}
}
