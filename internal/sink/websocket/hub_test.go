package websocket

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

func (r *rig) metric(name, label string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			fits := label == ""
			for _, l := range m.GetLabel() {
				fits = fits || l.GetValue() == label
			}
			if family.GetName() == name && fits {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// ways are those by which a client can follow.
func (r *rig) ways() map[string]func(string, int) (follower, error) {
	return map[string]func(string, int) (follower, error){"websocket": r.overWebSocket, "server-sent events": r.overStream}
}

// S-410: while events go on, clients are cut off and come back with their last revision: each gets every revision once and
// in order.
func TestHub_leavesNoGapAndRepeatsNothingThroughReconnects(t *testing.T) {
	const total, clients = 600, 12
	r := newRig(t, func(o *Options) { o.Queue = 8 }) // so that queues overflow while rows are read
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() {
		for n := 1; n <= total; n++ {
			r.deliver(r.commit(eventOf("7", n)))
			if n%20 == 0 { // what came after a restart comes again
				r.deliver(eventOf("7", n-3), eventOf("7", n-2))
			}
			time.Sleep(time.Millisecond)
		}
	})
	for i := range clients {
		for name, connect := range r.ways() {
			group.Go(func() {
				last, cuts := 0, 0
				for last < total {
					f, err := connect("game/7", last)
					if err != nil {
						t.Errorf("%s %d: %v", name, i, err)
						return
					}
					for until := last + 1 + rand.IntN(150); last < until && last < total; {
						m, err := f.next(ctx)
						if err != nil {
							t.Errorf("%s %d after %d: %v", name, i, last, err)
							f.cut()
							return
						}
						if m.closed == slow.code {
							break
						}
						if m.Revision != int64(last)+1 || m.ID != fmt.Sprintf("7-%d", last+1) || m.Aggregate != "game/7" {
							t.Errorf("%s %d: %s comes after %d, closed %d", name, i, m.text, last, m.closed)
							f.cut()
							return
						}
						last++
					}
					f.cut()
					cuts++
				}
			})
		}
	}
	group.Wait()
	if got := r.metric("walpost_websocket_catch_ups_total", ""); got < clients {
		t.Errorf("%g times clients were sent what they had missed", got)
	}
	eventually(t, "the hub to see that all have left", func() bool { return r.metric("walpost_websocket_clients", "") == 0 })
}

// S-411
func TestHub_closesASlowClientWithItsCodeAndDelaysNoOther(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Queue, o.QueueBytes, o.WriteTimeout = 16, 1<<20, config.Duration(time.Second)
	})
	frozen, err := net.Dial("tcp", r.address) // it reads nothing
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	fmt.Fprintf(frozen, "GET /events?aggregate=game/7 HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", r.address)
	eventually(t, "the frozen client to follow", func() bool { return r.metric("walpost_websocket_clients", "") == 1 })
	good, err := r.overWebSocket("game/7", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer good.cut()
	for n := 1; n <= 200; n++ {
		e := eventOf("7", n)
		e.Payload = fmt.Appendf(nil, `"%s"`, strings.Repeat("x", 64<<10))
		begun := time.Now()
		r.deliver(r.commit(e))
		if took := time.Since(begun); took > patience/4 {
			t.Fatalf("a delivery took %s", took)
		}
		if m, err := good.next(t.Context()); err != nil || m.Revision != int64(n) {
			t.Fatalf("the good client got %d, closed %d, %v, want %d", m.Revision, m.closed, err, n)
		}
	}
	eventually(t, "the frozen client to be closed", func() bool {
		return r.metric("walpost_websocket_clients", "") == 1 && r.metric("walpost_websocket_closed_total", "4008") == 1
	})
}

