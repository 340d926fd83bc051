package ops

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/safefile"
)

// standing is a relay that stands as its fields say.
type standing struct {
	health   relay.Health
	progress relay.Progress
	attempts *relay.Attempts
	open     []string // subscribers that have every event of the counter in hand
	leads    bool
}

func (s *standing) Health() relay.Health      { return s.health }
func (s *standing) Progress() relay.Progress  { return s.progress }
func (s *standing) Leads() bool               { return s.leads }
func (s *standing) Attempts() *relay.Attempts { return s.attempts }

func (s *standing) OpenFor(string) (open []relay.OpenDelivery) {
	for _, name := range s.open {
		open = append(open, relay.OpenDelivery{Subscriber: name, Source: "lessons", Occurrence: written})
	}
	return open
}

func stuck() *standing {
	return &standing{
		health:   relay.Health{State: relay.Streaming, Problems: []string{"analytics holds event 01J for 70s: connection refused"}},
		progress: relay.Progress{Slot: "walpost", State: relay.Streaming, Subscribers: []relay.Subscriber{{Name: "analytics", Open: 3}}},
		attempts: relay.NewAttempts(10, time.Now()),
	}
}

func serve(listen, token string, of Relay) *Server {
	return New(Options{
		Listen: listen, Token: token, Registry: prometheus.NewRegistry(), Relay: of,
		Log: slog.New(slog.DiscardHandler), Version: "v1.2.3",
	})
}

func get(s *Server, path, authorization string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodGet, "http://localhost:8081"+path, nil)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, request)
	return recorder
}

// S-133
func TestAccess_readsATokenInAFileAtEachRequest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	server := serve("127.0.0.1:8081", safefile.Live(file, "first"), stuck())
	for _, step := range []struct {
		held, shown string
		want        int
	}{
		{"first", "first", http.StatusOK},
		{"second\n", "first", http.StatusUnauthorized},
		{"second\n", "second", http.StatusOK},
		{"", "", http.StatusUnauthorized}, // it is written at this moment
	} {
		if err := os.WriteFile(file, []byte(step.held), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := get(server, "/progress", "Bearer "+step.shown); got.Code != step.want {
			t.Errorf("the file holds %q, the request shows %q: %d, want %d", step.held, step.shown, got.Code, step.want)
		}
	}
}

func TestReady_isNotWhenTheRelayIsNotAndSaysWhy(t *testing.T) {
	of := stuck()
	server := serve("127.0.0.1:8081", "", of)
	got := get(server, "/ready", "")
	if got.Code != http.StatusServiceUnavailable || !strings.Contains(got.Body.String(), "analytics holds event 01J") {
		t.Errorf("answer %d %s", got.Code, got.Body)
	}
	of.health = relay.Health{Ready: true, State: relay.Streaming}
	got = get(server, "/ready", "")
	var health relay.Health
	if err := json.Unmarshal(got.Body.Bytes(), &health); err != nil {
		t.Fatal(err)
	}
	if got.Code != http.StatusOK || !health.Ready || health.State != relay.Streaming {
		t.Errorf("answer %d %+v", got.Code, health)
	}
}

func TestLive_answersWhateverTheRelaySays(t *testing.T) {
	if got, want := get(serve(":8081", "", stuck()), "/live", "").Code, http.StatusOK; got != want {
		t.Errorf("status %d, want %d", got, want)
	}
}

func TestServer_showsDetailsForTheTokenOrOnLoopbackWithoutOne(t *testing.T) {
	for _, test := range []struct {
		listen, token, authorization string
		open                         bool
	}{
		{"127.0.0.1:8081", "", "", true},
		{"[::1]:0", "secret", "", false},
		{"localhost:8081", "", "", true},
		{"[::ffff:127.0.0.1]:80", "", "", true},
		{":8081", "", "", false},
		{"0.0.0.0:8081", "secret", "", false},
		{"localhost.example:8081", "secret", "", false},
		{"10.0.0.5:8081", "secret", "Bearer secret", true},
		{"10.0.0.5:8081", "secret", "bearer secret", true},
		{"10.0.0.5:8081", "secret", "Bearer secre", false},
		{"10.0.0.5:8081", "secret", "Bearer secret2", false},
		{"10.0.0.5:8081", "secret", "Basic secret", false},
		{"10.0.0.5:8081", "secret", "secret", false},
		{"10.0.0.5:8081", "", "Bearer ", false},
		{"10.0.0.5:8081", "", "Bearer", false},
	} {
		server := serve(test.listen, test.token, stuck())
		progress := get(server, "/progress", test.authorization)
		if got := progress.Code == http.StatusOK; got != test.open {
			t.Errorf("%+v: /progress answers %d", test, progress.Code)
		}
		if got := strings.Contains(progress.Body.String(), `"slot": "walpost"`); got != test.open {
			t.Errorf("%+v: /progress says %s", test, progress.Body)
		}
		ready := get(server, "/ready", test.authorization)
		if got := strings.Contains(ready.Body.String(), "analytics"); got != test.open {
			t.Errorf("%+v: /ready says %s", test, ready.Body)
		}
		if ready.Code != http.StatusServiceUnavailable || !strings.Contains(ready.Body.String(), "streaming") {
			t.Errorf("%+v: /ready answers %d %s, want its status words", test, ready.Code, ready.Body)
		}
	}
}

func TestMetrics_areOpenAndNameTheBuild(t *testing.T) {
	got := get(serve(":8081", "secret", stuck()), "/metrics", "")
	if got.Code != http.StatusOK || !strings.Contains(got.Body.String(), `walpost_build_info{goversion="go`) ||
		!strings.Contains(got.Body.String(), `version="v1.2.3"} 1`) {
		t.Errorf("answer %d %s", got.Code, got.Body)
	}
}

func TestServer_onlyAnswersToReading(t *testing.T) {
	for path, want := range map[string]int{"/ready": http.StatusMethodNotAllowed, "/elsewhere": http.StatusNotFound} {
		recorder := httptest.NewRecorder()
		serve(":0", "", stuck()).ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, nil))
		if got := recorder.Code; got != want {
			t.Errorf("POST %s answers %d, want %d", path, got, want)
		}
	}
}

func TestRun_answersUntilItsContextEnds(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve("127.0.0.1:0", "", stuck()).Run(ctx, listener) }()
	response, err := http.Get("http://" + listener.Addr().String() + "/live")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(body), "ok") {
		t.Errorf("answer %d %s, %v", response.StatusCode, body, err)
	}
	response.Body.Close()
	stop()
	if err := <-ended; err != nil {
		t.Errorf("a stop is an error: %v", err)
	}
	if _, err := net.Dial("tcp", listener.Addr().String()); err == nil {
		t.Error("the port is still open after the stop")
	}
}

func TestRun_reportsAListenerThatDies(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if err := serve("127.0.0.1:0", "", stuck()).Run(t.Context(), listener); err == nil {
		t.Error("a dead listener is no error")
	}
}

func TestLeader_isOKAtTheLeaderAloneWithoutAToken(t *testing.T) {
	of := stuck()
	server := serve("0.0.0.0:8081", "secret-token", of)
	for _, of.leads = range []bool{false, true, false} {
		want := http.StatusServiceUnavailable
		if of.leads {
			want = http.StatusOK
		}
		if got := get(server, "/leader", "").Code; got != want {
			t.Errorf("leads %t: got %d, want %d", of.leads, got, want)
		}
	}
}
