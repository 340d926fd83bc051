package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

func TestMain(m *testing.M) { os.Exit(testprogram.Main(m)) }

// startAPI and startRelay start the program as processes of its own on db. The relay's slot has the name
// of the database, and its log every handled event.
func startAPI(t *testing.T, db *testdb.DB) *testprogram.Process {
	t.Helper()
	return testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "api", "--auth=dev", "--api-listen=127.0.0.1:0")
}

func startRelay(t *testing.T, db *testdb.DB) *testprogram.Process {
	t.Helper()
	return testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN},
		"relay", "--slot="+db.Name, "--ops-listen=127.0.0.1:0", "--log-level=debug")
}

// handled counts the events in the logs of relays, by subscriber and event. Of the four, notifications
// alone writes no line for an event that it has seen before.
func handled(relays ...*testprogram.Process) map[[2]string]int {
	counts := make(map[[2]string]int)
	for _, relay := range relays {
		for line := range strings.Lines(relay.Output()) {
			var entry struct{ Msg, Subscriber, Event string }
			if json.Unmarshal([]byte(line), &entry) != nil {
				continue
			}
			switch entry.Msg {
			case "achievements granted", "lesson recorded", "learner notified", "lesson counted":
				counts[[2]string{entry.Subscriber, entry.Event}]++
			}
		}
	}
	return counts
}

// wantHandledOnce checks that each event is once in the logs of each of the four subscribers.
func wantHandledOnce(t *testing.T, ids []string, relays ...*testprogram.Process) {
	t.Helper()
	counts := handled(relays...)
	for _, id := range ids {
		for _, name := range config.LessonKinds {
			if got := counts[[2]string{name, id}]; got != 1 {
				t.Errorf("%s handled event %s %d times, want once", name, id, got)
			}
		}
	}
	if got, want := len(counts), len(ids)*len(config.LessonKinds); got != want {
		t.Errorf("%d events in the logs of all subscribers, want %d", got, want)
	}
}