// S-412: a client that is slow, and not frozen, learns why it was closed.
func TestHub_tellsTheReasonOfAnEnd(t *testing.T) {
	r := newRig(t, nil)
	for name, connect := range r.ways() {
		for _, why := range []ending{slow, leadEnded, startAgain} {
			f, err := connect("game/7", -1)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the client to follow", func() bool { return r.metric("walpost_websocket_clients", "") == 1 })
			r.hub.endAll(why)
			if m, err := f.next(t.Context()); err != nil || m.closed != why.code {
				t.Errorf("%s: got %+v, %v, want %d", name, m, err, why.code)
			}
			f.cut()
			eventually(t, "the client to have left", func() bool { return r.metric("walpost_websocket_clients", "") == 0 })
		}
	}
}

// S-413
func TestHub_sendsClientsAwayWhenTheLeadEndsAndTakesNoneOnAStandby(t *testing.T) {
	r := newRig(t, nil)
	for name, connect := range r.ways() {
		f, err := connect("game/7", -1)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the client to follow", func() bool { return r.metric("walpost_websocket_clients", "") == 1 })
		r.leads.Store(false)
		if m, err := f.next(t.Context()); err != nil || m.closed != 1012 {
			t.Errorf("%s: got %+v, %v, want the close code 1012", name, m, err)
		}
		f.cut()
		for _, path := range []string{"/leader", "/events?aggregate=game/7"} {
			if got := r.status(path, nil); got != http.StatusServiceUnavailable {
				t.Errorf("%s of a standby: %d, want 503", path, got)
			}
		}
		if _, err := connect("game/7", 0); err == nil {
			t.Error("a standby takes a client")
		}
		r.leads.Store(true)
		eventually(t, "the lead", func() bool { return r.status("/leader", nil) == http.StatusOK })
		eventually(t, "the client to have left", func() bool { return r.metric("walpost_websocket_clients", "") == 0 })
	}
}

