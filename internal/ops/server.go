package ops

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	// requestTimeout ends a request before its answer could not be sent any more.
	requestTimeout = writeTimeout - time.Second
)

// problem answers with an error in the form of RFC 9457.
func (s *Server) problem(w http.ResponseWriter, status int, detail string) {
	httpserver.WriteProblem(w, status, map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
}
