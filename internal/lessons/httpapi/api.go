// Package httpapi is the completions API: HTTP in front of the use case of package lessons, the next one to read. It
// decides who asks, whether the request is well formed, and how an error looks outside; it holds no SQL and decides
// nothing about lessons.
package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/lessons"
)

// Defaults of Options.
const (
	DefaultMaxBody = 64 << 10
	DefaultTimeout = 10 * time.Second
)

// Options are what the API is made of.
type Options struct {
	Service *lessons.Service
	// Auth tells who asks: NewJWTAuth or NewDevAuth.
	Auth Auth
	// Ready reports why the API cannot serve at the moment, or nil: database reachable, schema current.
	Ready func(context.Context) error
	Log   *slog.Logger
	// Version is what the OpenAPI description says.
	Version string
	// MaxBody is the largest request body in bytes; 0 is DefaultMaxBody.
	MaxBody int64
	// Timeout is how long a request may take once its headers are read; 0 is DefaultTimeout. It must be
	// shorter than the server's WriteTimeout, or the answer that says so is never sent.
	Timeout time.Duration
	// Registry takes the metrics; nil keeps them nowhere.
	Registry prometheus.Registerer
}

// api is the state behind all handlers. It does not change after New.
type api struct {
	Options
	log     *slog.Logger
	metrics *metrics
}

// New builds the handler of the API. Service, Auth, Ready and Log must be set.
func New(o Options) http.Handler {
	if o.Service == nil || o.Auth == nil || o.Ready == nil || o.Log == nil {
		panic("httpapi.New: Service, Auth, Ready and Log must be set")
	}
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	a := &api{Options: o, log: o.Log, metrics: newMetrics(o.Registry)}

	mux := http.NewServeMux()
	open := humago.New(mux, configuration(o.Version))
	users := huma.NewGroup(open)
	users.UseMiddleware(a.authenticate, a.readBody) // in this order: no one unknown has a body read
	users.UseSimpleModifier(func(op *huma.Operation) { op.Security = []map[string][]string{{"bearer": {}}} })
	a.routes(open, users)
	describe(mux, open.OpenAPI())
	return a.observe(httpserver.Problems(mux, func(w http.ResponseWriter, status int, detail string) { writeProblem(w, status, detail) }))
}

// configuration is written out in place of huma.DefaultConfig, which adds $schema members to every
// answer, and a docs page whose scripts come from the internet.
func configuration(version string) huma.Config {
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			Info: &huma.Info{
				Title:       "Walpost completions API",
				Version:     version,
				Description: "Complete lessons and see what came of it. Errors are problems as in RFC 9457.",
			},
			Components: &huma.Components{
				Schemas:         huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer", BearerFormat: "JWT"}},
			},
		},
		Formats:                      huma.DefaultFormats,
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{withoutValues},
	}
}

// describe serves the OpenAPI document, which is complete by now, and a page made from it.
func describe(mux *http.ServeMux, spec *huma.OpenAPI) {
	document, err := json.Marshal(spec)
	if err != nil {
		panic(fmt.Sprintf("httpapi: OpenAPI document: %v", err))
	}
	page := docsPage(spec)
	serve := func(contentType string, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write(body) // an error means that the client has gone
		}
	}
	mux.HandleFunc("GET /openapi.json", serve("application/json", document))
	mux.HandleFunc("GET /docs", serve("text/html; charset=utf-8", page))
}
