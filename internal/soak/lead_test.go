//go:build soak

package soak

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// F-30, F-45: two relays of one slot, of which the leader is killed, frozen or cut off, again and again under load. The
// receiver is a webhook, so what it is told comes from the deliveries themselves.
func TestSoak_theNextRelayTakesOverFromOneThatDiesFreezesOrIsCutOff(t *testing.T) {
	const concurrency = 4
	db := ownServer(t)
	receiver := newTermReceiver()
	server := httptest.NewServer(receiver)
	defer server.Close()
	stop := until(func(ctx context.Context) {
		n := 0
		every(ctx, 4*time.Millisecond, func() {
			n++
			_, err := db.Pool.Exec(ctx, `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 't', $2, '{}')`,
				fmt.Sprintf("%08d", n), fmt.Sprint(n%20))
			if err != nil && ctx.Err() == nil {
				t.Errorf("insert: %v", err)
			}
		})
	})
	defer stop()

	relay := func() (*testprogram.Process, *wire) {
		w := newWire(t, db)
		return startWebhookRelay(t, db, w.dsn, server.URL, concurrency), w
	}
	leader, leaderWire := relay()
	receiver.awaitTerm(t, 1)
	standby, standbyWire := relay()
	standby.Await(`"another relay leads; standing by"|(another relay leads)`)

	took, again := map[string][]time.Duration{}, map[string]int{}
	troubles := []string{"kill -9", "SIGSTOP", "cut"}
	n, counted, last := rounds(t, 50), 0, ""
	for round := range n {
		trouble := troubles[round%len(troubles)]
		before := receiver.term()
		testprogram.Pause(t, randomMoment(500*time.Millisecond))
		repeated := receiver.repeats() // what the leader has sent again by now comes from the trouble before
		again[last] += repeated - counted
		counted, last = repeated, trouble
		begun := time.Now()
		switch trouble {
		case "kill -9":
			leader.Kill()
		case "SIGSTOP":
			receiver.allowLate(concurrency)
			_ = syscall.Kill(leader.PID(), syscall.SIGSTOP)
		case "cut":
			leaderWire.cut()
		}
		receiver.awaitTerm(t, before+1)
		took[trouble] = append(took[trouble], time.Since(begun))
		switch trouble {
		case "kill -9":
			leader, leaderWire = relay()
		case "SIGSTOP":
			_ = syscall.Kill(leader.PID(), syscall.SIGCONT)
		case "cut":
			leaderWire.restore()
		}
		leader, standby, leaderWire, standbyWire = standby, leader, standbyWire, leaderWire
		testprogram.Within(t, time.Minute, "the other relay stands by again", func() bool {
			return db.Int(`SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_locks%' AND application_name LIKE 'walpost/%'`) > 0 && !standbyWire.isCut()
		})
	}
	stop()
	testprogram.Pause(t, time.Second)
	again[last] += receiver.repeats() - counted
	var total int64
	testprogram.Within(t, 2*time.Minute, "everything is received", func() bool {
		total = db.Int(`SELECT count(*) FROM outbox`) // the insert that stop called off may still commit
		return int64(receiver.distinct()) == total
	})
	for _, fault := range receiver.faults() {
		t.Error(fault)
	}
	for _, trouble := range troubles {
		if all := slices.Sorted(slices.Values(took[trouble])); len(all) > 0 {
			t.Logf("%s: %d times, the next relay delivered after %v (median), %v at most; %d deliveries again", trouble, len(all),
				all[len(all)/2].Round(10*time.Millisecond), all[len(all)-1].Round(10*time.Millisecond), again[trouble])
		}
	}
	t.Logf("%d takeovers, %d events, %d deliveries again", n, total, receiver.repeats())
	leader.Stop()
	standby.Stop()
	endReceiverByLosingTheSlot(t, db, func() *testprogram.Process { return startWebhookRelay(t, db, db.DSN, server.URL, concurrency) }, receiver.ids)
}

