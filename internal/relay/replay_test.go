package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/inbox"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// replays is the store of replays on the source of the options.
func replays(t *testing.T, o relay.Options) *replay.Store {
	t.Helper()
	var tables []*outbox.Table
	for _, source := range o.Sources {
		table, err := source.Inspect(t.Context(), o.Pool)
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	return replay.NewStore(o.Pool, o.Slot, tables, nil)
}

// askForReplay asks for a replay.
func askForReplay(t *testing.T, o relay.Options, request replay.Request) replay.Replay {
	t.Helper()
	if request.Subscriber == "" {
		request.Subscriber = "sub"
	}
	store := replays(t, o)
	estimate, err := store.Estimate(t.Context(), request, nil)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := store.Create(t.Context(), request, estimate.Rows, "ada", "to see")
	if err != nil {
		t.Fatal(err)
	}
	return asked
}

// awaitReplay waits until a replay is as wanted.
func awaitReplay(t *testing.T, o relay.Options, id int64, what string, so func(replay.Replay) bool) replay.Replay {
	t.Helper()
	var found replay.Replay
	store := replay.NewStore(o.Pool, o.Slot, nil, nil)
	eventually(t, what, func() bool {
		var err error
		found, err = store.Get(t.Context(), id)
		return err == nil && so(found)
	})
	return found
}

func isDone(r replay.Replay) bool { return r.State == replay.Done }

// again are the ids of the replayed deliveries, in their order.
func again(calls []subscribertest.Call) []string {
	var ids []string
	for _, c := range calls {
		if c.Replay {
			ids = append(ids, c.EventID)
		}
	}
	return ids
}

// delivered runs a relay until everything is marked.
func delivered(t *testing.T, db *testdb.DB, o relay.Options) *running {
	t.Helper()
	r := streaming(t, o)
	eventually(t, "everything is delivered and marked", func() bool { return unmarked(db) == 0 })
	return r
}

func TestReplay_sendsWhatIsChosenAndNothingElse(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := subscribertest.Recording()
	o := options(t, db, sub)
	o.Subscriptions[0].Filter.Events = []string{"lesson.*", "other.type"}
	r := streaming(t, o)
	insertAll(db, "a", numbered("a", 5))
	insertAll(db, "b", numbered("b", 5))
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('other', 'other.type', 'a', '{}'), ('unwanted', 'unwanted.type', 'a', '{}')`)
	eventually(t, "everything is delivered and marked", func() bool { return unmarked(db) == 0 })
	db.Exec(`UPDATE outbox SET created_at = '2026-01-01Z'::timestamptz + id * interval '1 minute'`)
	for _, test := range []struct {
		name    string
		request replay.Request
		want    []string
		seen    int64
	}{
		{"by key", replay.Request{Key: "a", Type: "lesson.completed"}, numbered("a", 5), 5},
		{"by type", replay.Request{Type: "other.type"}, []string{"other"}, 1},
		{"by time", replay.Request{
			Since: time.Date(2026, 1, 1, 0, 7, 0, 0, time.UTC), Until: time.Date(2026, 1, 1, 0, 9, 0, 0, time.UTC)}, []string{"b-1", "b-2"}, 2},
		{"by source and key, with what no one wants", replay.Request{Source: "lessons", Key: "a"}, append(numbered("a", 5), "other"), 7},
		{"nothing", replay.Request{Key: "missing"}, nil, 0},
	} {
		before := len(again(sub.Calls()))
		asked := askForReplay(t, o, test.request)
		done := awaitReplay(t, o, asked.ID, "the replay is done", isDone)
		if got := again(sub.Calls())[before:]; !slices.Equal(got, test.want) {
			t.Errorf("%s: sent %q, want %q", test.name, got, test.want)
		}
		if done.Seen() != test.seen || done.Estimated != test.seen || done.Delivered != int64(len(test.want)) || done.Problem != "" {
			t.Errorf("%s: %+v, want %d rows seen", test.name, done, test.seen)
		}
	}
	r.shutDown()
}

// Live events of a key and its replay are one sequence: the replay never comes before what is live.
func TestReplay_comesAfterWhatIsLiveAndLeavesOutWhatIsOwed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	handle, release := blockingOne("slow")
	sub := subscribertest.Handling("picky", func(ctx context.Context, d subscriber.Delivery) error {
		if strings.HasPrefix(d.ID, "bad") {
			return subscriber.Permanent(errors.New("no such user"))
		}
		return handle(ctx, d)
	})
	o := options(t, db, sub)
	r := streaming(t, o)
	insert(db, "bad", "b")
	insert(db, "slow", "a")
	insert(db, "behind", "a")
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('', 'lesson.completed', 'c', '{}')`)
	eventually(t, "two dead letters", func() bool { return db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead'`) == 2 })
	db.Exec(`DELETE FROM walpost.owed WHERE event_id LIKE 'row:%'`) // as if a person had discarded it
	eventually(t, "the slow one is in its handler", func() bool { return slices.Contains(ids(sub.Calls()), "slow") })
	asked := askForReplay(t, o, replay.Request{Source: "lessons"})
	awaitReplay(t, o, asked.ID, "it waits", func(r replay.Replay) bool { return strings.Contains(r.Problem, "live") })
	if got := again(sub.Calls()); got != nil {
		t.Errorf("replayed %q while the first event of the key was live", got)
	}
	insert(db, "after", "a") // later than the replay was asked for
	release()
	done := awaitReplay(t, o, asked.ID, "the replay is done", isDone)
	if got, want := again(sub.Calls()), []string{"slow", "behind"}; !slices.Equal(got, want) {
		t.Errorf("replayed %q, want %q", got, want)
	}
	if done.Owed != 1 || done.Invalid != 1 || len(done.Named) != 1 || !strings.Contains(done.Named[0], "event id is empty") || done.Seen() != done.Estimated {
		t.Errorf("got %+v, want one owed and one invalid that is named", done)
	}
	r.shutDown()
}

// F-17: a row that commits late, with a lower id than the replay has passed, is not the replay's: it comes
// live. One that commits before the replay gets there has come live first.
func TestReplay_missesNoRowThatCommitsAfterAHigherId(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := subscribertest.Recording()
	o := options(t, db, sub)
	r := streaming(t, o)
	late := session(t, db.DSN)
	mustExec(t, late, `BEGIN`)
	mustExec(t, late, `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('late', 'lesson.completed', 'a', '{}')`)
	insert(db, "early", "a")
	eventually(t, "the higher id is delivered", func() bool { return slices.Contains(ids(sub.Calls()), "early") })
	asked := askForReplay(t, o, replay.Request{Key: "a"})
	awaitReplay(t, o, asked.ID, "the replay is done", isDone)
	mustExec(t, late, `COMMIT`)
	eventually(t, "the lower id is delivered", func() bool { return slices.Contains(ids(sub.Calls()), "late") })
	awaitReplay(t, o, askForReplay(t, o, replay.Request{Key: "a"}).ID, "the second replay is done", isDone)
	if got, want := again(sub.Calls()), []string{"early", "late", "early"}; !slices.Equal(got, want) {
		t.Errorf("replayed %q, want %q: by id", got, want)
	}
	r.shutDown()
}

// Without a published column no one marks anything: what is finished is known from the stream alone.
func TestReplay_ofATableThatIsNeverMarked(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE facts (seq bigserial PRIMARY KEY, type text, partition_key text, payload jsonb)`)
	handle, release := blockingOne("2")
	sub := subscribertest.Handling("sub", handle)
	o := oneSource(options(t, db, sub), &outbox.Source{Name: "facts", Schema: "public", Table: "facts"})
	r := streaming(t, o)
	db.Exec(`INSERT INTO facts (type, partition_key, payload) SELECT 'fact', 'a', '{}' FROM generate_series(1, 3)`)
	eventually(t, "the second is in its handler", func() bool { return slices.Contains(ids(sub.Calls()), "2") })
	asked := askForReplay(t, o, replay.Request{Type: "fact"})
	awaitReplay(t, o, asked.ID, "it waits", func(r replay.Replay) bool { return strings.Contains(r.Problem, "live") })
	release()
	awaitReplay(t, o, asked.ID, "the replay is done", isDone)
	if got, want := again(sub.Calls()), []string{"1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("replayed %q, want %q", got, want)
	}
	if got, want := ids(sub.Calls()), []string{"1", "2", "3", "1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("delivered %q, want %q", got, want)
	}
	r.shutDown()
}

func TestReplay_makesDeadLettersAndRetriesTheRest(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertAll(db, "a", numbered("a", 3))
	var mu sync.Mutex
	failures := 2
	sub := subscribertest.Handling("sub", func(_ context.Context, d subscriber.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !d.Replay:
			return nil
		case d.ID == "a-0":
			return subscriber.Permanent(errors.New("not a second time"))
		case d.ID == "a-1" && failures > 0:
			failures--
			return errAway
		}
		return nil
	})
	o := options(t, db, sub)
	r := delivered(t, db, o)
	asked := askForReplay(t, o, replay.Request{Key: "a"})
	done := awaitReplay(t, o, asked.ID, "the replay is done", isDone)
	if done.Dead != 1 || done.Delivered != 2 {
		t.Errorf("got %+v, want 1 dead and 2 delivered", done.Progress)
	}
	if got, want := again(sub.Calls()), []string{"a-0", "a-1", "a-1", "a-1", "a-2"}; !slices.Equal(got, want) {
		t.Errorf("attempts %q, want %q", got, want)
	}
	if got := db.Text(`SELECT event_id || ' ' || error FROM walpost.owed WHERE state = 'dead'`); got != "a-0 not a second time" {
		t.Errorf("dead letter %q", got)
	}
	r.shutDown()
}

func TestReplay_aPausedSubscriberMakesItWait(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertAll(db, "a", numbered("a", 3))
	sub := subscribertest.Recording()
	o := options(t, db, sub)
	r := delivered(t, db, o)
	people := debt.NewStore(o.Pool, o.Slot)
	if err := people.Pause(t.Context(), "sub", "ada", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the relay knows", func() bool { return r.Progress().Subscribers[0].Paused })
	asked := askForReplay(t, o, replay.Request{Key: "a"})
	awaitReplay(t, o, asked.ID, "it says what it waits for", func(r replay.Replay) bool { return strings.Contains(r.Problem, "paused") })
	if err := people.Resume(t.Context(), "sub", "ada", ""); err != nil {
		t.Fatal(err)
	}
	awaitReplay(t, o, asked.ID, "the replay is done", isDone)
	if got, want := again(sub.Calls()), numbered("a", 3); !slices.Equal(got, want) {
		t.Errorf("replayed %q, want %q", got, want)
	}
	r.shutDown()
}

// Two replays of one subscriber take turns, one of another runs at the same time, and a cancelled one stops.
func TestReplay_oneAtATimeForEachSubscriber(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertAll(db, "a", numbered("a", 3))
	gate := make(chan struct{})
	one := subscribertest.Handling("one", func(ctx context.Context, d subscriber.Delivery) error {
		if !d.Replay || d.ID != "a-0" {
			return nil
		}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	two := subscribertest.Recording().Named("two")
	o := options(t, db, one, two)
	r := delivered(t, db, o)
	first := askForReplay(t, o, replay.Request{Subscriber: "one", Key: "a"})
	second := askForReplay(t, o, replay.Request{Subscriber: "one", Key: "a"})
	third := askForReplay(t, o, replay.Request{Subscriber: "one", Key: "a"})
	other := askForReplay(t, o, replay.Request{Subscriber: "two", Key: "a"})
	awaitReplay(t, o, other.ID, "the other's replay is done", isDone)
	eventually(t, "the first is under way", func() bool { return len(again(one.Calls())) == 1 })
	store := replays(t, o)
	for _, id := range []int64{first.ID, second.ID} {
		if _, err := store.Cancel(t.Context(), id, "ada", "enough"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Cancel(t.Context(), first.ID, "ada", "enough"); !errors.Is(err, replay.ErrOver) {
		t.Errorf("cancelled twice: %v, want ErrOver", err)
	}
	if _, err := store.Cancel(t.Context(), 999, "ada", ""); !errors.Is(err, replay.ErrNoReplay) {
		t.Errorf("cancelled one that is not there: %v, want ErrNoReplay", err)
	}
	awaitReplay(t, o, third.ID, "the third is under way", func(r replay.Replay) bool { return r.State == replay.Running })
	close(gate)
	awaitReplay(t, o, third.ID, "the third is done", isDone)
	for _, id := range []int64{first.ID, second.ID} {
		got, err := store.Get(t.Context(), id)
		if err != nil || got.State != replay.Cancelled || got.Delivered != 0 || got.EndedAt.IsZero() {
			t.Errorf("replay %d is %+v, %v; want it cancelled with nothing sent", id, got, err)
		}
	}
	if got, want := again(one.Calls()), []string{"a-0", "a-0", "a-1", "a-2"}; !slices.Equal(got, want) {
		t.Errorf("replayed %q, want %q", got, want)
	}
	if got := db.Texts(`SELECT who || ' ' || action || ' ' || why FROM walpost.audit ORDER BY id LIMIT 5`); !slices.Equal(got,
		[]string{"ada replay to see", "ada replay to see", "ada replay to see", "ada replay to see", "ada cancel replay enough"}) {
		t.Errorf("audit %q", got)
	}
	r.shutDown()
}

// After a clean stop a replay goes on where it was; after a kill it repeats no more than what it did in the
// last second.
func TestReplay_goesOnAfterAStopAndAfterAKill(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const total = 600
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e-' || n, 'lesson.completed', (n % 7)::text, '{}' FROM generate_series(0, $1::int) n`, total-1)
	sub := subscribertest.Recording()
	o := options(t, db, sub)
	delivered(t, db, o).shutDown()
	asked := askForReplay(t, o, replay.Request{Source: "lessons", Rate: 200})

	r := streaming(t, withRegistry(o))
	eventually(t, "some are replayed", func() bool { return len(again(sub.Calls())) >= 100 })
	r.shutDown()
	stopped := awaitReplay(t, o, asked.ID, "it is written", func(replay.Replay) bool { return true })
	if got := len(again(sub.Calls())); stopped.Delivered != int64(got) || stopped.State != replay.Running {
		t.Errorf("after a clean stop %d are written as delivered and %d were (%s)", stopped.Delivered, got, stopped.State)
	}

	_, kill := startMortal(t, db, withRegistry(o))
	eventually(t, "more are replayed", func() bool { return len(again(sub.Calls())) >= 300 })
	kill()
	before := len(again(sub.Calls()))
	r = streaming(t, withRegistry(o))
	awaitReplay(t, o, asked.ID, "the replay is done", isDone)
	r.shutDown()

	replayed := again(sub.Calls())
	first := make(map[string]int)
	for i, id := range replayed {
		if _, seen := first[id]; !seen {
			first[id] = i
		}
	}
	if len(first) != total {
		t.Errorf("%d of %d events were replayed", len(first), total)
	}
	// A second at 200 a second, and what was in hand.
	if repeated := len(replayed) - total; repeated > 300 || before < 300 {
		t.Errorf("%d events were repeated after the kill at %d", repeated, before)
	}
	for n := range total - 7 {
		if a, b := first[fmt.Sprintf("e-%d", n)], first[fmt.Sprintf("e-%d", n+7)]; a > b {
			t.Fatalf("event %d came after %d of its key", n, n+7)
		}
	}
}

// Each effect happens exactly once more, also when the relay is killed in between.
func TestReplay_againDoesEachEffectOnceMoreAcrossAKill(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const total = 300
	db.Exec(`CREATE TABLE effects (event_id text)`)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e-' || n, 'lesson.completed', (n % 7)::text, '{}' FROM generate_series(1, $1::int) n`, total)
	pool := openPool(t, db.DSN, 8)
	sub := subscribertest.Handling("sub", func(ctx context.Context, d subscriber.Delivery) error {
		return inbox.Once(ctx, pool, db.Name, "sub", []subscriber.Delivery{d}, func(ctx context.Context, tx pgx.Tx, _ []subscriber.Delivery) error {
			_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1)`, d.ID)
			return err
		})
	})
	effects := func() (most, least int64) {
		return db.Int(`SELECT max(n) FROM (SELECT count(*) AS n FROM effects GROUP BY event_id) e`),
			db.Int(`SELECT min(n) FROM (SELECT count(*) AS n FROM effects GROUP BY event_id) e`)
	}
	o := options(t, db, sub)
	delivered(t, db, o).shutDown()

	// Without --again the inbox skips every effect, and the estimate has said so.
	estimate, err := replays(t, o).Estimate(t.Context(), replay.Request{Subscriber: "sub", Source: "lessons"}, nil)
	if err != nil || estimate.Sent != total || estimate.Sources[0].InInbox != total {
		t.Errorf("estimate %+v, %v; want %d rows, all in the inbox", estimate, err, total)
	}
	r := streaming(t, withRegistry(o))
	awaitReplay(t, o, askForReplay(t, o, replay.Request{Source: "lessons"}).ID, "the first is done", isDone)
	r.shutDown()
	if most, _ := effects(); most != 1 {
		t.Errorf("an effect happened %d times, want once", most)
	}

	asked := askForReplay(t, o, replay.Request{Source: "lessons", Again: true, Rate: 150})
	_, kill := startMortal(t, db, withRegistry(o))
	eventually(t, "some effects have happened again", func() bool { return db.Int(`SELECT count(*) FROM effects`) > total+100 })
	kill()
	r = streaming(t, withRegistry(o))
	awaitReplay(t, o, asked.ID, "the second is done", isDone)
	r.shutDown()
	if most, least := effects(); most != 2 || least != 2 {
		t.Errorf("effects happened %d to %d times, want twice each", least, most)
	}
}

// withRegistry is for another life of a relay.
func withRegistry(o relay.Options) relay.Options {
	o.Registry = prometheus.NewRegistry()
	return o
}
