//go:build soak

package soak

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// randomMoment is a moment up to d from now.
func randomMoment(d time.Duration) time.Duration { return rand.N(d) }

// Completions pour in from eight learners all the time, 200 a second, while the relay is killed at random
// moments: before it streams, in the middle of deliveries, between delivery and confirmation.
func TestSoak_relayKilledAtAnyMomentHasEveryEffectOnce(t *testing.T) {
	db := testdb.New(t)
	api := startAPI(t, db).AwaitAPI()
	stop := until(func(ctx context.Context) {
		var learners sync.WaitGroup
		for user := range 8 {
			learners.Go(func() {
				learner := testprogram.Learner{User: int64(user + 1)}
				every(ctx, 40*time.Millisecond, func() {
					if _, err := learner.Complete(ctx, api); err != nil && ctx.Err() == nil {
						t.Errorf("complete a lesson: %v", err)
					}
				})
			})
		}
		learners.Wait()
	})
	defer stop()
	n := rounds(t, 100)
	for range n {
		relay := startRelay(t, db)
		testprogram.Pause(t, randomMoment(2*time.Second))
		relay.Kill()
	}
	stop()

	// After three kills a relay starts in safe mode, and what a kill finds in its hand becomes a dead letter, as if it had
	// caused the end. A person sends those again.
	relay := startRelay(t, db)
	relay.AwaitStreaming()
	redriven := int64(0)
	testprogram.Within(t, 10*time.Minute, "every row to be published", func() bool {
		if dead := debttest.Dead(db); dead > 0 {
			redriven += dead
			redriveAll(t, db)
		}
		return db.Int(`SELECT count(*) FROM (SELECT FROM outbox WHERE published_at IS NULL LIMIT 1) o`) == 0
	})
	relay.Stop()
	if redriven > int64(n) {
		t.Errorf("%d events were taken for the one that ends the process, in %d kills", redriven, n)
	}

	endLessonsByLosingTheSlot(t, db)
	t.Logf("%d kills, %d completions, %d redriven", n, db.Int(`SELECT count(*) FROM outbox`), redriven)
}

// redriveAll sends all dead letters of the lessons' subscribers again, as a person does.
func redriveAll(t *testing.T, db *testdb.DB) {
	t.Helper()
	for _, name := range []string{"achievements", "analytics", "notifications", "recommendations"} {
		redrive := exec.CommandContext(t.Context(), testprogram.Binary(t), "owed", "redrive", "--slot="+db.Name, "--subscriber="+name, "--why=killed", "--yes")
		redrive.Env = append(os.Environ(), "WALPOST_DATABASE_URL="+db.DSN)
		if out, err := redrive.CombinedOutput(); err != nil {
			t.Errorf("redrive: %v\n%s", err, out)
		}
	}
}

// endLessonsByLosingTheSlot lets a relay bring everything to the four subscribers of the lessons, and then once more
// with a slot that was lost.
func endLessonsByLosingTheSlot(t *testing.T, db *testdb.DB) {
	t.Helper()
	relay := startRelay(t, db)
	ops := relay.AwaitStreaming()
	testprogram.AwaitEffects(t, db)
	testprogram.AwaitIdle(t, db, ops)
	relay.Stop()
	if got := testprogram.StillToCome(t, db); got != 0 {
		t.Errorf("after the clean stop in the end the server would send %d events again", got)
	}
	dropSlot(t, db)
	relay = startRelay(t, db) // repairs from the table: what is not marked comes again, what is marked never
	testprogram.AwaitIdle(t, db, relay.AwaitStreaming())
	testprogram.AwaitEffects(t, db)
	relay.Stop()
}

// F-18
func TestSoak_apiKilledAtAnyMomentLeavesNoCompletionWithoutItsEvent(t *testing.T) {
	db := testdb.New(t)
	var url atomic.Pointer[string] // of the API that runs at the moment
	var mu sync.Mutex
	answered := map[string]bool{} // guarded by mu; events that a client was told of
	stop := until(func(ctx context.Context) {
		var clients sync.WaitGroup
		for user := range 8 {
			clients.Go(func() {
				learner := testprogram.Learner{User: int64(user + 1)}
				every(ctx, time.Millisecond, func() {
					api := url.Load()
					if api == nil {
						return
					}
					id, err := learner.Complete(ctx, *api)
					if err != nil {
						return // killed in the middle: no one knows what became of it
					}
					mu.Lock()
					defer mu.Unlock()
					answered[id] = true
				})
			})
		}
		clients.Wait()
	})
	defer stop()
	n := rounds(t, 100)
	for range n {
		server := startAPI(t, db)
		api := server.AwaitAPI()
		url.Store(&api)
		testprogram.Pause(t, randomMoment(300*time.Millisecond))
		server.Kill()
		url.Store(nil)
	}
	stop()

	completions, events := db.Int(`SELECT count(*) FROM lesson_progress WHERE completed`), db.Int(`SELECT count(*) FROM outbox`)
	pairs := db.Int(`SELECT count(*) FROM lesson_progress p JOIN outbox o ON o.event_id = p.event_id`)
	if completions == 0 || completions != events || pairs != events {
		t.Errorf("%d completions, %d events, %d of them belong together; want the same number, above 0", completions, events, pairs)
	}
	for _, id := range db.Texts(`SELECT event_id FROM outbox`) {
		delete(answered, id)
	}
	if len(answered) != 0 {
		t.Errorf("%d completions were answered with 200 and are not there", len(answered))
	}
	t.Logf("%d kills, %d completions", n, completions)
	endLessonsByLosingTheSlot(t, db)
}
