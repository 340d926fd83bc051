package ops

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/testdb"
)

// counter is a server in front of a database in which analytics is owed e1 and e2, and billing has the
// dead letter e3 and has left the configuration.
type counter struct {
	*testdb.DB
	server *Server
}

// written is when the counter's rows were, and so their occurrence.
var written = time.Now().UTC().Truncate(time.Second).Format("2006-01-02 15:04:05+00")

func newCounter(t *testing.T, listen, token string) *counter {
	t.Helper()
	db := testdb.New(t)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, created_at)
		SELECT 'e' || n, 'lesson.completed', 'k' || n, jsonb_build_object('n', n, 'big', 12345678901234567890), $1 FROM generate_series(1, 4) n`, written)
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, state, confirmed) VALUES ('walpost', '7', 1, 'ready', '0/1000')`)
	db.Exec(`INSERT INTO walpost.subscribers (slot, name, gone_at) VALUES ('walpost', 'analytics', NULL), ('walpost', 'billing', now())`)
	source := &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox", Mark: true, Ours: true}
	store := debt.NewStore(db.Pinned, "walpost")
	owed := func(n int) lane.Owed {
		return lane.Owed{Event: &event.Event{
			Source: "lessons", ID: fmt.Sprintf("e%d", n), Occurrence: written, Type: "lesson.completed", Key: fmt.Sprintf("k%d", n), Row: fmt.Sprint(n),
			Payload: fmt.Appendf(nil, `{"n": %d, "big": 12345678901234567890}`, n), Headers: []byte(`{}`),
			Position: event.Position{Epoch: 1, Commit: event.LSN(n * 8)},
		}, Attempts: 3, Err: "503 from <the receiver>"}
	}
	if _, err := store.Record(t.Context(), "analytics", []lane.Owed{owed(1), owed(2)}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Dead(t.Context(), "billing", owed(3)); err != nil {
		t.Fatal(err)
	}
	return &counter{db, New(Options{
		Listen: listen, Token: token, Registry: prometheus.NewRegistry(), Relay: stuck(),
		Admin: admin.New(db.Pinned, "walpost", []*outbox.Source{source}, []string{"analytics"}),
		Log:   slog.New(slog.DiscardHandler), Version: "v1.2.3",
	})}
}

// request sends a request as curl does it, and reads the JSON answer into a map.
func (c *counter) request(t *testing.T, method, path, body string, headers ...string) (int, map[string]any) {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:8081"+path, strings.NewReader(body))
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	recorder := httptest.NewRecorder()
	c.server.ServeHTTP(recorder, request)
	var answer map[string]any
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s %s answers %d %s: %v", method, path, recorder.Code, recorder.Body, err)
	}
	isProblem := recorder.Header().Get("Content-Type") == "application/problem+json"
	if isProblem != (recorder.Code >= 400) || isProblem && answer["status"] != float64(recorder.Code) {
		t.Errorf("%s %s answers %d as %s: %s", method, path, recorder.Code, recorder.Header().Get("Content-Type"), recorder.Body)
	}
	return recorder.Code, answer
}

func TestV1_showsWhoIsOwedWhat(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	for query, want := range map[string]string{
		"":                                "analytics/e1 analytics/e2 billing/e3",
		"?limit=2":                        "analytics/e1 analytics/e2 more",
		"?limit=3":                        "analytics/e1 analytics/e2 billing/e3",
		"?subscriber=billing":             "billing/e3",
		"?state=dead":                     "billing/e3",
		"?key=k2":                         "analytics/e2",
		"?event=e1&type=lesson.completed": "analytics/e1",
		"?error=503&state=waiting&since=2020-01-01T00:00:00Z": "analytics/e1 analytics/e2",
		"?until=2020-01-01T00:00:00Z":                         "",
		"?source=another":                                     "",
	} {
		code, answer := c.request(t, "GET", "/v1/owed"+query, "")
		var got []string
		for _, delivery := range answer["owed"].([]any) {
			d := delivery.(map[string]any)
			got = append(got, fmt.Sprintf("%s/%s", d["subscriber"], d["event"]))
		}
		if answer["more"] == true {
			got = append(got, "more")
		}
		if got := strings.Join(got, " "); code != http.StatusOK || got != want {
			t.Errorf("%s: %d, got %q, want %q", query, code, got, want)
		}
	}
	request := httptest.NewRequest("GET", "http://localhost/v1/owed/e1", nil)
	recorder := httptest.NewRecorder()
	c.server.ServeHTTP(recorder, request)
	for _, want := range []string{"12345678901234567890", `"503 from <the receiver>"`, `"attempts": 3`, `"copied": true`} {
		if !strings.Contains(recorder.Body.String(), want) {
			t.Errorf("the event is shown without %s: %s", want, recorder.Body)
		}
	}
}

