// Package relay is the corridor: it opens the rooms in order (publication, slot, stream), hands what
// package wal reads to package dispatch, records what package ack says is finished, and lets package wal
// confirm what is recorded. It holds no queue and knows no protocol. Who shows what it does is package
// ops; who builds and stops it is package app.
package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/wal"
)

// Options are what a relay is made of.
type Options struct {
	// Pool is for the relay's own statements; subscribers have another one, so that they cannot starve it.
	Pool *pgxpool.Pool
	// ReplicationURL is a direct connection string: a pooler cannot carry replication.
	ReplicationURL    string
	Slot, Publication string
	Sources           []*outbox.Source
	Subscriptions     []Subscription
	Window            ack.Window
	// Drain is how long a stop waits for what is in hand.
	Drain    time.Duration
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Subscription is a subscriber and what it gets.
type Subscription struct {
	Subscriber subscriber.Subscriber
	Lane       lane.Options
	// Wants says, beside the subscriber's own Wants, whether events of a source and type go to it; nil
	// means all.
	Wants func(source, eventType string) bool
}

// Relay delivers the events of one slot. Run may be called once; Health and Progress at any time.
type Relay struct {
	Options
	owed    *debt.Store
	wal     *wal.Metrics
	lanes   []*lane.Lane
	vectors *lane.Vectors
	// owedGauge counts what is owed
	owedGauge *prometheus.GaugeVec

	mu       sync.Mutex
	state    State        // guarded by mu
	problem  string       // why it does not stream; guarded by mu
	tracker  *ack.Tracker // nil before the first session; guarded by mu
	recorder *recorder    // the same
	moved    movement     // guarded by mu
}

// New makes a relay and registers its metrics.
func New(o Options) *Relay {
	r := &Relay{
		Options: o,
		owed:    debt.NewStore(o.Pool, o.Slot),
		wal:     wal.NewMetrics(o.Registry),
		vectors: lane.NewVectors(o.Registry),
		state:   Starting,
	}
	r.registerMetrics()
	return r
}

// Run streams until ctx ends and everything in hand is finished or the drain is over. It comes back from
// every loss of Postgres by itself; it returns an error when a person must act.
func (r *Relay) Run(ctx context.Context) error {
	err := r.run(ctx)
	r.setState(Stopped, err)
	return err
}

func (r *Relay) run(ctx context.Context) error {
	first, err := r.openUntilReady(ctx, r.open)
	if err != nil || first == nil {
		return err
	}
	// What ends the run for any reason ends it softly: what is in hand is finished and recorded.
	run, stop := context.WithCancelCause(ctx)
	parts := r.build(first)
	ended := parts.start(run, r, func(ctx context.Context) { r.watch(ctx, first, stop) })

	err = r.stream(run, first, parts)
	r.setState(Stopping, err)
	stop(nil)
	if setup := (*wal.SetupError)(nil); err == nil && errors.As(context.Cause(run), &setup) {
		err = setup
	}
	return errors.Join(err, <-ended)
}

// parts are the rooms between reception and confirmation. They outlive connections.
type parts struct {
	tracker  *ack.Tracker
	dispatch *dispatch.Dispatcher
	lanes    []*lane.Lane
	recorder *recorder
	drained  chan struct{} // closed when nothing will be confirmed any more
}

func (r *Relay) build(s *session) *parts {
	tracker := ack.New(r.Window, len(r.Subscriptions), s.start())
	p := &parts{tracker: tracker, drained: make(chan struct{})}
	routes := make([]dispatch.Route, len(r.Subscriptions))
	for i, sub := range r.Subscriptions {
		name := sub.Subscriber.Name()
		l := lane.New(sub.Subscriber, sub.Lane, tracker, r.owed, r.term, r.vectors.For(name), r.Log)
		p.lanes = append(p.lanes, l)
		routes[i] = dispatch.Route{Lane: l, Wants: func(source, eventType string) bool {
			return (sub.Wants == nil || sub.Wants(source, eventType)) &&
				// Nobody can say whether an event without a type is wanted; it ends as a dead letter.
				(eventType == "" || sub.Subscriber.Wants(eventType))
		}}
	}
	p.dispatch = dispatch.New(s.tables, r.messageSources(), routes, tracker, s.epoch, r.Registry, r.Log)
	p.recorder = newRecorder(r, tracker, s)
	r.mu.Lock()
	r.tracker, r.lanes, r.recorder = tracker, p.lanes, p.recorder
	r.mu.Unlock()
	return p
}

// start runs everything but the stream. When ctx ends, the lanes drain, then the recorder records for
// the last time, then drained is closed and the channel gets the first error.
func (p *parts) start(ctx context.Context, r *Relay, watch func(context.Context)) <-chan error {
	ended := make(chan error, 1)
	errs := make([]error, len(p.lanes))
	var lanes, others sync.WaitGroup
	for i, l := range p.lanes {
		lanes.Go(func() { errs[i] = l.Run(ctx, r.Drain) })
	}
	recording, recorded := context.WithCancel(context.WithoutCancel(ctx))
	others.Go(func() { p.recorder.run(recording) })
	others.Go(func() { watch(ctx) })
	others.Go(func() { r.clean(ctx, p.recorder) })
	go func() {
		lanes.Wait()
		recorded()
		others.Wait()
		close(p.drained)
		ended <- errors.Join(errs...)
	}()
	return ended
}

// stream reads the slot, and again after every loss of the connection, until ctx ends or a person must
// act.
func (r *Relay) stream(ctx context.Context, s *session, p *parts) error {
	if s.created != nil {
		if err := r.deliverWaitingRows(ctx, s, p); err != nil {
			s.conn.Close()
			return err
		}
	}
	for {
		r.setState(Streaming, nil)
		r.Log.Info("streaming", "slot", r.Slot, "publication", r.Publication, "confirmed", s.confirmed)
		err := s.conn.Stream(ctx, wal.StreamOptions{
			Slot: r.Slot, Publication: r.Publication, Confirmed: s.confirmed,
			Receiver: p.dispatch, Confirmer: p.tracker,
			Drained: p.drained, Alive: r.alive, Log: r.Log, Metrics: r.wal,
		})
		s.conn.Close()
		if ctx.Err() != nil {
			return r.whileStopping(err)
		}
		if err = final(err); err != nil {
			return err
		}
		if s, err = r.openUntilReady(ctx, r.reopener(s)); err != nil || s == nil {
			return err
		}
		p.dispatch.Connected(s.tables)
		p.recorder.use(s.tables)
		r.wal.Reconnects.Inc()
	}
}