func (r *rig) status(path string, header http.Header) int {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel() // of a stream
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.address+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	if host := header.Get("Host"); host != "" {
		request.Host = host
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

// S-414: rows are gone that the client has not seen: it is told so, and gets no stream with a hole.
func TestHub_saysStartAgainWhereRowsAreGone(t *testing.T) {
	for _, test := range []struct {
		name      string
		revisions string
		forget    int // rows up to it are gone
		last      int
		want      int // revisions that come before the close code
		closed    bool
	}{
		{"everything is there", Consecutive, 0, 0, 10, false},
		{"the next is the oldest", Consecutive, 4, 4, 6, false},
		{"the next is gone", Consecutive, 5, 4, 0, true},
		{"all are gone", Consecutive, 10, 4, 0, true},
		{"a revision of the future", Consecutive, 0, 99, 0, true},
		{"the last is there", Increasing, 3, 4, 6, false},
		{"the last is gone", Increasing, 4, 4, 0, true},
	} {
		r := newRig(t, func(o *Options) { o.Revisions = test.revisions })
		for n := 1; n <= 10; n++ {
			r.commit(eventOf("7", n))
		}
		r.rows.forget("game/7", test.forget)
		for name, connect := range r.ways() {
			f, err := connect("game/7", test.last)
			if err != nil {
				t.Fatal(err)
			}
			for n := range test.want {
				if m, err := f.next(t.Context()); err != nil || m.Revision != int64(test.last+n+1) {
					t.Fatalf("%s, %s: got %+v, %v, want %d", test.name, name, m, err, test.last+n+1)
				}
			}
			if test.closed {
				if m, err := f.next(t.Context()); err != nil || m.closed != startAgain.code {
					t.Errorf("%s, %s: got %+v, %v, want the close code %d", test.name, name, m, err, startAgain.code)
				}
			}
			f.cut()
		}
	}
}

// S-415: an event that became a dead letter, or waits as debt, leaves a hole in what is live: the rows fill it.
func TestHub_fillsAHoleInTheLiveEventsFromTheRows(t *testing.T) {
	r := newRig(t, nil)
	f, err := r.overWebSocket("game/7", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.cut()
	r.deliver(r.commit(eventOf("7", 1)))
	r.commit(eventOf("7", 2)) // it is not delivered
	late := eventOf("7", 3)
	r.deliver(late)
	go func() {
		time.Sleep(20 * time.Millisecond)
		r.commit(late) // a commit that waits for a standby is visible later
	}()
	for n := 1; n <= 3; n++ {
		if m, err := f.next(t.Context()); err != nil || m.Revision != int64(n) {
			t.Fatalf("got %+v, %v, want %d", m, err, n)
		}
	}
	r.deliver(eventOf("7", 5)) // 4 is nowhere
	if m, err := f.next(t.Context()); err != nil || m.closed != startAgain.code {
		t.Errorf("got %+v, %v, want the close code %d", m, err, startAgain.code)
	}
}

func TestHub_passesEventsWithoutARevisionAndRefusesOnesThatAreNone(t *testing.T) {
	r := newRig(t, nil)
	f, err := r.overStream("room", -1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.cut()
	eventually(t, "the client to follow", func() bool { return r.metric("walpost_websocket_clients", "") == 1 })
	e := &event.Event{ID: "1", Type: "said", Key: "room", Payload: []byte("{\n  \"a\": 1,\r\n  \"b\": \"x\"\n}")}
	r.deliver(e)
	if m, err := f.next(t.Context()); err != nil || m.ID != "1" || !strings.Contains(string(m.Payload), `"b": "x"`) {
		t.Errorf("got %+v, %v", m, err)
	}
	for _, revision := range []string{"x", "-1", "1.5", "99999999999999999999"} {
		bad := *eventOf("7", 1)
		bad.Revision = revision
		good := eventOf("8", 1)
		err := r.hub.HandleBatch(t.Context(), []subscriber.Delivery{{Event: &bad}, {Event: eventOf("7", 2)}, {Event: good}})
		var failed *subscriber.BatchError
		if !errors.As(err, &failed) || !subscriber.IsPermanent(failed.Failed[0]) || !errors.Is(failed.Failed[1], subscriber.ErrHeld) || failed.Failed[2] != nil {
			t.Errorf("revision %q: %v", revision, err)
		}
	}
}

// S-416: rows that cannot be read for a while are no reason to leave something out.
func TestHub_closesAClientWhoseRowsCannotBeRead(t *testing.T) {
	r := newRig(t, nil)
	r.rows.err = errors.New("postgres is away")
	f, err := r.overWebSocket("game/7", 3)
	if err != nil {
		t.Fatal(err)
	}
	defer f.cut()
	if m, err := f.next(t.Context()); err != nil || m.closed != unreadable.code {
		t.Errorf("got %+v, %v, want the close code %d", m, err, unreadable.code)
	}
}

const secret = "0123456789abcdef0123456789abcdef"

func tokenWith(t *testing.T, expires time.Time, games any) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "42", "exp": expires.Unix(), "games": games}).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// asking is a request to follow, with the status of the answer.
type asking struct {
	header    http.Header
	aggregate string
	want      int
}

// S-417: who may follow what, over both ways.
func TestHub_letsInOnlyWhoMayFollow(t *testing.T) {
	asked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch {
		case q.URL.Query().Get("aggregate") == "game/away":
			w.WriteHeader(http.StatusBadGateway)
		case q.URL.Query().Get("aggregate") == "game/moved":
			http.Redirect(w, q, "/", http.StatusFound)
		case q.Header.Get("Authorization") != "Bearer asked-token-0123456789":
			w.WriteHeader(http.StatusUnauthorized)
		case q.URL.Query().Get("aggregate") != "game/7":
			w.WriteHeader(http.StatusForbidden)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer asked.Close()
	bearerOf := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	inOneHour := time.Now().Add(time.Hour)
	for name, test := range map[string]struct {
		with     func(*Options)
		requests []asking
	}{
		"tokens": {func(o *Options) {
			o.Tokens, o.Cookie = []config.Secret{"first-token-0123456789", "next-token-0123456789"}, "live"
		}, []asking{
			{nil, "game/7", 401},
			{bearerOf("wrong-token-0123456789"), "game/7", 401},
			{bearerOf("first-token-0123456789"), "game/7", 200},
			{bearerOf("next-token-0123456789"), "game/8", 200},
			{http.Header{"Cookie": {"live=next-token-0123456789"}}, "game/8", 200},
			{http.Header{"Cookie": {"other=next-token-0123456789"}}, "game/8", 401},
			{http.Header{"Sec-Websocket-Protocol": {"walpost, bearer.next-token-0123456789"}}, "game/8", 200},
			{http.Header{"Authorization": {"Bearer first-token-0123456789"}, "Origin": {"https://play.example"}}, "game/7", 200},
			{http.Header{"Authorization": {"Bearer first-token-0123456789"}, "Origin": {"https://evil.example"}}, "game/7", 403},
			{http.Header{"Authorization": {"Bearer first-token-0123456789"}, "Origin": {"null"}}, "game/7", 403},
			{http.Header{"Authorization": {"Bearer first-token-0123456789"}, "Origin": {"http://rebound.example"}, "Host": {"rebound.example"}}, "game/7", 403},
		}},
		"a claim": {func(o *Options) { o.JWT = &JWT{Secret: secret, Claim: "games"} }, []asking{
			{bearerOf(tokenWith(t, inOneHour, []string{"game/7", "game/9*"})), "game/7", 200},
			{bearerOf(tokenWith(t, inOneHour, []string{"game/7", "game/9*"})), "game/91", 200},
			{bearerOf(tokenWith(t, inOneHour, []string{"game/7"})), "game/8", 403},
			{bearerOf(tokenWith(t, inOneHour, "game/8")), "game/8", 200},
			{bearerOf(tokenWith(t, inOneHour, nil)), "game/8", 403},
			{bearerOf(tokenWith(t, inOneHour, 7)), "game/8", 403},
			{bearerOf(tokenWith(t, time.Now().Add(-time.Hour), "*")), "game/8", 401},
			{bearerOf("no.jwt.atall"), "game/8", 401},
		}},
		"a URL": {func(o *Options) { o.Ask = asked.URL }, []asking{
			{bearerOf("asked-token-0123456789"), "game/7", 200},
			{bearerOf("asked-token-0123456789"), "game/8", 403},
			{bearerOf("other"), "game/7", 401},
			{nil, "game/7", 401},
			{bearerOf("asked-token-0123456789"), "game/away", 503},
			{bearerOf("asked-token-0123456789"), "game/moved", 503},
		}},
		"everyone": {func(o *Options) { o.Open = true }, []asking{
			{nil, "game/7", 200},
			{http.Header{"Origin": {"https://evil.example"}}, "game/7", 403},
			{http.Header{"Host": {"evil.example"}}, "game/7", 403}, // a name that leads here
			{http.Header{"Host": {"play.example"}}, "game/7", 200},
			{http.Header{"Last-Event-Id": {"x"}}, "game/7", 400},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) {
				o.Open, o.Origins = false, []string{"https://play.example"}
				test.with(o)
			})
			for _, q := range test.requests {
				eventually(t, "keys", func() bool { return r.hub.JWT == nil || r.hub.verifier.get() != nil })
				if got := r.status("/events?aggregate="+q.aggregate, q.header); got != q.want {
					t.Errorf("%v follows %s: status %d, want %d", q.header, q.aggregate, got, q.want)
				}
				// The same over WebSocket.
				header := q.header.Clone()
				_, response, err := websocket.Dial(t.Context(), "ws://"+r.address+"/events?aggregate="+q.aggregate, &websocket.DialOptions{
					HTTPHeader: header, Host: header.Get("Host"), Subprotocols: subprotocols(&http.Request{Header: header}),
				})
				if got := response.StatusCode; q.want == 200 && (err != nil || got != 101) || q.want != 200 && got != q.want {
					t.Errorf("over WebSocket %v follows %s: status %d, %v, want %d", q.header, q.aggregate, got, err, q.want)
				}
			}
		})
	}
}

// S-417
func TestHub_closesAClientWhoseTokenExpires(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Open, o.JWT = false, &JWT{Secret: secret} })
	eventually(t, "keys", func() bool { return r.hub.verifier.get() != nil })
	conn, _, err := websocket.Dial(t.Context(), "ws://"+r.address+"/events?aggregate=game/7", &websocket.DialOptions{ //nolint:bodyclose // the library owns it
		HTTPHeader: http.Header{"Authorization": {"Bearer " + tokenWith(t, time.Now().Add(2*time.Second), nil)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &webSocketFollower{conn}
	defer f.cut()
	if m, err := f.next(t.Context()); err != nil || m.closed != expired.code {
		t.Errorf("got %+v, %v, want the close code %d", m, err, expired.code)
	}
}

func TestHub_takesNoMoreClientsThanItMay(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Config.Clients = 2 })
	for range 2 {
		f, err := r.overWebSocket("game/7", -1)
		if err != nil {
			t.Fatal(err)
		}
		defer f.cut()
	}
	eventually(t, "both to follow", func() bool { return r.metric("walpost_websocket_clients", "") == 2 })
	if got := r.status("/events?aggregate=game/7", nil); got != http.StatusServiceUnavailable {
		t.Errorf("a third client: %d, want 503", got)
	}
}

// S-418: a client that is gone without a word, and one that talks, are not kept.
func TestHub_dropsClientsThatDoNotAnswerOrTalk(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Ping = config.Duration(50 * time.Millisecond) })
	silent, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	fmt.Fprintf(silent, "GET /events?aggregate=game/7 HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", r.address)
	eventually(t, "the silent client to be dropped", func() bool {
		return r.metric("walpost_websocket_closed_total", "left") == 1 && r.metric("walpost_websocket_clients", "") == 0
	})
	f, err := r.overWebSocket("game/7", -1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.cut()
	if err := f.(*webSocketFollower).Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if m, err := f.next(t.Context()); err != nil || m.closed != int(websocket.StatusPolicyViolation) {
		t.Errorf("got %+v, %v, want the close code 1008", m, err)
	}
}

