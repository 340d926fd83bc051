//go:build soak

package soak

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// F-31: pg_ctl stop -m fast, with a leader and a standby connected, idle and with an event in a handler that
// does not end. The event is not confirmed, and delivered once the server is there again.
func TestSoak_postgresStopsInAMomentWhileRelaysAreConnected(t *testing.T) {
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	var hanging atomic.Bool
	var calls, taken atomic.Int64
	var received sync.Map // ids
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection is not seen
		if hanging.Load() {
			<-r.Context().Done()
			return
		}
		received.Store(r.Header.Get("webhook-id"), true)
		taken.Add(1)
	}))
	defer receiver.Close()
	relays := []*testprogram.Process{
		startWebhookRelay(t, db, db.DSN, receiver.URL, 4),
		startWebhookRelay(t, db, db.DSN, receiver.URL, 4),
	}
	settled := func() bool {
		return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE active`) == 1 &&
			db.Int(`SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'walpost/%' AND wait_event = 'ClientRead'`) >= 2
	}
	took := map[string][]time.Duration{}
	var away []time.Duration
	n := rounds(t, 20)
	for round := range n {
		kind := []string{"idle", "open event"}[round%2]
		testprogram.Within(t, time.Minute, "one leads and one stands by", settled)
		hanging.Store(kind == "open event")
		if kind == "open event" {
			before := calls.Load()
			db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 't', 'k', '{}')`, fmt.Sprintf("open-%d", round))
			testprogram.Within(t, time.Minute, "the event is in the handler", func() bool { return calls.Load() > before })
		}
		begun := time.Now()
		if err := syscall.Kill(server.PID(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		testprogram.Within(t, time.Minute, "the server has stopped", func() bool { return server.PID() == 0 })
		took[kind] = append(took[kind], time.Since(begun))
		hanging.Store(false)
		if err := server.StartAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
		begun = time.Now()
		db.Pool.Reset()
		last := taken.Load()
		db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 't', 'k', '{}')`, fmt.Sprintf("after-%d", round))
		testprogram.Within(t, time.Minute, "what was open and what came after", func() bool {
			return taken.Load() > last && db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0
		})
		away = append(away, time.Since(begun))
	}
	for _, relay := range relays {
		relay.Stop()
	}
	for _, kind := range []string{"idle", "open event"} {
		if all := slices.Sorted(slices.Values(took[kind])); len(all) > 0 {
			t.Logf("%s: pg_ctl stop -m fast took %v (median), %v at most, %d times", kind,
				all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond), len(all))
		}
	}
	slices.Sort(away)
	t.Logf("everything was delivered %v (median), %v at most, after the server was there again", away[len(away)/2].Round(10*time.Millisecond), away[len(away)-1].Round(10*time.Millisecond))
	endReceiverByLosingTheSlot(t, db, func() *testprogram.Process { return startWebhookRelay(t, db, db.DSN, receiver.URL, 4) }, func() (ids []string) {
		received.Range(func(id, _ any) bool {
			ids = append(ids, id.(string))
			return true
		})
		return ids
	})
}
