package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/lessons/httpapi"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/migrations"
)

// drainAPI is how long requests may go on after a stop: longer than any of them is allowed to take.
const drainAPI = 15 * time.Second

// RunAPI serves the completions API until ctx ends.
func RunAPI(ctx context.Context, database config.Database, options config.API, log *slog.Logger) error {
	listener, err := listen(ctx, "api-listen", options.APIListen)
	if err != nil {
		return err
	}
	defer listener.Close()
	auth, err := newAuth(ctx, options, nil, log) // before the database: who fixes one mistake sees the next
	if err != nil {
		return UnlessStopped(ctx, err)
	}
	pool, err := OpenDatabase(ctx, database.DatabaseURL, "walpost/api", migrations.Lessons)
	if err != nil {
		return UnlessStopped(ctx, err)
	}
	defer closePools(pool)
	collectSeldom()
	server := newAPI(auth, pool, nil, log)
	log.Info("completions API is ready", "url", "http://"+listener.Addr().String(), "database", postgres.Redact(database.DatabaseURL.Live()))
	return server.Run(ctx, listener)
}

// collectSeldom lets the heap grow to five times of what lives. That is a few megabytes; with less Go would
// collect the garbage of requests some ten times a second under load, for an eighth of the API's processor
// time. GOGC overrides it.
// (package runtime, "Environment Variables")
func collectSeldom() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// apiLimits leave a handler its own deadline, which is shorter than that of the answer.
var apiLimits = httpserver.Limits{Header: 5 * time.Second, Read: 15 * time.Second, Write: 30 * time.Second, Idle: 2 * time.Minute, Bytes: 32 << 10}

// newAPI builds the server. A nil registry keeps its metrics nowhere.
func newAPI(auth httpapi.Auth, pool *postgres.Pool, registry prometheus.Registerer, log *slog.Logger) *httpserver.Server {
	handler := httpapi.New(httpapi.Options{
		Service:  lessons.New(pool),
		Auth:     auth,
		Ready:    func(ctx context.Context) error { return migrations.Check(ctx, pool, migrations.Lessons) },
		Log:      log,
		Version:  Version(),
		Registry: registry,
	})
	return &httpserver.Server{Handler: handler, Limits: apiLimits, Drain: drainAPI, Log: log}
}

func newAuth(ctx context.Context, options config.API, registry prometheus.Registerer, log *slog.Logger) (auth httpapi.Auth, err error) {
	if options.Auth == "dev" {
		auth, err = httpapi.NewDevAuth(options.APIListen)
	} else {
		auth, err = httpapi.NewJWTAuth(ctx, httpapi.JWTOptions{
			Secret: options.JWTSecret.Live(), JWKS: options.JWKSURL, Audience: options.JWTAudience, Issuer: options.JWTIssuer,
			Log: log, Registry: registry,
		})
	}
	return auth, config.Invalid(err)
}

// OpenDatabase connects once, so that a server that is away is known now, and compares the schema.
func OpenDatabase(ctx context.Context, dsn config.Secret, application string, sets ...migrations.Set) (*postgres.Pool, error) {
	pool, err := postgres.Open(ctx, dsn.Live(), application)
	if err != nil {
		return nil, fmt.Errorf("database_url: %w", err)
	}
	if err := migrations.Check(ctx, pool, sets...); err != nil {
		pool.Close()
		if errors.Is(err, migrations.ErrBehind) || errors.Is(err, migrations.ErrAhead) {
			return nil, config.Invalid(err)
		}
		return nil, postgres.Mask(err, dsn.Live())
	}
	return pool, nil
}