func TestConfig_saysWhatIsWrong(t *testing.T) {
	for key, change := range map[string]func(*Config, *config.Subscriber){
		"":              func(*Config, *config.Subscriber) {},
		"listen":        func(c *Config, _ *config.Subscriber) { c.Listen = "8082" },
		"origins":       func(c *Config, _ *config.Subscriber) { c.Origins = []string{"*"} },
		"tokens":        func(c *Config, _ *config.Subscriber) { c.Tokens = nil },
		"open":          func(c *Config, _ *config.Subscriber) { c.Open = true },
		"jwt":           func(c *Config, _ *config.Subscriber) { c.JWT = &JWT{JWKS: "https://id.example/keys"} },
		"cookie":        func(c *Config, _ *config.Subscriber) { c.Cookie = "a b" },
		"ask":           func(c *Config, _ *config.Subscriber) { c.Ask = "ftp://x" },
		"revisions":     func(_ *Config, s *config.Subscriber) { s.Events = []string{"game.*"} },
		"ordering":      func(_ *Config, s *config.Subscriber) { s.Ordering = "none" },
		"clients":       func(c *Config, _ *config.Subscriber) { c.Clients = 0 },
		"queue_bytes":   func(c *Config, _ *config.Subscriber) { c.QueueBytes = 0 },
		"ping":          func(c *Config, _ *config.Subscriber) { c.Ping = 0 },
		"write_timeout": func(c *Config, _ *config.Subscriber) { c.WriteTimeout = -1 },
	} {
		c, s := NewConfig(), config.Subscriber{}
		c.Listen, c.Tokens = "127.0.0.1:8082", []config.Secret{"0123456789abcdef"}
		change(c, &s)
		var got []string
		c.Check(s, func(key string, _ error) { got = append(got, key) })
		if want := key; strings.Join(got, " ") != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