func TestV1_tellsWhereSlotAndSubscribersStand(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	c.Exec(`INSERT INTO walpost.leader VALUES ('walpost', 'host/7', 3)`)
	_, answer := c.request(t, "GET", "/v1/status", "")
	if got := fmt.Sprint(answer["leader"]); got != "map[holder:host/7 term:3]" {
		t.Errorf("leader is %s", got)
	}
	if slot := answer["slot"].(map[string]any); slot["exists"] != false || slot["state"] != "ready" {
		t.Errorf("slot is %v", slot)
	}
	_, list := c.request(t, "GET", "/v1/subscribers", "")
	for _, subscribers := range []any{answer["subscribers"], list["subscribers"]} {
		a, b := subscribers.([]any)[0].(map[string]any), subscribers.([]any)[1].(map[string]any)
		if a["state"] != "live" || a["waiting"].(map[string]any)["deliveries"] != 2.0 || a["waiting"].(map[string]any)["since"] == nil {
			t.Errorf("analytics: %v", a)
		}
		if b["state"] != "gone" || b["dead"].(map[string]any)["deliveries"] != 1.0 || b["gone_at"] == nil {
			t.Errorf("billing: %v", b)
		}
	}
}

func TestV1_changesWhatIsAskedForAndWritesDownWhoAsked(t *testing.T) {
	c := newCounter(t, "unix:/run/walpost/ops.sock", "")
	state := func() string { return c.Text(`SELECT state FROM walpost.subscribers WHERE name = 'analytics'`) }
	for _, step := range []struct{ path, body, want string }{
		{"/v1/subscribers/analytics/pause", `{"who": "alice", "why": "maintenance"}`, "map[state:paused subscriber:analytics]"},
		{"/v1/subscribers/analytics/resume", `{}`, "map[state:live subscriber:analytics]"},
		{"/v1/owed/discard", `{"subscriber": "analytics", "dry_run": true}`, "map[would_discard:2]"},
		{"/v1/owed/discard", `{"subscriber": "analytics", "key": "k1", "why": "sent by hand"}`, "map[discarded:1]"},
		{"/v1/owed/discard", `{"subscriber": "analytics", "limit": 1, "why": "the rest"}`, "map[discarded:1]"},
		{"/v1/owed/add", `{"subscriber": "analytics", "events": ["e4", "none"], "why": "lost"}`, "map[deliveries:1 missing:[none]]"},
		{"/v1/owed/add", `{"subscriber": "analytics", "events": ["e4"], "state": "dead", "why": "lost"}`, "map[deliveries:1]"},
		{"/v1/owed/redrive", `{"type": "lesson.completed", "dry_run": true}`, "map[gone:1 would_redrive:1]"},
		{"/v1/owed/redrive", `{"event": "e4", "why": "fixed"}`,
			"map[events:[map[detail:redriven event:e4 occurrence:" + written + " result:redriven source:lessons subscriber:analytics]] redriven:1]"},
		{"/v1/owed/redrive", `{"type": "lesson.completed", "state": "dead", "why": "fixed"}`, "map[gone:1 redriven:0]"},
	} {
		code, answer := c.request(t, "POST", step.path, step.body)
		if got := fmt.Sprint(answer); code != http.StatusOK || got != step.want {
			t.Errorf("%s %s: %d %s, want %s", step.path, step.body, code, got, step.want)
		}
		if step.path == "/v1/subscribers/analytics/pause" && state() != "paused" {
			t.Errorf("after a pause the state is %s", state())
		}
	}
	if got := state(); got != "live" {
		t.Errorf("after a resume the state is %s", got)
	}
	if got := c.Text(`SELECT string_agg(event_id || state, ' ' ORDER BY event_id) FROM walpost.owed`); got != "e1paid e2paid e3dead e4waiting" {
		t.Errorf("owed is %s", got)
	}
	// Only the leader marks rows.
	if got := c.Text(`SELECT string_agg(event_id, ' ' ORDER BY event_id) FROM walpost.owed WHERE mark`); got != "e1 e2" {
		t.Errorf("still to be marked are %s", got)
	}
	if got := c.Int(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`); got != 0 {
		t.Errorf("%d rows are marked, and no relay runs", got)
	}
	if got := c.Text(`SELECT who || ': ' || why FROM walpost.audit ORDER BY id LIMIT 1`); got != "alice via ops API from 192.0.2.1:1234: maintenance" {
		t.Errorf("the audit says %s", got)
	}
}

func TestV1_refusesWhatCannotBeMeant(t *testing.T) {
	c := newCounter(t, "unix:/run/walpost/ops.sock", "")
	for _, test := range []struct {
		method, path, body string
		want               int
		says               string
	}{
		{"GET", "/v1/owed?subscribr=a", "", 400, "there is no such filter"},
		{"GET", "/v1/owed?key=a&key=b", "", 400, "more than once"},
		{"GET", "/v1/owed?state=paid", "", 400, "waiting or dead"},
		{"GET", "/v1/owed?since=yesterday", "", 400, "since"},
		{"GET", "/v1/owed?limit=0", "", 400, "from 1 to 1000"},
		{"GET", "/v1/owed/e9", "", 404, "owed to no one"},
		{"POST", "/v1/subscribers/missing/pause", `{}`, 404, "no subscriber"},
		{"POST", "/v1/subscribers/analytics/pause", ``, 400, "body"},
		{"POST", "/v1/owed/discard", `{"subscriber": "analytics"}`, 400, "why"},
		{"POST", "/v1/owed/discard", `{"why": "x"}`, 400, "chooses everything"},
		{"POST", "/v1/owed/discard", `{"why": "x", "state": "dead", "limit": 5}`, 400, "chooses everything"},
		{"POST", "/v1/owed/discard", `{"why": "x", "subscribr": "analytics"}`, 400, "subscribr"},
		{"POST", "/v1/owed/discard", `{"why": "x", "subscriber": "a", "state": "paid"}`, 400, "waiting or dead"},
		{"POST", "/v1/owed/discard", `{"why": "x", "subscriber": "a"} {}`, 400, "not JSON"},
		{"POST", "/v1/owed/discard", `{"why": "x", "subscriber": "a", "limit": -1}`, 400, "negative"},
		{"POST", "/v1/owed/redrive", `{"subscriber": "analytics"}`, 400, "why"},
		{"POST", "/v1/owed/redrive", `{"why": "x"}`, 400, "chooses everything"},
		{"POST", "/v1/owed/redrive", `{"why": "x", "subscriber": "analytics", "state": "waiting"}`, 400, "sent by themselves"},
		{"POST", "/v1/owed/redrive", `{"why": "x", "subscriber": "billing"}`, 400, "left the configuration"},
		{"POST", "/v1/owed/redrive", `{"dry_run": true, "subscriber": "missing"}`, 404, "no subscriber"},
		{"POST", "/v1/owed/add", `{"why": "x", "subscriber": "analytics"}`, 400, "events"},
		{"POST", "/v1/owed/add", `{"subscriber": "analytics", "events": ["e4"]}`, 400, "why"},
		{"POST", "/v1/owed/add", `{"why": "x", "subscriber": "missing", "events": ["e4"]}`, 404, "no subscriber"},
		{"POST", "/v1/owed/add", `{"why": "x", "subscriber": "analytics", "events": ["e4"], "state": "paid"}`, 400, "waiting or dead"},
		{"POST", "/v1/owed/add", `{"why": "` + strings.Repeat("x", maxBody) + `"}`, 413, "large"},
	} {
		code, answer := c.request(t, test.method, test.path, test.body)
		if detail := fmt.Sprint(answer["detail"]); code != test.want || !strings.Contains(detail, test.says) {
			t.Errorf("%s %s %.60s: %d %s, want %d and %q", test.method, test.path, test.body, code, detail, test.want, test.says)
		}
	}
	if got := debttest.Unpaid(c); got != 3 {
		t.Errorf("%d are owed, want all 3", got)
	}
	if got := c.Int(`SELECT count(*) FROM walpost.audit`); got != 0 {
		t.Errorf("%d changes are audited, want none", got)
	}
}

// A browser that runs on the machine reaches loopback, and so does every page that it shows.
func TestV1_keepsPagesOfOtherSitesOut(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "secret")
	const pause, body = "/v1/subscribers/analytics/pause", `{}`
	for name, test := range map[string]struct {
		headers []string
		want    int
	}{
		"a program":               {nil, 200},
		"a page of the same site": {[]string{"Origin", "http://127.0.0.1:8081", "Sec-Fetch-Site", "same-origin"}, 200},
		"a page of another site":  {[]string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, 403},
		"one of an older browser": {[]string{"Origin", "https://evil.example"}, 403},
		"a form":                  {[]string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		"a form that sends text":  {[]string{"Content-Type", "text/plain"}, 415},
	} {
		headers := append([]string{"Authorization", "Bearer secret"}, test.headers...)
		if code, answer := c.request(t, "POST", pause, body, headers...); code != test.want {
			t.Errorf("%s: %d %v, want %d", name, code, answer, test.want)
		}
	}
}

// routes are all that need a right, with whether they change something.
var routes = []struct {
	method, path string
	changes      bool
}{
	{"GET", "/progress", false},
	{"GET", "/v1/status", false},
	{"GET", "/v1/subscribers", false},
	{"GET", "/v1/owed", false},
	{"GET", "/v1/owed/e1", false},
	{"GET", "/v1/events/e1", false},
	{"GET", "/v1/attempts", false},
	{"GET", "/v1/replays", false},
	{"GET", "/v1/replays/1", false},
	{"GET", "/v1/progress", false},
	{"GET", "/v1/events?source=lessons", false},
	{"GET", "/v1/audit", false},
	{"GET", "/v1/slot", false},
	{"GET", "/v1/slot/history", false},
	{"GET", "/v1/repairs", false},
	{"GET", "/v1/doctor", false},
	{"GET", "/v1/sources", false},
	{"POST", "/v1/subscribers/analytics/pause", true},
	{"POST", "/v1/subscribers/analytics/resume", true},
	{"POST", "/v1/owed/redrive", true},
	{"POST", "/v1/owed/discard", true},
	{"POST", "/v1/owed/add", true},
	{"POST", "/v1/replays", true},
	{"POST", "/v1/replays/1/cancel", true},
}

// S-01: what a caller may do follows from the token, the listener and the request, the same on each route.
func TestAccess_isDecidedAlikeOnEveryRoute(t *testing.T) {
	const listenTCP, listenSocket = "127.0.0.1:8081", "unix:/run/walpost/ops.sock"
	token := []string{"Authorization", "Bearer secret"}
	for _, test := range []struct {
		name, listen, token string
		headers             []string
		read, change        int // 0: let in
	}{
		{"a token that is set, on loopback, without it", listenTCP, "secret", nil, 401, 401},
		{"a wrong one", listenTCP, "secret", []string{"Authorization", "Bearer wrong"}, 401, 401},
		{"the right one", listenTCP, "secret", token, 0, 0},
		{"the right one through a proxy", listenTCP, "secret", append([]string{"Host", "relay.example", "Forwarded", "for=10.1.1.1"}, token...), 0, 0},
		{"a token that is set, on a socket, without it", listenSocket, "secret", nil, 401, 401},
		{"beyond loopback with the token", "0.0.0.0:8081", "secret", token, 0, 0},
		{"beyond loopback without it", "0.0.0.0:8081", "secret", nil, 401, 401},
		{"beyond loopback where none is set", "0.0.0.0:8081", "", nil, 403, 403},
		{"on loopback where none is set", listenTCP, "", nil, 0, 403},
		{"by the name localhost", listenTCP, "", []string{"Host", "localhost"}, 0, 403},
		{"by IPv6", listenTCP, "", []string{"Host", "[::1]:8081"}, 0, 403},
		{"by a name that leads to loopback", listenTCP, "", []string{"Host", "evil.example:8081"}, 403, 403},
		{"through a proxy of RFC 7239", listenTCP, "", []string{"Forwarded", "for=10.1.1.1"}, 403, 403},
		{"through a proxy that says no more", listenTCP, "", []string{"Via", "1.1 proxy"}, 403, 403},
		{"through another proxy", listenTCP, "", []string{"X-Forwarded-For", "10.1.1.1"}, 403, 403},
		{"through one that names the host alone", listenTCP, "", []string{"x-forwarded-host", "relay.example"}, 403, 403},
		{"on a socket of its owner", listenSocket, "", []string{"Host", "walpost"}, 0, 0},
	} {
		c := newCounter(t, test.listen, test.token)
		for _, route := range routes {
			code, answer := c.request(t, route.method, route.path, `{}`, test.headers...)
			want := test.read
			if route.changes {
				want = test.change
			}
			if refused := code == 401 || code == 403; refused != (want != 0) || refused && code != want {
				t.Errorf("%s: %s %s answers %d %v, want %d", test.name, route.method, route.path, code, answer, want)
			}
			if shown := fmt.Sprint(answer); want != 0 && (strings.Contains(shown, "analytics") || strings.Contains(shown, "secret")) {
				t.Errorf("%s: %s %s is refused and shows %s", test.name, route.method, route.path, shown)
			}
			if detail := fmt.Sprint(answer["detail"]); route.changes && test.token == "" && want == 403 &&
				(!strings.Contains(detail, "WALPOST_OPS_TOKEN") || !strings.Contains(detail, "WALPOST_OPS_LISTEN=unix:/")) {
				t.Errorf("%s: %s %s names not both ways out: %s", test.name, route.method, route.path, detail)
			}
		}
		for path, says := range map[string]string{"/live": "ok", "/ready": "streaming", "/metrics": "walpost_build_info"} {
			request := httptest.NewRequest("GET", "http://127.0.0.1:8081"+path, nil)
			for i := 0; i < len(test.headers); i += 2 {
				request.Header.Set(test.headers[i], test.headers[i+1])
				if test.headers[i] == "Host" {
					request.Host = test.headers[i+1]
				}
			}
			recorder := httptest.NewRecorder()
			c.server.ServeHTTP(recorder, request)
			if !strings.Contains(recorder.Body.String(), says) {
				t.Errorf("%s: %s answers %d %s", test.name, path, recorder.Code, recorder.Body)
			}
			if shows := strings.Contains(recorder.Body.String(), "analytics holds"); path == "/ready" && shows != (test.read == 0) {
				t.Errorf("%s: /ready says %s", test.name, recorder.Body)
			}
		}
	}
}

func TestV1_saysThatTheDatabaseIsAway(t *testing.T) {
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	c := &counter{db, New(Options{
		Listen: "127.0.0.1:0", Registry: prometheus.NewRegistry(), Relay: stuck(),
		Admin: admin.New(db.Pinned, "walpost", nil, nil), Log: slog.New(slog.DiscardHandler),
	})}
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/status", "/v1/owed"} {
		if code, answer := c.request(t, "GET", path, ""); code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %v", path, code, answer)
		}
	}
}

// S-02: what Postgres or encoding/json would read in another way, or not at all, is a 400 that names the part, and
// changes nothing.
func TestV1_refusesInputThatIsNotCertain(t *testing.T) {
	c := newCounter(t, "unix:/run/walpost/ops.sock", "")
	long := strings.Repeat("x", 2001)
	for _, test := range []struct{ method, path, body, says string }{
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"x","dry_run":true,"Dry_Run":false}`, "body.Dry_Run"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"x","dry_run":true,"dry_run":false}`, "body.dry_run"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"x","ſubscriber":"billing"}`, "unexpected property"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"a\u0000b"}`, "body.why"},
		{"POST", "/v1/owed/discard", "{\"subscriber\":\"ana\xfflytics\",\"why\":\"x\"}", "body.subscriber"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"x","limit":99999999999999999999}`, "body.limit"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"x","limit":1e400}`, "body.limit"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"x","since":"0001-01-01T00:00:00Z"}`, "body.since"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"x","state":null}`, "body.state"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"` + long + `"}`, "body.why"},
		{"POST", "/v1/owed/discard", `{"subscriber":"analytics","why":"x","who":"` + long + `"}`, "body.who"},
		{"POST", "/v1/owed/discard?dry_run=true", `{"subscriber":"analytics","why":"x"}`, "query.dry_run"},
		{"POST", "/v1/owed/discard", `[]`, "body"},
		{"POST", "/v1/owed/redrive", `{"subscriber":"billing","why":"x","key":"a\u0000"}`, "body.key"},
		{"POST", "/v1/owed/add", `{"subscriber":"analytics","why":"x","events":["e4","\u0000"]}`, "body.events[1]"},
		{"POST", "/v1/owed/add", `{"subscriber":"analytics","why":"x","events":["` + long + `"]}`, "body.events"},
		{"POST", "/v1/subscribers/analytics/pause", `{"why":"` + strings.Repeat("x", 1<<19) + `"}`, "body.why"},
		{"POST", "/v1/subscribers/a%00b/pause", `{}`, "name in the path"},
		{"POST", "/v1/subscribers/%ff/pause", `{}`, "name in the path"},
		{"POST", "/v1/replays", `{"subscriber":"analytics","key":"k3","why":"x","rate":3000000000}`, "rate"},
		{"POST", "/v1/replays", `{"subscriber":"analytics","key":"k3","why":"x","rate":9223372036854775808}`, "body.rate"},
		{"POST", "/v1/replays/9223372036854775808/cancel", `{}`, "must be a number"},
		{"GET", "/v1/replays/%00", "", "id in the path"},
		{"GET", "/v1/owed/e%001", "", "event in the path"},
		{"GET", "/v1/events/%ff", "", "event in the path"},
		{"GET", "/v1/events/e1?force=1", "", "query.force"},
		{"GET", "/v1/status?x", "", "query.x"},
		{"GET", "/v1/owed?key=%00", "", "key"},
		{"GET", "/v1/owed?error=%ff", "", "error"},
		{"GET", "/v1/owed?limit=99999999999999999999", "", "limit"},
		{"GET", "/v1/owed?since=0001-01-01T00:00:00Z", "", "since"},
		{"GET", "/v1/owed?subscriber=analytics;state=dead", "", "query"},
		{"GET", "/v1/owed?key=%zz", "", "query"},
		{"GET", "/v1/owed?key=" + long, "", "key"},
		{"GET", "/v1/attempts?key=%00", "", "key"},
		{"GET", "/v1/attempts?after=99999999999999999999&follow=true", "", "after"},
		{"GET", "/v1/attempts?limit=99999999999999999999", "", "limit"},
	} {
		code, answer := c.request(t, test.method, test.path, test.body)
		if detail := fmt.Sprint(answer["detail"]); code != 400 || !strings.Contains(detail, test.says) || len(detail) > 300 {
			t.Errorf("%s %.60s %.70s: %d %.200s, want 400 and %q", test.method, test.path, test.body, code, detail, test.says)
		}
	}
	// The greatest numbers that are numbers are no trouble either.
	if code, answer := c.request(t, "POST", "/v1/owed/discard", `{"subscriber":"analytics","dry_run":true,"limit":9223372036854775807}`); code != 200 {
		t.Errorf("the greatest limit: %d %v", code, answer)
	}
	if got := debttest.Unpaid(c); got != 3 {
		t.Errorf("%d are owed, want all 3", got)
	}
	if got := c.Int(`SELECT count(*) FROM walpost.audit`); got != 0 {
		t.Errorf("%d changes are audited, want none", got)
	}
}