func complete(t *testing.T, learner *testprogram.Learner, api string, n int) (ids []string) {
	t.Helper()
	for range n {
		id, err := learner.Complete(t.Context(), api)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// The kill comes when every subscriber has every event and nothing of that is confirmed: a lock on the
// table of the confirms holds that moment open.
func TestProgram_sendsAgainAfterAKillBetweenDeliveryAndConfirmationAndEffectsStaySingle(t *testing.T) {
	db := testdb.New(t)
	api := startAPI(t, db).AwaitAPI()
	first := startRelay(t, db)
	first.AwaitStreaming()

	confirms, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer confirms.Rollback(t.Context())
	if _, err := confirms.Exec(t.Context(), `LOCK TABLE walpost.slots IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	ids := append(complete(t, &testprogram.Learner{User: 1}, api, 12), complete(t, &testprogram.Learner{User: 2}, api, 5)...)
	testprogram.Eventually(t, "every subscriber to handle every event", func() bool {
		return len(handled(first)) == len(ids)*len(config.LessonKinds)
	})
	first.Kill()
	if err := confirms.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := testprogram.StillToCome(t, db), int64(len(ids)); got != want {
		t.Fatalf("the server would send %d events again, want %d: the kill did not come before the confirm", got, want)
	}

	second := startRelay(t, db)
	ops := second.AwaitStreaming()
	ids = append(ids, complete(t, &testprogram.Learner{User: 3}, api, 1)...)
	testprogram.AwaitEffects(t, db)
	_, body := get(t, ops+"/progress")
	var progress relay.Progress
	if err := json.Unmarshal([]byte(body), &progress); err != nil {
		t.Fatal(err)
	}
	if got, want := len(progress.Subscribers), len(config.LessonKinds); got != want {
		t.Errorf("%d subscribers, want %d", got, want)
	}
	for _, s := range progress.Subscribers {
		if want := uint64(len(ids)); s.Delivered != want {
			t.Errorf("%s got %d deliveries of the second relay, want %d: all of the first again, and a new one", s.Name, s.Delivered, want)
		}
	}
	second.Stop()
}

// F-43: relay and API are stopped under load, and then the relay in the moment in which the last event is
// finished.
func TestProgram_repeatsNothingAfterCleanStopsUnderLoad(t *testing.T) {
	db := testdb.New(t)
	server := startAPI(t, db)
	api := server.AwaitAPI()
	var mu sync.Mutex
	var ids []string // guarded by mu; of the completions that were answered
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(ids)
	}
	var learners sync.WaitGroup
	for user := range 4 {
		learners.Go(func() {
			learner := testprogram.Learner{User: int64(user + 1)}
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for ; ; <-pace.C {
				id, err := learner.Complete(t.Context(), api)
				if err != nil {
					return // the API has stopped
				}
				mu.Lock()
				ids = append(ids, id)
				mu.Unlock()
			}
		})
	}
	var relays []*testprogram.Process
	for range 3 {
		relay := startRelay(t, db)
		relays = append(relays, relay)
		relay.AwaitStreaming()
		before := count()
		testprogram.Eventually(t, "load while the relay streams", func() bool { return count() > before+50 })
		relay.Stop()
	}
	server.Stop()
	learners.Wait()

	// What the stops left as debt is paid, and lets the slot go on.
	next := func() (relay *testprogram.Process, ops string) {
		relay = startRelay(t, db)
		relays = append(relays, relay)
		return relay, relay.AwaitStreaming()
	}
	relay, ops := next()
	testprogram.AwaitEffects(t, db)
	testprogram.AwaitIdle(t, db, ops)
	relay.Stop()

	api = startAPI(t, db).AwaitAPI()
	learner := testprogram.Learner{User: 9}
	for range 3 {
		relay, _ = next()
		ids = append(ids, complete(t, &learner, api, 30)...)
		testprogram.Eventually(t, "the last event at every subscriber", func() bool {
			return len(handled(relays...)) == len(ids)*len(config.LessonKinds)
		})
		relay.Stop()
		if got := testprogram.StillToCome(t, db); got != 0 {
			t.Errorf("after a clean stop the server would send %d events again", got)
		}
	}
	relay, ops = next()
	testprogram.AwaitIdle(t, db, ops)
	testprogram.AwaitEffects(t, db)
	relay.Stop()
	wantHandledOnce(t, ids, relays...)
}

// A new subscriber is a line among the kinds and a name in the file; no one else notices.
func TestProgram_takesAFifthAndASixthSubscriber(t *testing.T) {
	db := testdb.New(t)
	fifth, sixth := subscribertest.Recording().Named("fifth"), subscribertest.Recording().Named("sixth").InBatches()
	kinds := app.Subscribers()
	kinds["fifth"] = app.Kind{New: func(app.Resources) (subscriber.Subscriber, error) { return fifth, nil }}
	kinds["sixth"] = app.Kind{New: func(app.Resources) (subscriber.Subscriber, error) { return sixth, nil }}

	file := filepath.Join(t.TempDir(), "walpost.yaml")
	text := "subscribers:\n"
	for _, name := range append(config.LessonKinds, "fifth", "sixth") {
		text += fmt.Sprintf("  - name: %s\n", name)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name}
	api := start(t, nil, env, "api", "--auth=dev", "--api-listen=127.0.0.1:0", "--log-format=json")
	relay := start(t, kinds, env, "relay", "--config="+file, "--ops-listen=127.0.0.1:0")
	var url string
	waitFor(t, "the API", func() bool {
		_, rest, found := strings.Cut(api.stderr.String(), `"url":"`)
		url, _, _ = strings.Cut(rest, `"`)
		return found
	})
	ids := complete(t, &testprogram.Learner{User: 1}, url, 12)
	for name, delivered := range map[string][]string{
		"fifth": fifth.AwaitDelivered(t, len(ids)), "sixth": sixth.AwaitDelivered(t, len(ids)),
	} {
		if got := strings.Join(delivered, " "); got != strings.Join(ids, " ") {
			t.Errorf("%s got %s, want %s", name, got, strings.Join(ids, " "))
		}
	}
	testprogram.AwaitEffects(t, db)
	relay.stop()
	if code := <-relay.exited; code != exitFine {
		t.Errorf("exit code %d, want %d", code, exitFine)
	}
}
