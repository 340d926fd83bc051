package cli

import (
	"fmt"
	"io"
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

// hook is a receiver of webhooks that answers as it is told and keeps what it is sent.
type hook struct {
	*httptest.Server
	mu       sync.Mutex
	requests []hookRequest // guarded by mu
}

type hookRequest struct {
	id, key, attempt, body string
	status                 int
}

// newHook answers the n-th request, from 0, with what answer returns; 0 is no answer until the client goes.
func newHook(t *testing.T, answer func(n int, id string) int) *hook {
	t.Helper()
	h := &hook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got := hookRequest{id: r.Header.Get("webhook-id"), key: r.Header.Get("Walpost-Key"), attempt: r.Header.Get("Walpost-Attempt"), body: string(body)}
		h.mu.Lock()
		got.status = answer(len(h.requests), got.id)
		h.requests = append(h.requests, got)
		h.mu.Unlock()
		if got.status == 0 {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(got.status)
		fmt.Fprintf(w, "the answer is %d", got.status)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) got() []hookRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// taken are the ids that were answered with 200, in order.
func (h *hook) taken() (ids []string) {
	for _, request := range h.got() {
		if request.status == http.StatusOK {
			ids = append(ids, request.id)
		}
	}
	return ids
}

// startHooks starts a relay with webhooks, as lines of the list of subscribers.
func startHooks(t *testing.T, db *testdb.DB, subscribers ...string) *program {
	t.Helper()
	relay := start(t, nil, map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name},
		"relay", "--config="+configFile(t, "subscribers:\n"+strings.Join(subscribers, "\n")+"\n"), "--ops-listen=127.0.0.1:0", "--drain=1s", "--log-format=json")
	waitFor(t, "the relay to stream", func() bool { return strings.Contains(relay.stderr.String(), `"msg":"streaming"`) })
	return relay
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// webhookLine is a line of the list of subscribers.
func webhookLine(name, url string) string {
	return fmt.Sprintf("  - {name: %s, kind: webhook, url: '%s', allow_private: true, timeout: 2s, max_attempts: 2, "+
		"stall_after: 1s, retry: {initial: 10ms, max: 100ms}}", name, url)
}

// insertHookEvents writes events first to last, three keys in turn, with the last number as large as no float.
func insertHookEvents(db *testdb.DB, first, last int) (ids []string) {
	for n := first; n <= last; n++ {
		id := fmt.Sprintf("event-%d", n)
		db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'hook.tested', $2, $3)`,
			id, fmt.Sprintf("key-%d", n%3), fmt.Sprintf(`{"n": %d, "big": 12345678901234567890.123456789}`, n))
		ids = append(ids, id)
	}
	return ids
}

// F-16: the receiver refuses everything for a while, more often than max_attempts, because its key is wrong.
func TestProgram_losesNothingToAWebhookThatRefusesForAWhile(t *testing.T) {
	db := testdb.New(t)
	const refused = 12
	h := newHook(t, func(n int, _ string) int {
		if n < refused {
			return []int{401, 403, 404}[n%3]
		}
		return 200
	})
	startHooks(t, db, webhookLine("hook", h.URL))
	ids := insertHookEvents(db, 1, 10)
	waitFor(t, "the window of refusals to end", func() bool { return len(h.got()) > refused })
	ids = append(ids, insertHookEvents(db, 11, 20)...)
	testprogram.AwaitPublished(t, db, time.Minute)
	taken := h.taken()
	slices.Sort(taken)
	slices.Sort(ids)
	if !slices.Equal(taken, ids) {
		t.Errorf("the receiver has %v, want %v", taken, ids)
	}
	last := map[string]int{}
	for _, request := range h.got() {
		var n int
		fmt.Sscanf(request.id, "event-%d", &n)
		if request.status == 200 && n < last[request.key] {
			t.Errorf("%s of %s came after event-%d", request.id, request.key, last[request.key])
		}
		last[request.key] = max(n, last[request.key])
	}
	// F-49, all the way from the table.
	if got, want := h.got()[0].body, db.Text(`SELECT payload::text FROM outbox WHERE event_id = $1`, h.got()[0].id); got != want {
		t.Errorf("payload %s, want %s", got, want)
	}
}

// F-33, F-34, F-37, F-66, S-77: what one receiver cannot take, or that it wants nothing or hangs, is its own
// affair.
func TestProgram_keepsWebhooksApart(t *testing.T) {
	db := testdb.New(t)
	fine := newHook(t, func(int, string) int { return 200 })
	hangs := newHook(t, func(int, string) int { return 0 })
	gone := newHook(t, func(int, string) int { return 410 })
	picky := newHook(t, func(_ int, id string) int {
		if id == "event-5" {
			return 413
		}
		return 200
	})
	startHooks(t, db, webhookLine("hangs", hangs.URL), webhookLine("gone", gone.URL), webhookLine("picky", picky.URL), webhookLine("fine", fine.URL))
	ids := insertHookEvents(db, 1, 30)
	waitFor(t, "the two that live to have what they take", func() bool {
		return len(fine.taken()) == len(ids) && len(picky.taken()) == len(ids)-1
	})
	waitFor(t, "the refused event to be a dead letter", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE subscriber = 'picky' AND state = 'dead'`) == 1
	})
	if text := db.Text(`SELECT event_id || ': ' || error FROM walpost.owed WHERE subscriber = 'picky'`); !strings.HasPrefix(text, "event-5: ") ||
		!strings.Contains(text, "answered 413") || !strings.Contains(text, "the answer is 413") {
		t.Errorf("dead letter %s", text)
	}
	waitFor(t, "the one that wants nothing to be paused and owed everything", func() bool {
		return db.Text(`SELECT state FROM walpost.subscribers WHERE name = 'gone'`) == "paused" &&
			db.Int(`SELECT count(*) FROM walpost.owed WHERE subscriber = 'gone' AND state = 'waiting'`) == int64(len(ids))
	})
	waitFor(t, "the one that hangs to be owed everything", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.owed WHERE subscriber = 'hangs' AND state = 'waiting'`) == int64(len(ids))
	})
	// A call of each worker can be under way at the first answer; none begins after it.
	if got := len(gone.got()); got > 8 {
		t.Errorf("a receiver that answered 410 got %d requests", got)
	}
}

// F-46: the receiver does the work and does not answer; the relay is restarted before the next attempt.
func TestProgram_sendsTheSameRequestAfterARestart(t *testing.T) {
	db := testdb.New(t)
	h := newHook(t, func(n int, _ string) int {
		if n == 0 {
			return 0
		}
		return 200
	})
	first := startHooks(t, db, webhookLine("hook", h.URL))
	insertHookEvents(db, 1, 1)
	waitFor(t, "the first attempt", func() bool { return len(h.got()) == 1 })
	first.stop()
	if code := <-first.exited; code != exitFine {
		t.Errorf("exit code %d, want %d", code, exitFine)
	}
	startHooks(t, db, webhookLine("hook", h.URL))
	testprogram.AwaitPublished(t, db, time.Minute)
	got := h.got()
	if len(got) < 2 || got[0].id != got[1].id || got[0].id == "" || got[0].body != got[1].body || got[0].key != got[1].key {
		t.Errorf("attempts before and after the restart: %+v", got)
	}
}

func TestMain_tellsAllMistakesOfSubscribersAtOnce(t *testing.T) {
	file := configFile(t, `subscribers:
  - {name: one, kind: webhook, url: "https:///hooks", secret: not-a-secret}
  - {name: two, kind: webhook, url: "http://10.0.0.7/hooks?token=le4ked"}
  - {name: two, kind: webhook, url: "http://localhost/hooks", allow_private: true, format: xml}
  - {name: four, kind: pigeon}
  - {name: five, kind: webhook, url: "https://u:le4ked@example.com/", secret: [whsec_le4ked, ""]}
`)
	for _, command := range []string{"config", "relay"} {
		code, _, stderr := execute(t, map[string]string{"WALPOST_DATABASE_URL": "postgres://127.0.0.1:1/none"}, command, "--config="+file)
		if code != exitUsage {
			t.Errorf("%s: exit code %d, want %d", command, code, exitUsage)
		}
		for _, want := range []string{
			`walpost.yaml:2: subscriber "one": url: has no host`, `walpost.yaml:2: subscriber "one": secret: is not "whsec_"`,
			`walpost.yaml:3: subscriber "two": url: 10.0.0.7 is a private address: set allow_private: true`,
			`walpost.yaml:4: subscriber "two": name: stands there twice`, `walpost.yaml:4: subscriber "two": format: "xml" is none of`,
			`walpost.yaml:5: subscriber "four": kind: "pigeon" is not known here`,
			`walpost.yaml:6: subscriber "five": url: must not hold a user and password`, `secret: the 1. of 2 is not`, `secret: the 2. of 2 is not`,
		} {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s does not say %q:\n%s", command, want, stderr)
			}
		}
		if strings.Contains(stderr, "le4ked") {
			t.Errorf("%s prints a secret:\n%s", command, stderr)
		}
	}
}

// S-35: a receiver that dedupes as the page for receivers says.
func TestProgram_givesEventsOfTwoSourcesTwoIDs(t *testing.T) {
	db := testdb.New(t)
	db.Exec(`CREATE TABLE bills (id bigserial PRIMARY KEY, type text, payload json, published_at timestamptz); CREATE TABLE games (LIKE bills INCLUDING ALL)`)
	both := newHook(t, func(int, string) int { return http.StatusOK })
	one := newHook(t, func(int, string) int { return http.StatusOK })
	relay := start(t, nil, map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name}, "relay", "--config="+configFile(t, `
sources: [{name: bills, table: public.bills}, {name: games, table: public.games}]
subscribers:
  - {name: both, kind: webhook, url: '`+both.URL+`', allow_private: true}
  - {name: one, kind: webhook, url: '`+one.URL+`', allow_private: true, sources: [games]}
`), "--ops-listen=127.0.0.1:0", "--log-format=json")
	waitFor(t, "the relay to stream", func() bool { return strings.Contains(relay.stderr.String(), `"msg":"streaming"`) })
	db.Exec(`INSERT INTO bills VALUES (1, 't', '{}'); INSERT INTO games VALUES (1, 't', '{}')`)
	waitFor(t, "all deliveries", func() bool { return len(both.taken()) == 2 && len(one.taken()) == 1 })
	if got, want := slices.Sorted(slices.Values(both.taken())), []string{"bills:1", "games:1"}; !slices.Equal(got, want) {
		t.Errorf("the receiver of both got ids %q, want %q", got, want)
	}
	if got, want := one.taken(), []string{"1"}; !slices.Equal(got, want) {
		t.Errorf("the receiver of one got ids %q, want %q", got, want)
	}
}
