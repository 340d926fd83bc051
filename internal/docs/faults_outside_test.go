//go:build outside

package docs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

func TestMain(m *testing.M) { os.Exit(testprogram.Main(m)) }

// site is a slot with its relays, a service that writes events, and a receiver.
type site struct {
	t       *testing.T
	prom    *scraper
	db      *testdb.DB
	job     string
	config  string
	answers atomic.Int32           // status of the receiver; 200 at the start
	known   atomic.Pointer[string] // the secret that the receiver knows
	relays  []*testprogram.Process
	ops     []string

	stop, again func() error // of the server, where it is the site's own
	old         pgx.Tx       // a transaction that does not end
}

// What walpost signs with, and what a receiver knows that was given another one.
const (
	secret      = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDZ0J7cMlQr4A="
)

// newSite starts relays on a database, and a service that writes four events a second.
func newSite(t *testing.T, prom *scraper, job string, db *testdb.DB, relays int, options ...string) *site {
	t.Helper()
	s := &site{t: t, prom: prom, db: db, job: job, config: filepath.Join(t.TempDir(), "walpost.yaml")}
	s.answers.Store(http.StatusOK)
	s.knows(secret)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		library, err := standardwebhooks.NewWebhook(*s.known.Load())
		if err != nil {
			t.Error(err)
		} else if library.Verify(body, r.Header) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(int(s.answers.Load()))
	}))
	t.Cleanup(receiver.Close)
	if err := os.WriteFile(s.config, fmt.Appendf(nil, `
sources: [{name: lessons, table: public.outbox}]
subscribers:
  - {name: billing, kind: webhook, url: %q, secret: %q, allow_private: true, stall_after: 2s, retry: {initial: 200ms, max: 1s}}
  - {name: archive, kind: file, path: %q}
%s
`, receiver.URL, secret, filepath.Join(t.TempDir(), "archive.ndjson"), strings.Join(options, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	for range relays {
		s.startRelay()
	}
	prom.scrape(t, job, s.ops...)
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { s.write(ctx) })
	t.Cleanup(func() { cancel(); writing.Wait() })
	return s
}

func (s *site) knows(secret string) { s.known.Store(&secret) }

// startRelay starts one that stands by if another one leads.
func (s *site) startRelay() {
	s.t.Helper()
	relay := testprogram.Start(s.t, []string{"WALPOST_DATABASE_URL=" + s.db.DSN}, "relay", "--slot="+s.db.Name, "--config="+s.config, "--ops-listen=127.0.0.1:0")
	if len(s.relays) == 0 {
		relay.AwaitStreaming()
	}
	s.relays, s.ops = append(s.relays, relay), append(s.ops, relay.Await(`"ops":"(http://[^"]+)"`))
}

// write is the service. That Postgres is away is no end of it.
func (s *site) write(ctx context.Context) {
	for n := 0; ; n++ {
		_, _ = s.db.Pool.Exec(ctx, `INSERT INTO public.outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', $2, '{}')`,
			fmt.Sprintf("e%d", n), fmt.Sprint(n%20))
		select {
		case <-ctx.Done():
			return
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// get is the answer of a relay.
func (s *site) get(relay int, route string) (status int, body string) {
	s.t.Helper()
	response, err := http.Get(s.ops[relay] + route)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// status is what a person reads who types it, and its exit code.
func (s *site) status() (string, int) {
	s.t.Helper()
	command := exec.CommandContext(s.t.Context(), testprogram.Binary(s.t), "status", "--config="+s.config, "--slot="+s.db.Name, "--ops-url="+s.ops[0])
	command.Env = append(os.Environ(), "WALPOST_DATABASE_URL="+s.db.DSN)
	out, err := command.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return string(out), command.ProcessState.ExitCode()
}

// wantSaid checks that /ready and status say something about the fault, within a while.
func (s *site) wantSaid(ready int, words ...string) {
	s.t.Helper()
	says := func(text string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !regexp.MustCompile(w).MatchString(text) })
	}
	var code int
	var text, status string
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); testprogram.Pause(s.t, 500*time.Millisecond) {
		code, text = s.get(0, "/ready")
		status, _ = s.status()
		if code == ready && says(text) && says(status) {
			return
		}
	}
	s.t.Errorf("/ready answers %d and %s, status\n%s\nwant %d and %q in both", code, text, status, ready, words)
}

// holding is how much WAL the leader says that a subscriber holds, and its last error.
func (s *site) holding(name string) (bytes int64, lastError string) {
	s.t.Helper()
	_, text := s.get(0, "/v1/progress") // a standby sends to the leader
	var progress struct {
		Subscribers []struct {
			Name      string
			Holding   int64  `json:"holding_wal_bytes"`
			LastError string `json:"last_error"`
		}
	}
	if err := json.Unmarshal([]byte(text), &progress); err != nil {
		s.t.Fatal(err)
	}
	for _, sub := range progress.Subscribers {
		if sub.Name == name {
			return sub.Holding, sub.LastError
		}
	}
	return 0, ""
}

// wantHolds checks that billing is named as who holds WAL, with its error, and that the same stands in the metrics.
func (s *site) wantHolds(word string) {
	s.t.Helper()
	if held, last := s.holding("billing"); held == 0 || !strings.Contains(last, word) {
		s.t.Errorf("/progress says that billing holds %d bytes, last error %q", held, last)
	}
	if held, _ := s.holding("archive"); held > 1<<20 {
		s.t.Errorf("archive, which is well, holds %d bytes", held)
	}
	s.wantSaid(http.StatusOK, `billing\W{1,2} is away`, `holds [0-9.]+ [KM]?i?B of WAL`, word)
	if found := s.prom.series(s.t, fmt.Sprintf(`walpost_holding_wal_bytes{job=%q,subscriber="billing"} > 0`, s.job)); len(found) != 1 {
		s.t.Errorf("walpost_holding_wal_bytes: %v", found)
	}
}

// junk writes WAL that has nothing to do with events.
func (s *site) junk(megabytes int) {
	s.db.Exec(`SELECT pg_logical_emit_message(false, 'junk', repeat('x', 1048576)) FROM generate_series(1, $1::int)`, megabytes)
}

// fault is something that goes wrong with a site.
type fault struct {
	name   string
	alerts []string // all that must fire while it lasts
	may    []string // that may fire because of what is not scaled: seconds of a takeover weigh more in a shorter window
	after  []string // those that may fire on the way back
	start  func(t *testing.T, prom *scraper) *site
	before func(s *site) // nil: nothing
	breaks func(s *site)
	says   func(s *site) // while it lasts
	heals  func(s *site)
}

// faults are those that a person on call meets.
func faults() []fault {
	onItsOwn := func(t *testing.T, settings map[string]string) *testdb.DB {
		return testdb.On(t, testdb.NewServer(t, settings))
	}
	// What is paid of a long debt is late, and is counted when it is delivered.
	late := []string{"WalpostEventsLate"}
	return []fault{
		{
			name: "a subscriber is broken", alerts: []string{"WalpostDebtGrows", "WalpostSubscriberAway"}, after: late,
			start:  func(t *testing.T, prom *scraper) *site { return newSite(t, prom, "broken", testdb.New(t), 1) },
			breaks: func(s *site) { s.answers.Store(http.StatusServiceUnavailable) },
			says:   func(s *site) { s.wantHolds("503") },
			heals:  func(s *site) { s.answers.Store(http.StatusOK) },
		},
		{
			name: "a wrong secret", alerts: []string{"WalpostDebtGrows", "WalpostSubscriberAway"}, after: late,
			start:  func(t *testing.T, prom *scraper) *site { return newSite(t, prom, "secret", testdb.New(t), 1) },
			breaks: func(s *site) { s.knows(otherSecret) },
			says:   func(s *site) { s.wantHolds("401") },
			heals:  func(s *site) { s.knows(secret) },
		},
		{
			name: "the slot is about to be lost", alerts: []string{"WalpostSlotLostWithinTheHour"},
			start: func(t *testing.T, prom *scraper) *site {
				return newSite(t, prom, "slot", onItsOwn(t, map[string]string{"max_slot_wal_keep_size": "1GB"}), 1)
			},
			breaks: func(s *site) { s.junk(96) },
			says: func(s *site) {
				s.wantSaid(http.StatusOK, `gives slot .* up when it has written [0-9.]+ [MG]iB more WAL, in \d+m?`)
			},
			heals: func(s *site) {
				s.db.Exec(`ALTER SYSTEM SET max_slot_wal_keep_size = -1`)
				s.db.Exec(`SELECT pg_reload_conf()`)
			},
		},
		{
			name: "the leader is frozen, then wakes", alerts: []string{"WalpostRelayDown"}, may: append(late, "WalpostNoLeader"),
			start:  func(t *testing.T, prom *scraper) *site { return newSite(t, prom, "frozen", testdb.New(t), 2) },
			before: func(s *site) { s.wantOneLeader(0, true); s.wantPanelsFilled() },
			breaks: func(s *site) { s.freeze() },
			says:   func(s *site) { s.wantOneLeader(1, false) },
			heals: func(s *site) {
				s.thaw()
				s.wantOneLeader(1, true)
			},
		},
		{
			name: "the only relay is frozen", alerts: []string{"WalpostRelayAbsent"},
			start:  func(t *testing.T, prom *scraper) *site { return newSite(t, prom, "walpost", testdb.New(t), 1) },
			breaks: func(s *site) { s.freeze() },
			after:  late,
			heals:  func(s *site) { s.thaw() },
		},
		{
			name: "Postgres is away", alerts: []string{"WalpostNoLeader"},
			start: func(t *testing.T, prom *scraper) *site {
				server := testdb.NewServer(t, nil)
				s := newSite(t, prom, "postgres", testdb.On(t, server), 1)
				t.Cleanup(func() { _ = server.StartAgain(context.Background()) }) // to be stopped as the others are
				s.stop = func() error { return server.Kill(t.Context()) }
				s.again = func() error { return server.StartAgain(t.Context()) }
				return s
			},
			breaks: func(s *site) { must(s.t, s.stop()) },
			says: func(s *site) {
				code, text := s.get(0, "/ready")
				_, exit := s.status()
				if code != http.StatusServiceUnavailable || !strings.Contains(text, "problems") || exit != 1 {
					s.t.Errorf("/ready answers %d %s, status ends with %d", code, text, exit)
				}
			},
			heals: func(s *site) { must(s.t, s.again()) },
		},
		{
			name: "a dead letter", alerts: []string{"WalpostDeadLetters"},
			start: func(t *testing.T, prom *scraper) *site { return newSite(t, prom, "dead", testdb.New(t), 1) },
			breaks: func(s *site) {
				s.db.Exec(`INSERT INTO public.outbox (event_id, event_type, partition_key, payload) VALUES ('bad', '', 'a', '{}')`)
			},
			says: func(s *site) {
				if status, _ := s.status(); !strings.Contains(status, "2 deliveries wait for a person: walpost deadletters list") {
					s.t.Errorf("status says\n%s", status)
				}
				if held, _ := s.holding("billing"); held > 1<<20 {
					s.t.Errorf("a dead letter holds %d bytes", held)
				}
			},
			heals: func(s *site) {
				command := exec.CommandContext(s.t.Context(), testprogram.Binary(s.t), "owed", "discard", "--event=bad", "--yes", "--why=a test",
					"--config="+s.config, "--slot="+s.db.Name)
				command.Env = append(os.Environ(), "WALPOST_DATABASE_URL="+s.db.DSN)
				if out, err := command.CombinedOutput(); err != nil {
					s.t.Errorf("%v: %s", err, out)
				}
			},
		},
		{
			name: "more WAL than the budget", alerts: []string{"WalpostWALOverBudget"},
			start: func(t *testing.T, prom *scraper) *site {
				return newSite(t, prom, "budget", onItsOwn(t, nil), 1, "wal_budget: 4MiB")
			},
			breaks: func(s *site) { // a transaction that does not end keeps WAL, whatever is confirmed
				tx, err := s.db.Pool.Begin(s.t.Context())
				must(s.t, err)
				_, err = tx.Exec(s.t.Context(), `INSERT INTO public.outbox (event_id, event_type, partition_key, payload) VALUES ('old', 'lesson.completed', 'a', '{}')`)
				must(s.t, err)
				s.old = tx
				s.junk(128) // the least that the alert speaks of is 100 MB
			},
			says: func(s *site) {
				s.wantSaid(http.StatusOK, `keeps [0-9.]+ MiB of WAL for slot`, `more than wal_budget \(4 MiB\)`, "old transaction")
			},
			heals: func(s *site) { must(s.t, s.old.Rollback(s.t.Context())); s.db.Exec(`CHECKPOINT`) },
		},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// freeze suspends the first relay, as a machine that hangs does.
func (s *site) freeze() { must(s.t, syscall.Kill(s.relays[0].PID(), syscall.SIGSTOP)) }

func (s *site) thaw() { must(s.t, syscall.Kill(s.relays[0].PID(), syscall.SIGCONT)) }

// leaderSeries are those that a leader alone has.
var leaderSeries = []string{"walpost_lag_seconds", "walpost_holding_wal_bytes", "walpost_owed", "walpost_open_events", "walpost_wal_budget_bytes", "walpost_confirmed_lsn"}

// wantOneLeader checks that the relay with a number leads, and that it alone shows what a leader shows, itself and in
// Prometheus; and, where both answer, that they show the same of the slot.
func (s *site) wantOneLeader(leader int, both bool) {
	s.t.Helper()
	instance := strings.TrimPrefix(s.ops[leader], "http://")
	testprogram.Eventually(s.t, "one leader in Prometheus", func() bool {
		found := s.prom.series(s.t, fmt.Sprintf(`walpost_leader{job=%q} == 1`, s.job))
		return len(found) == 1 && found[0]["instance"] == instance
	})
	for _, name := range leaderSeries {
		for _, found := range s.prom.series(s.t, fmt.Sprintf(`%s{job=%q}`, name, s.job)) {
			if found["instance"] != instance {
				s.t.Errorf("%s is shown of %s, which does not lead", name, found["instance"])
			}
		}
	}
	if !both {
		return
	}
	_, former := s.get(1-leader, "/metrics")
	for _, name := range leaderSeries {
		if regexp.MustCompile(`(?m)^` + name + `\b`).MatchString(former) {
			s.t.Errorf("the former leader still shows %s", name)
		}
	}
	// Each looks at the slot by itself, every 5 s: what moves with each transaction is never the same.
	slot := regexp.MustCompile(`(?m)^walpost_slot_(active|present|wal_status|safe_wal_bytes|seconds_until_lost)\b.*$`)
	testprogram.Eventually(s.t, "the same figures of the slot at both relays", func() bool {
		_, one := s.get(0, "/metrics")
		_, other := s.get(1, "/metrics")
		return len(slot.FindAllString(one, -1)) > 5 && slices.Equal(slot.FindAllString(one, -1), slot.FindAllString(other, -1))
	})
}

// wantPanelsFilled runs each query of the dashboard.
func (s *site) wantPanelsFilled() {
	s.t.Helper()
	values := strings.NewReplacer("$job", s.job, "$subscriber", ".*", "$__rate_interval", "10s")
	for _, q := range queriesOf(s.t) {
		asked := values.Replace(q.expr)
		if strings.Contains(asked, "$") {
			s.t.Errorf("%s has a variable that no one sets: %s", q.panel, asked)
		}
		var found []map[string]string
		for limit := time.Now().Add(20 * time.Second); len(found) == 0 && time.Now().Before(limit); testprogram.Pause(s.t, 100*time.Millisecond) {
			found = s.prom.series(s.t, asked)
		}
		if len(found) == 0 {
			s.t.Errorf("%s shows nothing: %s", q.panel, asked)
		}
	}
}

// atOnce is how many faults are looked at together. They wait most of the time, and more would wait for the processor.
const atOnce = 5

// S-447: TestOutside_EachFaultRaisesItsAlertsAndNoOthers breaks a live relay in each way, with a real Prometheus that
// scrapes it and has the rules of deploy/prometheus with shorter durations (scale): exactly the expected alerts fire, the
// relay says what is wrong, and all of it goes back when it is well again. It prints the table of faults and alerts.
func TestOutside_EachFaultRaisesItsAlertsAndNoOthers(t *testing.T) {
	prom := startPrometheus(t)
	all := faults()
	var mu sync.Mutex
	rows := make([]string, len(all)) // guarded by mu
	room := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i, f := range all {
		running.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			t.Run(f.name, func(t *testing.T) {
				begun := time.Now()
				during, after, seconds := f.run(t, prom)
				mu.Lock()
				defer mu.Unlock()
				rows[i] = fmt.Sprintf("%s\t%s\t%s\t%.0f s\t%.0f s", f.name, strings.Join(during, ", "), strings.Join(after, ", "), seconds, time.Since(begun).Seconds())
			})
		})
	}
	running.Wait()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "FAULT\tALERTS WHILE IT LASTS\tON THE WAY BACK\tALL WERE THERE AFTER\tWHOLE\n%s\n", strings.Join(rows, "\n"))
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
	t.Log("durations of the rules are scaled down\n" + table.String())
}

// run breaks and heals a site. It returns which alerts fired while it was broken, which others on the way back, and how
// long it took until the first were complete.
func (f fault) run(t *testing.T, prom *scraper) (during, after []string, seconds float64) {
	s := f.start(t, prom)
	// Twelve samples of the slot, and no alert, before anything happens.
	testprogram.Eventually(t, "a Prometheus that knows the site", func() bool {
		return len(prom.series(t, fmt.Sprintf(`sum_over_time(walpost_slot_present{job=%q}[1m]) >= 12`, s.job))) == len(s.relays)
	})
	if found := prom.firing(t, s.job); len(found) > 0 {
		t.Errorf("%q fire before anything is broken", found)
	}
	if f.before != nil {
		f.before(s)
	}
	f.breaks(s)
	broken := time.Now()
	slices.Sort(f.alerts)
	for !slices.Equal(during, f.alerts) {
		if time.Since(broken) > 3*time.Minute {
			t.Fatalf("after three minutes %q have fired, want %q", during, f.alerts)
		}
		testprogram.Pause(t, 500*time.Millisecond)
		if during = merged(during, prom.firing(t, s.job, f.may...)); len(merged(during, f.alerts)) > len(f.alerts) {
			t.Fatalf("%q have fired, want %q", during, f.alerts)
		}
	}
	seconds = time.Since(broken).Seconds()
	if f.says != nil {
		f.says(s)
	}
	if now := prom.firing(t, s.job, f.may...); !slices.Equal(now, f.alerts) {
		t.Errorf("%q fire a while later, want %q", now, f.alerts)
	}
	f.heals(s)
	healed := time.Now()
	for quiet := 0; quiet < 20; quiet++ { // ten seconds without an alert
		testprogram.Pause(t, 500*time.Millisecond)
		now := prom.firing(t, s.job)
		if len(now) > 0 {
			quiet = 0
		}
		for _, name := range now {
			switch {
			case slices.Contains(f.alerts, name):
			case slices.Contains(f.after, name), slices.Contains(f.may, name):
				after = merged(after, []string{name})
			default:
				t.Fatalf("%s fires when it is well again", name)
			}
		}
		if time.Since(healed) > 4*time.Minute {
			t.Fatalf("%q still fire four minutes later", now)
		}
	}
	var last string
	for limit := time.Now().Add(time.Minute); ; testprogram.Pause(t, 500*time.Millisecond) {
		code, text := s.get(0, "/ready")
		held, _ := s.holding("billing")
		well := !strings.Contains(text, "problems") || strings.Contains(text, "another relay leads")
		if code == http.StatusOK && well && held < 1<<20 {
			return during, after, seconds
		}
		if last = fmt.Sprintf("/ready answers %d and %s, billing holds %d bytes", code, text, held); time.Now().After(limit) {
			t.Fatalf("a minute after it is well again %s", last)
		}
	}
}

// merged are the names of both, sorted, each once.
func merged(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
