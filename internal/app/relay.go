package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/eventschema"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/lease"
	"github.com/backendstart/walpost/internal/logs"
	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/ops"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/tracing"
)

// RunRelay delivers until ctx ends and what is held is finished.
func RunRelay(ctx context.Context, options config.Relay, mail config.Mail, window config.Ops, kinds Kinds, log logs.Service) error {
	listener, err := listenOps(ctx, window.OpsListen)
	if err != nil {
		return err
	}
	defer listener.Close()
	built, err := newRelay(ctx, options, mail, kinds, addressOf(listener, window.OpsAddress), log)
	if err != nil {
		return UnlessStopped(ctx, err)
	}
	defer built.close()
	servers, closeServers, err := serverParts(ctx, built.subscribers)
	if err != nil {
		return UnlessStopped(ctx, err)
	}
	defer closeServers()
	limitMemory(options)
	log.Info("relay starts", "ops", localURL(listener), "slot", options.Slot, "database", postgres.Redact(options.DatabaseURL.Live()))
	server := built.ops(window, log.Logger)
	parts := append([]part{{"relay", built.relay.Run}, {"doctor", built.doctor.Run}}, servers...)
	return runParts(ctx, stopLimit(options), append(parts,
		part{"ops", func(ctx context.Context) error { return server.Run(ctx, listener) }})...)
}

// stopLimit is how long the parts of a relay may take to stop. What is left of relay.Leave is for what the end of
// the program still waits for, its sessions and its last lines, and for a machine that is busy.
func stopLimit(options config.Relay) time.Duration {
	const busy = 300 * time.Millisecond
	return options.Drain.Std() + relay.Leave - closeLimit - 2*logs.LastLines - busy
}

