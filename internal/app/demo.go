package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/logs"
	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/migrations"
)

// demoCommand reads no file: it must work, and touch nothing, wherever it is typed.
type demoCommand struct {
	config.Ops
	LogLevel  slog.Level `env:"WALPOST_LOG_LEVEL" type:"loglevel" default:"warn" placeholder:"LEVEL" help:"Least level that is logged: debug, info, warn or error."`
	APIListen string     `env:"WALPOST_API_LISTEN" type:"listen" default:"127.0.0.1:8080" placeholder:"ADDRESS" help:"Address of the API, on loopback; port 0 takes a free one."`
	PgPort    int        `default:"0" placeholder:"PORT" help:"Port of the private Postgres; 0 takes a free one."`
	Rate      float64    `default:"2" placeholder:"N" help:"Lessons that are completed per second."`
	Traffic   bool       `default:"true" negatable:"" help:"Complete lessons all the time; --no-traffic leaves it to you."`
}

func (demoCommand) Help() string {
	return "Needs Postgres server binaries on this machine, and nothing else: the server is private, lives in a temporary folder, " +
		"and is removed when you press Ctrl-C. The API trusts the header X-User-ID. " +
		"Next: type the curl line that is printed, and watch four subscribers react."
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

func (c demoCommand) Run(r *run) (err error) {
	apiListener, err := listen(r.ctx, "api-listen", c.APIListen)
	if err != nil {
		return err
	}
	defer apiListener.Close()
	opsListener, err := listenOps(r.ctx, c.OpsListen)
	if err != nil {
		return err
	}
	defer opsListener.Close()

	live := isTerminal(r.Stdout)
	stdout := logs.NewWriter(r.Stdout, nil) // as with the log, its reader must not hold anything up
	defer stdout.Flush(lastLines)
	r.Stdout = stdout
	screen := newScreen(stdout, live)
	lines := r.Stderr
	if screen.live {
		lines = screen // or a line of the log would end up inside the table
	}
	log := newServiceLog(lines, func(out io.Writer) slog.Handler {
		return slog.NewTextHandler(out, &slog.HandlerOptions{Level: c.LogLevel})
	})
	defer log.flush()

	fmt.Fprintln(r.Stdout, "Starting a private Postgres …")
	server, err := pgserver.Start(r.ctx, pgserver.Options{Port: c.PgPort, Settings: demoSettings, Log: log.Logger})
	if err != nil {
		if r.ctx.Err() != nil {
			return nil // Ctrl-C while it started; nothing is left
		}
		if errors.Is(err, pgserver.ErrPortTaken) {
			return config.Invalid(fmt.Errorf("%w: choose another one with --pg-port (0 takes a free one)", err))
		}
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 15*time.Second)
		defer cancel()
		err = errors.Join(err, server.Stop(stop))
	}()
	err = c.serve(r, server.DSN("postgres"), apiListener, opsListener, screen, log)
	return unlessStopped(r.ctx, err)
}

// demoSettings trade what happens when the machine loses power for a quick start; the rest is what walpost
// doctor advises.
var demoSettings = map[string]string{
	"fsync": "off", "max_wal_size": "128MB", "max_slot_wal_keep_size": "10GB", "track_commit_timestamp": "on",
}

// serve runs everything on the server until the program is told to stop.
func (c demoCommand) serve(r *run, dsn string, apiListener, opsListener net.Listener, screen *screen, log serviceLog) error {
	if err := migrations.Up(r.ctx, dsn, log.Logger, setsOf(config.Lessons())...); err != nil {
		return err
	}
	options := config.DefaultRelay(dsn)
	built, err := newRelay(r.ctx, options, config.Mail{}, r.Subscribers, log)
	if err != nil {
		return err
	}
	defer built.close()
	pool, err := openDatabase(r.ctx, options.DatabaseURL, "walpost/api", migrations.Lessons)
	if err != nil {
		return err
	}
	defer closePools(pool)
	auth, err := newAuth(r.ctx, config.API{APIListen: c.APIListen, Auth: "dev"}, built.registry, log.Logger)
	if err != nil {
		return err
	}
	api := newAPI(auth, pool, built.registry, log.Logger)
	ops := built.ops(c.Ops, log.Logger)
	base := localURL(apiListener)
	fmt.Fprintf(r.Stdout, demoText, base, localURL(opsListener), dsn, base, base, dsn)

	parts := []part{
		{"api", func(ctx context.Context) error { return api.Run(ctx, apiListener) }},
		{"relay", built.relay.Run},
		{"doctor", built.doctor.Run},
		{"ops", func(ctx context.Context) error { return ops.Run(ctx, opsListener) }},
		{"table", (&table{relay: built.relay, registry: built.registry, screen: screen}).run},
	}
	if c.Traffic {
		parts = append([]part{{"traffic", traffic{base, c.Rate, log.Logger}.run}}, parts...)
	}
	err = runParts(r.ctx, drainAPI+stopLimit(options), parts...)
	fmt.Fprintln(r.Stdout, "\nStopped; the private Postgres and everything in it is removed.")
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
