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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/backendstart/walpost/internal/httpserver"
)

const (
	maxHeader = 16 << 10
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
		EnableOpenMetrics:   true, // the classic text has no exemplars
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
