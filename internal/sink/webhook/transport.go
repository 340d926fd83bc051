package webhook

import (
	"net/http"
	"sync"
	"time"
)

// maxConnectionAge is how long new requests use the same connections. The receiver's name is asked for again after
// that: a connection that is kept busy would otherwise lead to an old address for ever.
const maxConnectionAge = time.Minute

// transport renews its connections. Requests in hand finish on the connection that they have.
type transport struct {
	open func() *http.Transport

	mu      sync.Mutex
	current *http.Transport // nil before the first request; guarded by mu
	old     *http.Transport // the one before; guarded by mu
	since   time.Time       // of current; guarded by mu
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	return t.renewed(time.Now()).RoundTrip(request)
}

// renewed returns the transport for a request that begins now.
func (t *transport) renewed(now time.Time) *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil || now.Sub(t.since) >= maxConnectionAge {
		t.closeIdleLocked(t.old) // what was still in hand when it was replaced
		t.old, t.current, t.since = t.current, t.open(), now
		t.closeIdleLocked(t.old)
	}
	return t.current
}

func (t *transport) closeIdleLocked(of *http.Transport) {
	if of != nil {
		of.CloseIdleConnections()
	}
}

// CloseIdleConnections closes the connections that no request uses.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeIdleLocked(t.old)
	t.closeIdleLocked(t.current)
}
