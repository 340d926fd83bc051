package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/sink/websocket"
	"github.com/backendstart/walpost/internal/subscriber"
)

// A server is a subscriber that clients connect to. It has ended when Run returns.
type server interface {
	subscriber.Subscriber
	Address() string
	Run(ctx context.Context, listener net.Listener) error
}

// hub makes the options of a hub.
func (r Resources) hub(c *websocket.Config) websocket.Options {
	o := websocket.Options{
		Config: c, Name: r.Config.Name, Filter: r.Config.Filter(), Leads: r.Leads, Envelope: r.envelope(), Registry: r.Registry, Log: r.Log,
	}
	if r.Pool != nil && r.Source != nil && r.Source.Messages == "" {
		o.History = &history{pool: r.Pool, source: r.Source}
	}
	return o
}

// serverParts listens for every subscriber that clients connect to, before anything is started.
func serverParts(ctx context.Context, subscribers []subscriber.Subscriber) (parts []part, closeAll func(), err error) {
	var listeners []net.Listener
	closeAll = func() {
		for _, l := range listeners {
			_ = l.Close() // it may be closed already
		}
	}
	for _, sub := range subscribers {
		s, ok := sub.(server)
		if !ok {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Address())
		if err != nil {
			closeAll()
			return nil, nil, config.Invalid(fmt.Errorf("subscriber %q: listen: %w", s.Name(), err))
		}
		listeners = append(listeners, listener)
		parts = append(parts, part{s.Name(), func(ctx context.Context) error { return s.Run(ctx, listener) }})
	}
	return parts, closeAll, nil
}

// history reads the rows of a source for clients that have missed some.
type history struct {
	pool   *postgres.Pool
	source *outbox.Source

	mu    sync.Mutex
	table *outbox.Table // nil until it is known; guarded by mu
}

// Revisions implements websocket.History.
func (h *history) Revisions(ctx context.Context, aggregate string, after int64, limit, bytes int) (events []*event.Event, kept, more bool, err error) {
	table := h.known()
	var found outbox.Revisions
	err = postgres.InTx(ctx, h.pool, func(tx pgx.Tx) (err error) {
		if table == nil {
			if table, err = h.source.Inspect(ctx, tx); err != nil {
				return err
			}
		}
		found, err = table.Revisions(ctx, tx, aggregate, after, limit, bytes)
		return err
	})
	if errors.Is(err, outbox.ErrNoAggregate) {
		err = fmt.Errorf("%w: %w", websocket.ErrNoAggregate, err)
	} else if err != nil {
		table = nil // it may have been altered
	}
	h.remember(table)
	return found.Events, found.Kept, found.More, err
}

func (h *history) known() *outbox.Table {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.table
}

func (h *history) remember(table *outbox.Table) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.table = table
}