// limitMemory lets the garbage collector work harder rather than let the heap grow beyond what a full window
// takes: everything else that the relay holds is small or short-lived. Below that it may leave more garbage
// than by itself: a busy relay makes garbage as fast as the stream flows, and a third of its processor time
// went into collecting it. GOMEMLIMIT and GOGC override both. (package runtime, "Environment Variables")
func limitMemory(options config.Relay) {
	const (
		program  = 20 << 20
		perEvent = 2 << 10 // of an open one, without its bytes
		garbage  = 300     // percent of what is in use
	)
	if os.Getenv("GOMEMLIMIT") == "" {
		limit := program + perEvent*int64(options.WindowEvents) + int64(options.WindowBytes)
		for _, s := range options.Subscribers {
			if kind, ok := s.Options.(interface{ Memory() int64 }); ok {
				limit += kind.Memory() // of its clients
			}
		}
		debug.SetMemoryLimit(limit)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}

// builtRelay is a relay with what it stands on.
type builtRelay struct {
	subscribers []subscriber.Subscriber
	relay       *relay.Relay
	admin       *admin.Service
	doctor      *doctor.Watcher
	sources     func(context.Context) ([]doctor.SourceReport, error)
	registry    *prometheus.Registry
	tracer      *tracing.Tracer // nil: off
	pools       []*postgres.Pool
}

// newRelay connects to the database and builds everything up to the relay; close ends the connections. address is where
// others reach its ops API.
func newRelay(ctx context.Context, options config.Relay, mail config.Mail, kinds Kinds, address string, log logs.Service) (*builtRelay, error) {
	b := &builtRelay{registry: prometheus.NewRegistry()}
	b.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	log.Register(b.registry)
	// Three pools: a subscriber that holds all its connections, or a person who counts a large debt, must
	// not keep the relay from recording. They carry the name of the process, by which a successor ends them
	// when it is frozen.
	held := lease.New(lease.Options{URL: options.Stream().Live(), Option: options.StreamOption(), Slot: options.Slot, Address: address, Log: log.Logger})
	for range 3 {
		pool, err := OpenDatabase(ctx, options.DatabaseURL, held.Application(), MigrationsOf(options.Flow)...)
		if err != nil {
			b.close()
			return nil, err
		}
		b.pools = append(b.pools, pool)
	}
	if has := b.pools[0].Size(); has < relay.Sessions {
		b.close()
		return nil, config.Invalid(fmt.Errorf("database_url: pool_max_conns is %d, and a first start or a repair holds %d sessions at a time: "+
			"set it to %d or more, or leave it out", has, relay.Sessions, relay.Sessions))
	}
	sources, err := withSchemas(SourcesOf(options.Flow), options.Flow)
	if err != nil {
		b.close()
		return nil, err
	}
	subscribers, err := kinds.build(options.Flow, Resources{Pool: b.pools[1], Slot: options.Slot, Log: log.Logger, Mail: mail,
		Registry: b.registry, Leads: func() bool { return b.relay.Leads() }})
	b.subscribers = subscribers
	if err != nil {
		b.close()
		return nil, err
	}
	b.tracer, err = tracing.FromEnvironment(ctx, tracing.Options{Version: Version(), Slot: options.Slot, Log: log.Logger})
	if err != nil {
		b.close()
		return nil, config.Invalid(err)
	}
	b.sources = func(ctx context.Context) ([]doctor.SourceReport, error) {
		return doctor.Sources(ctx, DoctorOptions(options))
	}
	b.doctor = doctor.NewWatcher(DoctorOptions(options), b.registry, log.Logger)
	b.admin = NewAdmin(b.pools[2], options.Slot, options.Flow)
	secrets := SecretsOf(options, mail)
	subscriptions := make([]relay.Subscription, len(subscribers))
	for i, sub := range subscribers {
		settings := options.Subscribers[i]
		lane := laneOptions(settings)
		lane.Mask = secrets.Error
		subscriptions[i] = relay.Subscription{Subscriber: sub, Lane: lane, Filter: settings.Filter(),
			FromBeginning: settings.From == "beginning", RenamedFrom: settings.RenamedFrom}
	}
	if options.Single {
		held = nil
	}
	b.relay = relay.New(relay.Options{
		Lease:          held,
		Pool:           b.pools[0],
		ReplicationURL: options.Stream().Live(), ReplicationOption: options.StreamOption(),
		Slot:           options.Slot,
		Publication:    options.Publication,
		Sources:        sources,
		Subscriptions:  subscriptions,
		Window:         ack.Window{Events: options.WindowEvents, Bytes: int64(options.WindowBytes)},
		MaxEvent:       int(options.MaxEvent),
		WALBudget:      int64(options.WALBudget),
		StopOnLostSlot: options.OnLostSlot == "stop",
		Drain:          options.Drain.Std(),
		Registry:       b.registry,
		Tracer:         b.tracer,
		Log:            log.Logger,
	})
	return b, nil
}

// SecretsOf is a mask of all that the relay sends as a secret.
func SecretsOf(options config.Relay, mail config.Mail) *mask.Mask {
	secrets := postgres.Passwords(options.DatabaseURL.Live(), options.Stream().Live())
	if smtp, err := url.Parse(mail.SMTPURL.Reveal()); err == nil && smtp.User != nil {
		password, _ := smtp.User.Password()
		secrets = append(secrets, password)
	}
	for _, s := range options.Subscribers {
		if s.Options != nil {
			secrets = append(secrets, s.Options.SecretTexts()...)
		}
	}
	return mask.New(secrets...)
}

// close ends what was opened, when no lane calls a subscriber any more.
func (b *builtRelay) close() {
	for _, sub := range b.subscribers {
		if closer, ok := sub.(io.Closer); ok {
			_ = closer.Close() // what it has taken is reported already
		}
	}
	var closing sync.WaitGroup
	closing.Go(func() { closePools(b.pools...) })
	last, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	b.tracer.Close(last)
	closing.Wait()
}

func (b *builtRelay) ops(window config.Ops, log *slog.Logger) *ops.Server {
	return ops.New(ops.Options{
		Listen: window.OpsListen, Token: window.OpsToken.Live(),
		Registry: b.registry, Relay: b.relay, Admin: b.admin, Log: log, Version: Version(),
		Doctor: b.doctor.Last, Sources: b.sources,
	})
}

// defaultBatch is how many events a call of HandleBatch gets where the configuration does not say: a
// statement of that size still takes milliseconds.
const defaultBatch = 500

func laneOptions(s config.Subscriber) lane.Options {
	batch := int(s.Batch)
	if batch == 0 {
		batch = defaultBatch // the lane knows whether there is a HandleBatch
	}
	return lane.Options{
		Ordering:    lane.Ordering(s.Ordering),
		Concurrency: int(s.Concurrency),
		Batch:       batch,
		Timeout:     s.Timeout.Std(),
		Backoff:     lane.Backoff{Initial: s.Retry.Initial.Std(), Max: s.Retry.Max.Std()},
		MaxAttempts: int(s.MaxAttempts),
		StallAfter:  s.StallAfter.Std(),
		Standstill:  s.Standstill.Std(),
		InFlight:    int(s.InFlight),
		BlockKey:    s.AfterDeadLetter == "block_key",
		GiveUpAfter: s.GiveUpAfter.Std(),
	}
}

// SourcesOf returns the sources of a flow, as package outbox describes them.
func SourcesOf(flow config.Flow) []*outbox.Source {
	sources := make([]*outbox.Source, len(flow.Sources))
	for i, s := range flow.Sources {
		schema, table, _ := config.SplitTable(s.Table)
		c := func(role string) string { return s.Columns[role].One() }
		sources[i] = &outbox.Source{
			Name: s.Name, Schema: schema, Table: table, Messages: s.Messages,
			Columns: outbox.Columns{
				ID: c("id"), Type: c("type"), Version: c("version"),
				AggregateType: c("aggregate_type"), AggregateID: c("aggregate_id"), Key: c("key"),
				Topic: c("topic"), Revision: c("revision"), Payload: c("payload"), Headers: c("headers"),
				Time: c("time"), Order: s.Columns["order"], Published: c("published"),
			},
			Headers: s.Headers,
			Mark:    s.Mark == "auto", RepairAll: s.Repair == "all", Ours: s.Rows == "ours", Deleted: s.Rows == "deleted", Retention: s.Retention.Std(),
			SchemaFile: s.Schema, TimeZone: s.TimeZone,
		}
	}
	return sources
}

// withSchemas compiles the schemas of a flow's sources.
func withSchemas(sources []*outbox.Source, flow config.Flow) ([]*outbox.Source, error) {
	for i, s := range flow.Sources {
		if s.Schema == "" {
			continue
		}
		schema, err := eventschema.Read(s.Schema)
		if err != nil {
			return nil, config.Invalid(fmt.Errorf("source %q: schema: %w", s.Name, err))
		}
		sources[i].JSONSchema = schema
	}
	return sources, nil
}

// NewAdmin returns what operators may see and change of a slot.
func NewAdmin(pool *postgres.Pool, slot string, flow config.Flow) *admin.Service {
	var names []string
	for _, s := range flow.Subscribers {
		names = append(names, s.Name)
	}
	return admin.New(pool, slot, SourcesOf(flow), names).Filtering(func(subscriber, source, eventType string) bool {
		at := slices.IndexFunc(flow.Subscribers, func(s config.Subscriber) bool { return s.Name == subscriber })
		return at < 0 || flow.Subscribers[at].Takes(source, eventType)
	})
}
