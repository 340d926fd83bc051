//go:build soak

package soak

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// A receiver answers 500 for twenty users and 204 for the others, at default options. A good event comes every
// ten seconds. The first may wait for as long as docs/GUARANTEES.md says, those after it not at all.
func TestSoak_aWebhookThatFailsForSomeUsersGetsTheEventsOfTheOthers(t *testing.T) { // S-40
	const failing = 20
	db := testdb.New(t)
	var mu sync.Mutex
	taken := make(map[string]time.Time) // guarded by mu
	well := false                       // takes the events of all users; guarded by mu
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if !well && strings.HasPrefix(r.Header.Get("Walpost-Key"), "bad") {
			http.Error(w, "not this user", http.StatusInternalServerError)
			return
		}
		taken[r.Header.Get("webhook-id")] = time.Now()
		w.WriteHeader(http.StatusNoContent)
	}))
	defer receiver.Close()
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	text := fmt.Sprintf("subscribers:\n  - {name: hook, kind: webhook, url: %q, allow_private: true}\n", receiver.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *testprogram.Process {
		return testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN},
			"relay", "--config="+file, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
	}
	relay := start()
	relay.AwaitStreaming()
	insert := func(id, key string) {
		db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', $2, '{}')`, id, key)
	}
	for i := range failing {
		insert(fmt.Sprintf("bad-%d-0", i), fmt.Sprintf("bad-%d", i))
	}
	time.Sleep(10 * time.Second) // the stretch in which nothing but failures is seen
	var worst time.Duration
	n := rounds(t, 60)
	for i := range n {
		id, begun := fmt.Sprintf("good-%d", i), time.Now()
		insert(id, fmt.Sprintf("good-%d", i))
		insert(fmt.Sprintf("bad-%d-%d", i%failing, i+1), fmt.Sprintf("bad-%d", i%failing))
		testprogram.Eventually(t, id+" to be taken", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return !taken[id].IsZero()
		})
		waited := time.Since(begun)
		if most := 5 * time.Second; i > 0 && waited > most {
			t.Errorf("%s waited %v behind keys that fail, want at most %v", id, waited, most)
		}
		worst = max(worst, waited)
		time.Sleep(max(0, 10*time.Second-waited))
	}
	t.Logf("%d good events among %d users that fail; the longest waited %v", n, failing, worst)
	if n == 60 { // ten minutes: more than twelve attempts that count, 30 seconds apart at most
		if got := db.Int(`SELECT count(*) FROM walpost.owed WHERE state = 'dead' AND event_id LIKE 'bad-%-0'`); got != failing {
			t.Errorf("%d of the %d events that fail are dead letters", got, failing)
		}
	}
	relay.Stop()
	mu.Lock()
	well = true
	mu.Unlock()
	endReceiverByLosingTheSlot(t, db, start, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Collect(maps.Keys(taken))
	})
}
