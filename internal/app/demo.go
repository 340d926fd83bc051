package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/logs"
	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/migrations"
)

// Demo is the whole program in one process: a private Postgres, API, relay and traffic.
type Demo struct {
	Ops       config.Ops
	APIListen string
	PgPort    int     // 0 takes a free one
	Rate      float64 // lessons completed per second; 0 completes none
	Kinds     Kinds
	Log       logs.Service

	// Starting is called when the addresses are taken and the private Postgres starts, Started when all of it runs.
	Starting func()
	Started  func(DemoAddresses)
	// Show runs as long as the parts do, and shows how they get on.
	Show func(context.Context, *relay.Relay, prometheus.Gatherer) error
}

// DemoAddresses are where the parts of a demo are reached.
type DemoAddresses struct{ API, Ops, DSN string }

// RunDemo runs until ctx ends, and leaves nothing behind.
func RunDemo(ctx context.Context, d Demo) (err error) {
	apiListener, err := listen(ctx, "api-listen", d.APIListen)
	if err != nil {
		return err
	}
	defer apiListener.Close()
	opsListener, err := listenOps(ctx, d.Ops.OpsListen)
	if err != nil {
		return err
	}
	defer opsListener.Close()

	d.Starting()
	server, err := pgserver.Start(ctx, pgserver.Options{Port: d.PgPort, Settings: demoSettings, Log: d.Log.Logger})
	if err != nil {
		if ctx.Err() != nil {
			return nil // Ctrl-C while it started; nothing is left
		}
		if errors.Is(err, pgserver.ErrPortTaken) {
			return config.Invalid(fmt.Errorf("%w: choose another one with --pg-port (0 takes a free one)", err))
		}
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		err = errors.Join(err, server.Stop(stop))
	}()
	return UnlessStopped(ctx, d.serve(ctx, server.DSN("postgres"), apiListener, opsListener))
}

// demoSettings trade what happens when the machine loses power for a quick start; the rest is what walpost
// doctor advises.
var demoSettings = map[string]string{
	"fsync": "off", "max_wal_size": "128MB", "max_slot_wal_keep_size": "10GB", "track_commit_timestamp": "on",
}

// serve runs everything on the server until ctx ends.
func (d Demo) serve(ctx context.Context, dsn string, apiListener, opsListener net.Listener) error {
	log := d.Log.Logger
	if err := migrations.Up(ctx, dsn, log, MigrationsOf(config.Lessons())...); err != nil {
		return err
	}
	options := config.DefaultRelay(dsn)
	built, err := newRelay(ctx, options, config.Mail{}, d.Kinds, addressOf(opsListener, ""), d.Log)
	if err != nil {
		return err
	}
	defer built.close()
	pool, err := OpenDatabase(ctx, options.DatabaseURL, "walpost/api", migrations.Lessons)
	if err != nil {
		return err
	}
	defer closePools(pool)
	auth, err := newAuth(ctx, config.API{APIListen: d.APIListen, Auth: "dev"}, built.registry, log)
	if err != nil {
		return err
	}
	api := newAPI(auth, pool, built.registry, log)
	ops := built.ops(d.Ops, log)
	base := localURL(apiListener)
	d.Started(DemoAddresses{API: base, Ops: localURL(opsListener), DSN: dsn})

	parts := []part{
		{"api", func(ctx context.Context) error { return api.Run(ctx, apiListener) }},
		{"relay", built.relay.Run},
		{"doctor", built.doctor.Run},
		{"ops", func(ctx context.Context) error { return ops.Run(ctx, opsListener) }},
		{"table", func(ctx context.Context) error { return d.Show(ctx, built.relay, built.registry) }},
	}
	if d.Rate > 0 {
		parts = append([]part{{"traffic", traffic{base, d.Rate, log}.run}}, parts...)
	}
	return runParts(ctx, drainAPI+stopLimit(options), parts...)
}
