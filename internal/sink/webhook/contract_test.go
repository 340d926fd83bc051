package webhook_test

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/sink/sinktest"
	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

// endpoint is a receiver that stops and starts on one port.
type endpoint struct {
	address string
	server  *http.Server // nil while it is down

	mu       sync.Mutex
	arrived  []sinktest.Received // guarded by mu
	refused  []string            // guarded by mu
	locked   bool                // guarded by mu
	stalled  chan struct{}       // closed when it answers again; guarded by mu
	maxBytes int
}

func newEndpoint(t *testing.T) *endpoint {
	e := &endpoint{address: "127.0.0.1:0", maxBytes: 1 << 20}
	e.Up(t)
	t.Cleanup(func() { e.Down(t) })
	return e
}

func (e *endpoint) Up(t *testing.T) {
	listener, err := net.Listen("tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	e.address = listener.Addr().String()
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	server := e.server
	go func() { _ = server.Serve(listener) }()
}

func (e *endpoint) Down(*testing.T) {
	if e.server != nil {
		_ = e.server.Close()
	}
	e.server = nil
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(e.maxBytes)+1))
	if err != nil {
		return
	}
	e.mu.Lock()
	stalled := e.stalled
	e.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-r.Context().Done():
			return
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	id := r.Header.Get("Webhook-Id")
	switch {
	case e.locked:
		w.WriteHeader(http.StatusUnauthorized)
	case len(body) > e.maxBytes:
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	case slices.Contains(e.refused, id):
		w.WriteHeader(http.StatusUnprocessableEntity)
	default:
		e.arrived = append(e.arrived, sinktest.Received{ID: id, Key: keyOf(r), Body: body})
	}
}

// keyOf undoes what webhook does to a key so that it can be a header.
func keyOf(r *http.Request) string {
	var key []byte
	text := r.Header.Get("Walpost-Key")
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if b, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				key = append(key, byte(b))
				i += 2
				continue
			}
		}
		key = append(key, text[i])
	}
	return string(key)
}

func (e *endpoint) Open(t *testing.T) subscriber.Subscriber {
	sub, err := webhook.New(options("http://" + e.address))
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func (e *endpoint) Received(*testing.T) []sinktest.Received {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.arrived)
}

func (e *endpoint) Refuse(_ *testing.T, ids ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = ids
}

func (e *endpoint) Limit(*testing.T) int { return e.maxBytes }
func (e *endpoint) Lock(*testing.T)      { e.lock(true) }
func (e *endpoint) Unlock(*testing.T)    { e.lock(false) }

func (e *endpoint) lock(locked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.locked = locked
}

func (e *endpoint) Stall(*testing.T) func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stalled = make(chan struct{})
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		close(e.stalled)
		e.stalled = nil
	}
}

// F-46, F-49
func TestWebhook_keepsTheContract(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Destination { return newEndpoint(t) })
}

func TestProbe_looksWhetherTheReceiverListensAndSendsNothing(t *testing.T) {
	e := newEndpoint(t)
	sub := e.Open(t)
	prober, ok := sub.(subscriber.Prober)
	if !ok {
		t.Fatal("a webhook cannot be probed")
	}
	if err := prober.Probe(t.Context()); err != nil {
		t.Errorf("a receiver that listens: %v", err)
	}
	e.Down(t)
	if err := prober.Probe(t.Context()); err == nil {
		t.Error("a receiver that is away is found")
	}
	if got := e.Received(t); len(got) != 0 {
		t.Errorf("the probe has sent %v", got)
	}
	o := options("http://" + e.address)
	o.AllowPrivate = false
	if private, err := webhook.New(o); err == nil {
		if err := private.(subscriber.Prober).Probe(t.Context()); err == nil {
			t.Error("the probe reaches an address that is not allowed")
		}
	}
}
