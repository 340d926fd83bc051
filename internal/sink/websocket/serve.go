package websocket

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/bearer"
	"github.com/backendstart/walpost/internal/httpserver"
)

const (
	// lookAtLead is how often it is looked whether the relay leads.
	lookAtLead = 100 * time.Millisecond
	// keysWait is how long after a failure the keys of tokens are read again.
	keysWait = 5 * time.Second
)

// limits are those of a request before it becomes a connection that lasts.
var limits = httpserver.Limits{Header: 5 * time.Second, Read: 5 * time.Second, Write: 15 * time.Second, Idle: 2 * time.Minute, Bytes: 16 << 10}

// Address is where Run must listen.
func (h *Hub) Address() string { return h.Listen }

// Run serves clients on listener, which it closes, until ctx ends and every client has been told. It can be called again
// when it has returned.
func (h *Hub) Run(ctx context.Context, listener net.Listener) error {
	if h.TLS != nil {
		listener = tls.NewListener(listener, h.TLS.Config())
	}
	// Connections outlive ctx by closeLimit: they are told why they end.
	lasting, cutOff := context.WithCancel(context.WithoutCancel(ctx))
	defer cutOff()
	watched, endWatch := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { h.watchLead(watched) })
	if h.JWT != nil {
		watching.Go(func() { h.readKeys(watched) })
	}
	h.setServing(true)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader", h.answerLeader)
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) { h.follow(lasting, w, r) })
	server := httpserver.Server{
		Handler: mux, Limits: limits, Drain: closeLimit, Log: h.Log,
		OnStop: func() {
			h.setServing(false)
			h.endAll(leadEnded)
		},
	}
	err := server.Run(ctx, listener)
	h.setServing(false)
	h.endAll(leadEnded)
	h.awaitClients(cutOff)
	endWatch()
	watching.Wait()
	h.asker.CloseIdleConnections()
	if errors.Is(err, httpserver.ErrCutOff) {
		return nil // a client that did not listen to why it ends
	}
	return err
}

// awaitClients waits until all have ended; those that take longer than closeLimit are cut off.
func (h *Hub) awaitClients(cutOff func()) {
	timer := time.AfterFunc(closeLimit, cutOff)
	defer timer.Stop()
	h.running.Wait()
}

func (h *Hub) setServing(serving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serving = serving
	h.leading = serving && h.Leads()
}

// watchLead ends all clients when the lead ends.
func (h *Hub) watchLead(ctx context.Context) {
	tick := time.NewTicker(lookAtLead)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		leads := h.Leads()
		h.mu.Lock()
		lost := h.leading && !leads
		h.leading = leads && h.serving
		h.mu.Unlock()
		if lost {
			h.Log.Info("the lead has ended; clients are sent away", "subscriber", h.Options.Name)
			h.endAll(leadEnded)
		}
	}
}

// readKeys makes the verifier of tokens. That a provider is away is no reason not to start.
func (h *Hub) readKeys(ctx context.Context) {
	options := h.bearerOptions()
	options.Log = h.Log
	for {
		known, err := bearer.New(ctx, options)
		if err == nil {
			h.verifier.set(known)
			return
		}
		if ctx.Err() == nil {
			h.Log.Warn("the keys of tokens cannot be read; no one can follow with a token until they are", "err", err)
		}
		select {
		case <-time.After(keysWait):
		case <-ctx.Done():
			return
		}
	}
}

func (h *Hub) leads() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leading
}

// answerLeader is for load balancers: 200 at the leader alone.
func (h *Hub) answerLeader(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	status := http.StatusOK
	if !h.leads() {
		status = http.StatusServiceUnavailable
	}
	httpserver.WriteJSON(w, status, map[string]bool{"leader": status == http.StatusOK})
}

// follow admits a client and serves it until it has ended.
func (h *Hub) follow(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Vary", "Origin")
	if !h.leads() {
		h.refuse(w, standby)
		return
	}
	asked, refused := h.admit(r)
	if refused != nil {
		h.refuse(w, refused)
		return
	}
	if origin := r.Header.Get("Origin"); origin != "" { // knowsOrigin has looked at it
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Allow-Credentials", "true")
	}
	c := &client{hub: h, aggregate: asked.aggregate, revision: asked.revision, expires: asked.expires, wake: make(chan struct{}, 1)}
	// So that nothing is missed between the rows and what is live it follows before anything is sent. What does not fit into
	// its queue before then is read from the rows.
	c.catching = asked.revision >= 0
	if refused := h.add(c); refused != nil {
		h.refuse(w, refused)
		return
	}
	why := left
	defer func() { h.remove(c, why) }()
	var err error
	if r.Header.Get("Upgrade") != "" {
		c.connection, err = h.openSocket(ctx, w, r)
	} else {
		c.connection, err = h.openStream(ctx, w, r)
	}
	if err != nil {
		h.Log.Debug("a client cannot be served", "err", err)
		return
	}
	why = c.run(ctx)
	c.connection.close(why)
}

func (h *Hub) refuse(w http.ResponseWriter, why *refusal) {
	h.metrics.refused.WithLabelValues(why.reason).Inc()
	switch why.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	httpserver.WriteProblem(w, why.status, map[string]any{"title": http.StatusText(why.status), "status": why.status, "detail": why.detail})
}