// F-30: a planned handover repeats nothing.
func TestSoak_aPlannedHandoverRepeatsNothing(t *testing.T) {
	db := ownServer(t)
	receiver := newTermReceiver()
	server := httptest.NewServer(receiver)
	defer server.Close()
	stop := until(func(ctx context.Context) {
		n := 0
		every(ctx, 4*time.Millisecond, func() {
			n++
			_, _ = db.Pool.Exec(ctx, `INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 't', $2, '{}')`,
				fmt.Sprintf("%08d", n), fmt.Sprint(n%20))
		})
	})
	defer stop()
	relay := func() *testprogram.Process { return startWebhookRelay(t, db, db.DSN, server.URL, 4) }
	leader := relay()
	receiver.awaitTerm(t, 1)
	var took []time.Duration
	n := rounds(t, 20)
	for range n {
		standby := relay()
		standby.Await(`(another relay leads)`)
		before := receiver.term()
		leader.Stop()
		begun := time.Now()
		receiver.awaitTerm(t, before+1)
		took = append(took, time.Since(begun))
		leader = standby
	}
	stop()
	var total int64
	testprogram.Within(t, time.Minute, "everything is received", func() bool {
		total = db.Int(`SELECT count(*) FROM outbox`) // the insert that stop called off may still commit
		return int64(receiver.distinct()) == total
	})
	for _, fault := range receiver.faults() {
		t.Error(fault)
	}
	if got := receiver.repeats(); got != 0 {
		t.Errorf("%d deliveries again, want none", got)
	}
	slices.Sort(took)
	t.Logf("%d handovers, %d events; the standby delivered %v after the leader's end (median), %v at most", n, total, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	leader.Stop()
	endReceiverByLosingTheSlot(t, db, relay, receiver.ids)
}

func startWebhookRelay(t *testing.T, db *testdb.DB, dsn, receiver string, concurrency int) *testprogram.Process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	text := fmt.Sprintf("subscribers:\n  - {name: hook, kind: webhook, url: %q, allow_private: true, concurrency: %d, timeout: 5s}\n", receiver, concurrency)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + dsn},
		"relay", "--config="+file, "--slot="+db.Name, "--ops-listen=127.0.0.1:0")
}

// termReceiver is a receiver that looks at the terms of what it gets, and at the order of each key.
type termReceiver struct {
	mu       sync.Mutex
	highest  int64             // term; guarded by mu
	late     int               // deliveries of an older term; guarded by mu
	mayLate  int               // of them, by frozen processes past their lease check; guarded by mu
	last     map[string]string // first receipts: the newest id of each key; guarded by mu
	seen     map[string]int    // deliveries by id; guarded by mu
	found    []string          // guarded by mu
	newTerms chan struct{}     // closed and replaced at a new term; guarded by mu
}

func newTermReceiver() *termReceiver {
	return &termReceiver{last: map[string]string{}, seen: map[string]int{}, newTerms: make(chan struct{})}
}

func (r *termReceiver) ServeHTTP(_ http.ResponseWriter, request *http.Request) {
	_, _ = io.Copy(io.Discard, request.Body)
	id, key := request.Header.Get("webhook-id"), request.Header.Get("Walpost-Key")
	term, _ := strconv.ParseInt(request.Header.Get("Walpost-Term"), 10, 64)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case term > r.highest:
		r.highest = term
		close(r.newTerms)
		r.newTerms = make(chan struct{})
	case term < r.highest:
		r.late++
	}
	r.seen[id]++
	if r.seen[id] == 1 {
		if id < r.last[key] {
			r.found = append(r.found, fmt.Sprintf("event %s of key %s came for the first time after %s", id, key, r.last[key]))
		}
		r.last[key] = max(id, r.last[key])
	}
}

func (r *termReceiver) term() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.highest
}

// awaitTerm waits for a delivery of that term or a later one.
func (r *termReceiver) awaitTerm(t *testing.T, term int64) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		r.mu.Lock()
		reached, next := r.highest >= term, r.newTerms
		r.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-next:
		case <-limit:
			t.Fatalf("no delivery of term %d", term)
		}
	}
}

func (r *termReceiver) allowLate(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mayLate += n
}

func (r *termReceiver) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// ids lists what was received.
func (r *termReceiver) ids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.seen))
}

func (r *termReceiver) repeats() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, times := range r.seen {
		n += times - 1
	}
	return n
}

func (r *termReceiver) faults() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	faults := r.found
	if r.late > r.mayLate {
		faults = append(faults, fmt.Sprintf("%d deliveries began under an older term after one of a newer; at most %d were past their lease check when their process froze", r.late, r.mayLate))
	}
	return faults
}

// wire is a TCP proxy to the server that can swallow everything, as a network that is cut does: neither
// side hears of it.
type wire struct {
	dsn string

	mu     sync.Mutex
	intact chan struct{} // closed while bytes pass; guarded by mu
}

func newWire(t *testing.T, db *testdb.DB) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	target := server.Host
	server.Host = listener.Addr().String()
	w := &wire{dsn: server.String(), intact: make(chan struct{})}
	close(w.intact)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			go w.copy(client, upstream)
			go w.copy(upstream, client)
		}
	}()
	return w
}

// copy passes bytes on while the wire is intact, and the end of a connection too.
func (w *wire) copy(to, from net.Conn) {
	defer func() { _ = to.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		intact := w.intact
		w.mu.Unlock()
		<-intact
		if _, writeErr := to.Write(buffer[:n]); writeErr != nil || err != nil {
			return
		}
	}
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.intact = make(chan struct{})
}

func (w *wire) restore() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.intact)
}

func (w *wire) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.intact:
		return false
	default:
		return true
	}
}
