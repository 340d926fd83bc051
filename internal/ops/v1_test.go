package ops

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/debt"
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

func newCounter(t *testing.T, listen, token string) *counter {
	t.Helper()
	db := testdb.New(t)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e' || n, 'lesson.completed', 'k' || n, jsonb_build_object('n', n, 'big', 12345678901234567890) FROM generate_series(1, 4) n`)
	db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, state, confirmed) VALUES ('walpost', '7', 1, 'ready', '0/1000')`)
	db.Exec(`INSERT INTO walpost.subscribers (slot, name, gone_at) VALUES ('walpost', 'analytics', NULL), ('walpost', 'billing', now())`)
	source := &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox", Mark: true, Ours: true}
	store := debt.NewStore(db.Pool, "walpost")
	owed := func(n int) lane.Owed {
		return lane.Owed{Event: &event.Event{
			Source: "lessons", ID: fmt.Sprintf("e%d", n), Type: "lesson.completed", Key: fmt.Sprintf("k%d", n), Row: fmt.Sprint(n),
			Payload: fmt.Appendf(nil, `{"n": %d, "big": 12345678901234567890}`, n), Headers: []byte(`{}`),
			Position: event.Position{Epoch: 1, Commit: event.LSN(n * 8)},
		}, Attempts: 3, Err: "503 from <the receiver>"}
	}
	if err := store.Record(t.Context(), "analytics", []lane.Owed{owed(1), owed(2)}); err != nil {
		t.Fatal(err)
	}
	if err := store.Dead(t.Context(), "billing", owed(3)); err != nil {
		t.Fatal(err)
	}
	return &counter{db, New(Options{
		Listen: listen, Token: token, Registry: prometheus.NewRegistry(), Relay: stuck(),
		Desk: NewDesk(db.Pool, "walpost", []*outbox.Source{source}, []string{"analytics"}),
		Log:  slog.New(slog.DiscardHandler), Version: "v1.2.3",
	})}
}

// ask sends a request as curl does it, and reads the JSON answer into a map.
func (c *counter) ask(t *testing.T, method, path, body string, headers ...string) (int, map[string]any) {
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
		code, answer := c.ask(t, "GET", "/v1/owed"+query, "")
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
	_, answer := c.ask(t, "GET", "/v1/status", "")
	if got := fmt.Sprint(answer["leader"]); got != "map[holder:host/7 term:3]" {
		t.Errorf("leader is %s", got)
	}
	if slot := answer["slot"].(map[string]any); slot["exists"] != false || slot["state"] != "ready" {
		t.Errorf("slot is %v", slot)
	}
	_, list := c.ask(t, "GET", "/v1/subscribers", "")
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
	c := newCounter(t, "127.0.0.1:8081", "")
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
		{"/v1/owed/redrive", `{"event": "e4", "why": "mended"}`,
			"map[events:[map[detail:redriven event:e4 result:redriven source:lessons subscriber:analytics]] redriven:1]"},
		{"/v1/owed/redrive", `{"type": "lesson.completed", "state": "dead", "why": "mended"}`, "map[gone:1 redriven:0]"},
	} {
		code, answer := c.ask(t, "POST", step.path, step.body)
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
	if got := c.Text(`SELECT string_agg(event_id || state, ' ' ORDER BY event_id) FROM walpost.owed`); got != "e3dead e4waiting" {
		t.Errorf("owed is %s", got)
	}
	if got := c.Text(`SELECT string_agg(event_id, ' ' ORDER BY id) FROM outbox WHERE published_at IS NOT NULL`); got != "e1 e2" {
		t.Errorf("marked are %s", got)
	}
	if got := c.Text(`SELECT who || ': ' || why FROM walpost.audit ORDER BY id LIMIT 1`); got != "alice via ops API from 192.0.2.1:1234: maintenance" {
		t.Errorf("the audit says %s", got)
	}
}

func TestV1_refusesWhatCannotBeMeant(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
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
		{"GET", "/v1/owed/e9", "", 404, "owed to nobody"},
		{"POST", "/v1/subscribers/nobody/pause", `{}`, 404, "no subscriber"},
		{"POST", "/v1/subscribers/analytics/pause", ``, 400, "body"},
		{"POST", "/v1/owed/discard", `{"subscriber": "analytics"}`, 400, "why"},
		{"POST", "/v1/owed/discard", `{"why": "x"}`, 400, "chooses everything"},
		{"POST", "/v1/owed/discard", `{"why": "x", "state": "dead", "limit": 5}`, 400, "chooses everything"},
		{"POST", "/v1/owed/discard", `{"why": "x", "subscribr": "analytics"}`, 400, "subscribr"},
		{"POST", "/v1/owed/discard", `{"why": "x", "subscriber": "a", "state": "paid"}`, 400, "waiting or dead"},
		{"POST", "/v1/owed/discard", `{"why": "x", "subscriber": "a"} {}`, 400, "follows"},
		{"POST", "/v1/owed/discard", `{"why": "x", "subscriber": "a", "limit": -1}`, 400, "negative"},
		{"POST", "/v1/owed/redrive", `{"subscriber": "analytics"}`, 400, "why"},
		{"POST", "/v1/owed/redrive", `{"why": "x"}`, 400, "chooses everything"},
		{"POST", "/v1/owed/redrive", `{"why": "x", "subscriber": "analytics", "state": "waiting"}`, 400, "sent by themselves"},
		{"POST", "/v1/owed/redrive", `{"why": "x", "subscriber": "billing"}`, 400, "left the configuration"},
		{"POST", "/v1/owed/redrive", `{"dry_run": true, "subscriber": "nobody"}`, 404, "no subscriber"},
		{"POST", "/v1/owed/add", `{"why": "x", "subscriber": "analytics"}`, 400, "events"},
		{"POST", "/v1/owed/add", `{"subscriber": "analytics", "events": ["e4"]}`, 400, "why"},
		{"POST", "/v1/owed/add", `{"why": "x", "subscriber": "nobody", "events": ["e4"]}`, 404, "no subscriber"},
		{"POST", "/v1/owed/add", `{"why": "x", "subscriber": "analytics", "events": ["e4"], "state": "paid"}`, 400, "waiting or dead"},
		{"POST", "/v1/owed/add", `{"why": "` + strings.Repeat("x", maxBody) + `"}`, 413, "large"},
	} {
		code, answer := c.ask(t, test.method, test.path, test.body)
		if detail := fmt.Sprint(answer["detail"]); code != test.want || !strings.Contains(detail, test.says) {
			t.Errorf("%s %s %.60s: %d %s, want %d and %q", test.method, test.path, test.body, code, detail, test.want, test.says)
		}
	}
	if got := c.Int(`SELECT count(*) FROM walpost.owed WHERE state <> 'paid'`); got != 3 {
		t.Errorf("%d are owed, want all 3", got)
	}
	if got := c.Int(`SELECT count(*) FROM walpost.audit`); got != 0 {
		t.Errorf("%d changes are audited, want none", got)
	}
}

// A browser that runs on the machine reaches loopback, and so does every page that it shows.
func TestV1_keepsPagesOfOtherSitesOut(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "")
	const pause, body = "/v1/subscribers/analytics/pause", `{}`
	for name, test := range map[string]struct {
		headers []string
		want    int
	}{
		"a program":                     {nil, 200},
		"a page of the same origin":     {[]string{"Origin", "http://127.0.0.1:8081", "Sec-Fetch-Site", "same-origin"}, 200},
		"a page of another site":        {[]string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, 403},
		"one of an older browser":       {[]string{"Origin", "https://evil.example"}, 403},
		"a form":                        {[]string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		"a form that sends text":        {[]string{"Content-Type", "text/plain"}, 415},
		"a name that leads to loopback": {[]string{"Host", "evil.example:8081", "Origin", "http://evil.example:8081", "Sec-Fetch-Site", "same-origin"}, 401},
		"localhost without a port":      {[]string{"Host", "localhost"}, 200},
		"IPv6":                          {[]string{"Host", "[::1]:8081"}, 200},
	} {
		if code, answer := c.ask(t, "POST", pause, body, test.headers...); code != test.want {
			t.Errorf("%s: %d %v, want %d", name, code, answer, test.want)
		}
	}
	if code, _ := c.ask(t, "GET", "/v1/owed", "", "Host", "evil.example"); code != 401 {
		t.Errorf("a name that leads to loopback reads what is owed: %d", code)
	}
}

func TestV1_needsTheTokenBeyondLoopback(t *testing.T) {
	c := newCounter(t, "0.0.0.0:8081", "secret")
	for _, request := range [][2]string{
		{"GET", "/v1/status"}, {"GET", "/v1/subscribers"}, {"GET", "/v1/owed"}, {"GET", "/v1/owed/e1"},
		{"POST", "/v1/subscribers/analytics/pause"}, {"POST", "/v1/subscribers/analytics/resume"},
		{"POST", "/v1/owed/redrive"}, {"POST", "/v1/owed/discard"}, {"POST", "/v1/owed/add"},
	} {
		if code, answer := c.ask(t, request[0], request[1], "{}"); code != http.StatusUnauthorized || strings.Contains(fmt.Sprint(answer), "analytics") {
			t.Errorf("%v without a token: %d %v", request, code, answer)
		}
		if code, _ := c.ask(t, request[0], request[1], "{}", "Authorization", "Bearer secret"); code == http.StatusUnauthorized {
			t.Errorf("%v is refused with the token", request)
		}
	}
}

func TestV1_saysThatTheDatabaseIsAway(t *testing.T) {
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	c := &counter{db, New(Options{
		Listen: "127.0.0.1:0", Registry: prometheus.NewRegistry(), Relay: stuck(),
		Desk: NewDesk(db.Pool, "walpost", nil, nil), Log: slog.New(slog.DiscardHandler),
	})}
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/status", "/v1/owed"} {
		if code, answer := c.ask(t, "GET", path, ""); code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %v", path, code, answer)
		}
	}
}
