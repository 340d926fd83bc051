package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/logs"
	"github.com/backendstart/walpost/internal/relay"
)

// demoCommand reads no file: it must work, and touch nothing, wherever it is typed.
type demoCommand struct {
	config.Ops
	LogLevel  slog.Level `env:"WALPOST_LOG_LEVEL" type:"loglevel" default:"warn" placeholder:"LEVEL" help:"Log this level and above: debug, info, warn or error."`
	APIListen string     `env:"WALPOST_API_LISTEN" type:"listen" default:"127.0.0.1:8080" placeholder:"ADDRESS" help:"Address of the API, on loopback; port 0 takes a free one."`
	PgPort    int        `default:"0" placeholder:"PORT" help:"Port of the private Postgres; 0 takes a free one."`
	Rate      float64    `default:"2" placeholder:"N" help:"Lessons to complete per second."`
	Traffic   bool       `default:"true" negatable:"" help:"Complete lessons all the time; --no-traffic leaves it to you."`
}

func (demoCommand) Help() string {
	return `Examples:

  walpost demo
  walpost demo --no-traffic

Needs Postgres server binaries on this machine, and nothing else. The server lives in a temporary folder and is removed when you press Ctrl-C. The API trusts the header X-User-ID.

Next: type the curl line that is printed, and watch four subscribers react.`
}

func (c demoCommand) Validate() error {
	var rate, port error
	if !(c.Rate > 0 && c.Rate <= 1000) {
		rate = errors.New("--rate: must be above 0 and at most 1000; --no-traffic completes nothing")
	}
	if c.PgPort < 0 || c.PgPort > 65535 {
		port = fmt.Errorf("--pg-port: %d is not a port", c.PgPort)
	}
	return config.Invalid(rate, port)
}

func (c demoCommand) Run(r *run) error {
	stdout := logs.NewWriter(r.Stdout, nil) // as with the log, a reader that stops must hold nothing up
	defer stdout.Flush(logs.LastLines)
	screen := newScreen(stdout, r.Stdout)
	lines := r.Stderr
	if screen.live {
		lines = screen // or a line of the log would end up inside the table
	}
	log := logs.NewService(lines, func(out io.Writer) slog.Handler {
		return slog.NewTextHandler(out, &slog.HandlerOptions{Level: c.LogLevel})
	})
	defer log.Flush()

	rate := c.Rate
	if !c.Traffic {
		rate = 0
	}
	started := false
	err := app.RunDemo(r.ctx, app.Demo{
		Ops: c.Ops, APIListen: c.APIListen, PgPort: c.PgPort, Rate: rate, Kinds: r.Subscribers, Log: log,
		Starting: func() { fmt.Fprintln(stdout, "Starting a private Postgres …") },
		Started: func(at app.DemoAddresses) {
			started = true
			fmt.Fprintf(stdout, demoText, at.API, at.Ops, at.DSN, at.API, at.API, at.DSN)
		},
		Show: func(ctx context.Context, relay *relay.Relay, registry prometheus.Gatherer) error {
			return (&table{relay: relay, registry: registry, screen: screen}).run(ctx)
		},
	})
	if started {
		fmt.Fprintln(stdout, "\nStopped; the private Postgres and everything in it is removed.")
	}
	return err
}

const demoText = `
walpost demo is running. All of it is private to this process and goes when you press Ctrl-C.

  API       %s/docs
  Metrics   %s/metrics, also /ready and /progress
  Postgres  psql '%s'

Complete a lesson:

  curl -X PUT %s/api/progress/lessons/1/complete -H 'X-User-ID: 42' -H 'Content-Type: application/json' -d '{"track_slug":"go-basics","lesson_slug":"channels"}'

and see what a subscriber made of it:

  curl -H 'X-User-ID: 42' %s/api/achievements

From another terminal, pause a subscriber and see what it is owed (resume pays it, in order):

  export WALPOST_DATABASE_URL='%s'
  bin/walpost subscribers pause analytics && bin/walpost status

`
