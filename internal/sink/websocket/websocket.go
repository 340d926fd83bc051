// Package websocket sends events to browsers and other clients that follow an aggregate: over WebSocket, and over
// server-sent events where a client has no library. It is a server with a listener of its own; only the hub of the relay that
// leads takes clients. An event is delivered when it stands in the queue of every client that follows its aggregate. It must
// never wait for a client: one that is slow is closed and comes again with its last revision. docs/destinations.md is the
// page for users.
//
//	websocket.go  the subscriber: the hub, who follows what
//	client.go     a client with its queue, and what it is sent
//	catchup.go    what a client missed, from the retained rows
//	serve.go      the listener, and the end of the lead
//	admit.go      who may follow what
//	socket.go     a client over WebSocket
//	stream.go     a client over server-sent events
package websocket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/bearer"
	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Options say who may follow and what the hub stands on.
type Options struct {
	*Config
	// Name is the subscriber's identity.
	Name   string
	Filter event.Filter
	// History reads what clients missed; nil where events leave no rows.
	History History
	// Leads tells whether the relay leads at this moment; nil is always.
	Leads    func() bool
	Envelope envelope.Writer
	Registry prometheus.Registerer // nil keeps the metrics nowhere
	Log      *slog.Logger
}

// Hub is a subscriber.BatchSubscriber. It delivers while Run serves, and says Away before and after.
type Hub struct {
	Options
	metrics  *metrics
	reading  chan struct{} // a place for each that reads rows
	asking   chan struct{} // a place for each question to Ask
	asker    *http.Client
	running  sync.WaitGroup // of clients
	verifier verifier

	mu      sync.Mutex
	serving bool               // guarded by mu
	leading bool               // guarded by mu
	clients int                // guarded by mu
	topics  map[string]*topic  // guarded by mu
	all     map[*client]*topic // guarded by mu
}

// topic is an aggregate that someone follows.
type topic struct {
	mu        sync.Mutex
	followers map[*client]struct{} // guarded by mu
}

// New makes the subscriber. It listens nowhere: that is Run's.
func New(o Options) (*Hub, error) {
	var problems []error
	o.Check(config.Subscriber{}, func(key string, err error) { problems = append(problems, fmt.Errorf("%s: %w", key, err)) })
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if o.Leads == nil {
		o.Leads = func() bool { return true }
	}
	return &Hub{
		Options: o, metrics: newMetrics(o.Registry, o.Name), asker: newAsker(),
		reading: make(chan struct{}, readers), asking: make(chan struct{}, askers),
		topics: make(map[string]*topic), all: make(map[*client]*topic),
	}, nil
}

// Name implements subscriber.Subscriber.
func (h *Hub) Name() string { return h.Options.Name }

// Wants implements subscriber.Subscriber: which events clients get is a matter of configuration.
func (h *Hub) Wants(string) bool { return true }

// takes tells whether an event that was read from its row would have been delivered.
func (h *Hub) takes(e *event.Event) bool { return h.Filter.Takes(e.Source, e.Type) }

// Handle implements subscriber.Subscriber.
func (h *Hub) Handle(ctx context.Context, d subscriber.Delivery) error {
	return subscriber.HandleOne(ctx, h, d)
}

// HandleBatch hands events over to the queues of the clients that follow their aggregates. It waits for none of them.
func (h *Hub) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h.mu.Lock()
	serving := h.serving
	h.mu.Unlock()
	if !serving {
		return subscriber.Away(errNotServing)
	}
	failed := make(map[int]error)
	held := make(map[string]bool)
	for i, d := range deliveries {
		if held[d.Key] {
			failed[i] = subscriber.ErrHeld
			continue
		}
		if err := h.deliver(d); err != nil {
			failed[i], held[d.Key] = subscriber.Permanent(err), true
		}
	}
	return subscriber.FailedOf(failed)
}

var errNotServing = errors.New("the hub is not listening")

// deliver is HandleBatch for one. Its error is permanent.
func (h *Hub) deliver(d subscriber.Delivery) error {
	aggregate := aggregateOf(d.Event)
	if _, err := revisionOf(d.Event); err != nil {
		return err
	}
	h.mu.Lock()
	followed := h.topics[aggregate]
	h.mu.Unlock()
	if followed == nil {
		return nil
	}
	m, err := newMessage(d.Event, h.Envelope.ID(d.Event))
	if err != nil {
		return err
	}
	followed.offer(m)
	return nil
}

// offer hands a message over to all that follow.
func (t *topic) offer(m *message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.followers {
		c.offer(m)
	}
}

func (t *topic) add(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.followers[c] = struct{}{}
}

// remove tells whether no one follows any more.
func (t *topic) remove(c *client) (empty bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.followers, c)
	return len(t.followers) == 0
}

// add lets a client follow its aggregate, unless the hub takes none.
func (h *Hub) add(c *client) *refusal {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.serving || !h.leading:
		return standby
	case h.clients >= h.Config.Clients:
		return full
	}
	followed := h.topics[c.aggregate]
	if followed == nil {
		followed = &topic{followers: make(map[*client]struct{})}
		h.topics[c.aggregate] = followed
	}
	followed.add(c)
	h.clients++
	h.all[c] = followed
	h.running.Add(1)
	h.metrics.clients.Inc()
	return nil
}

// remove is the end of a client that was added.
func (h *Hub) remove(c *client, why ending) {
	defer h.running.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	followed := h.all[c]
	if followed.remove(c) {
		delete(h.topics, c.aggregate)
	}
	delete(h.all, c)
	h.clients--
	h.metrics.clients.Dec()
	h.metrics.closed.WithLabelValues(why.label()).Inc()
}

// endAll ends every client that is connected.
func (h *Hub) endAll(why ending) {
	h.mu.Lock()
	clients := make([]*client, 0, len(h.all))
	for c := range h.all {
		clients = append(clients, c)
	}
	h.mu.Unlock()
	for _, c := range clients {
		c.end(why)
	}
}

// verifier holds what verifies tokens, once it is known: keys of a set may be away when the hub begins.
type verifier struct {
	mu    sync.Mutex
	known *bearer.Verifier // guarded by mu
}

func (v *verifier) get() *bearer.Verifier {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known
}

func (v *verifier) set(known *bearer.Verifier) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = known
}
