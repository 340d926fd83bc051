// Package ops serves the relay's health, progress and metrics, and below /v1 what package admin offers to operators,
// over HTTP. Who may see and change what is decided in access.go. It never calls a subscriber.
package ops

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/relay"
)

// Relay is what is looked at. The methods return at once and are safe for concurrent use.
type Relay interface {
	Health() relay.Health
	Progress() relay.Progress
	Leads() bool
	// Attempts are the last attempts of all subscribers.
	Attempts() *relay.Attempts
	// OpenFor returns the deliveries in hand of the events with an id.
	OpenFor(eventID string) []relay.OpenDelivery
}

// Options are what the server is made of; all but Token must be set.
type Options struct {
	// Listen is the address as it was configured, host:port or unix:/path. It decides what callers may do
	// where Token is "" (access.go).
	Listen string
	// Token is what "Authorization: Bearer" must carry for everything but /live, /metrics and the status
	// words of /ready. With "" there is none. A safefile.Live text is what its file holds at each request.
	Token    string
	Registry *prometheus.Registry
	Relay    Relay
	Admin    *admin.Service
	Log      *slog.Logger
	Version  string
	// Doctor is what the doctor of the process has found last, Sources what is found in the tables of the sources. nil is a
	// server that does not know.
	Doctor  func() doctor.Said
	Sources func(context.Context) ([]doctor.SourceReport, error)
}

// Server answers for one relay.
type Server struct {
	options Options
	listens reach
	mux     *http.ServeMux
	// crossOrigin finds requests that a page of another site makes a browser send.
	crossOrigin *http.CrossOriginProtection
	times       times
	handler     http.Handler  // of mux, with problems for what mux does not know
	followers   atomic.Int32  // streams under way
	surveying   chan struct{} // has room while no one looks at the tables of the sources
	stopping    chan struct{} // closed when Run stops
}

// times are the timeouts of the server. Answers are made from memory, except a scrape and what is below
// /v1, which wait for Postgres.
type times struct {
	read, write, idle, drain time.Duration
	beat                     time.Duration // between signs of life in a stream
}

const (
	writeTimeout = 15 * time.Second
	maxHeader    = 16 << 10
	// maxScrapes is how many scrapes are served at once: two Prometheus servers and a person.
	maxScrapes = 4
)

// New makes a server and registers walpost_build_info.
func New(options Options) *Server {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "walpost_build_info",
		Help: "Always 1; the labels say which build this is.",
	}, []string{"version", "goversion"})
	info.WithLabelValues(options.Version, runtime.Version()).Set(1)
	options.Registry.MustRegister(info)

	s := &Server{
		options: options, listens: reachOf(options.Listen), mux: http.NewServeMux(), crossOrigin: http.NewCrossOriginProtection(),
		times:    times{read: 5 * time.Second, write: writeTimeout, idle: 2 * time.Minute, drain: 2 * time.Second, beat: 15 * time.Second},
		stopping: make(chan struct{}), surveying: make(chan struct{}, 1),
	}
	s.handler = httpserver.Problems(s.mux, s.problem)
	s.mux.HandleFunc("GET /live", s.live)
	s.mux.HandleFunc("GET /ready", s.ready)
	s.mux.HandleFunc("GET /leader", s.leader)
	s.mux.HandleFunc("GET /progress", s.progress)
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(options.Registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(options.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // half of the metrics says more than none
		MaxRequestsInFlight: maxScrapes,
		Timeout:             writeTimeout - time.Second,
	}))
	s.route()
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.handler.ServeHTTP(w, r)
}

// Run answers on listener, which it closes, until ctx ends; then it ends streams, gives answers under way a
// moment and returns nil. Any other end is an error. Run may be called once.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	server := httpserver.Server{
		Handler: s,
		Limits:  httpserver.Limits{Read: s.times.read, Write: s.times.write, Idle: s.times.idle, Bytes: maxHeader},
		Drain:   s.times.drain,
		OnStop:  func() { close(s.stopping) },
		Log:     s.options.Log,
	}
	err := server.Run(ctx, listener)
	if errors.Is(err, httpserver.ErrCutOff) {
		return nil // a scrape that takes longer than this is repeated by its client
	}
	return err
}

func (s *Server) live(w http.ResponseWriter, _ *http.Request) {
	httpserver.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	health := s.options.Relay.Health()
	if s.refuseRead(r) != nil {
		health.Problems = nil // they name events, hosts and errors
	}
	status := http.StatusOK
	if !health.Ready {
		status = http.StatusServiceUnavailable
	}
	httpserver.WriteJSON(w, status, health)
}

// leader is for load balancers that send clients to the one relay that leads; /ready is 200 on a standby, too.
func (s *Server) leader(w http.ResponseWriter, _ *http.Request) {
	status := http.StatusOK
	if !s.options.Relay.Leads() {
		status = http.StatusServiceUnavailable
	}
	httpserver.WriteJSON(w, status, map[string]bool{"leader": status == http.StatusOK})
}

func (s *Server) progress(w http.ResponseWriter, r *http.Request) {
	if refused := s.refuseRead(r); refused != nil {
		s.refuse(w, refused)
		return
	}
	httpserver.WriteJSON(w, http.StatusOK, s.options.Relay.Progress())
}
