package websocket

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/backendstart/walpost/internal/sink/sinktest"
	"github.com/backendstart/walpost/internal/subscriber"
)

// A hub with clients that follow every aggregate is a destination as any other.
func TestHub_keepsTheContract(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Destination { return &clients{} })
}

// clients are all that follow the hubs of a test, as one receiver.
type clients struct {
	hubs []*followed

	mu  sync.Mutex
	got []sinktest.Received // guarded by mu
}

// followed is a hub that gets a client for each aggregate before its first event. What it reports as delivered has
// reached that client.
type followed struct {
	*rig
	clients *clients

	mu        sync.Mutex
	following map[string]*websocket.Conn
}

func (c *clients) Open(t *testing.T) subscriber.Subscriber {
	f := &followed{rig: newRig(t, func(o *Options) { o.Log = slog.New(slog.DiscardHandler) }), clients: c, following: map[string]*websocket.Conn{}}
	c.hubs = append(c.hubs, f)
	return f
}

func (c *clients) Received(*testing.T) []sinktest.Received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]sinktest.Received(nil), c.got...)
}

func (c *clients) Down(*testing.T) {
	for _, f := range c.hubs {
		f.Close()
	}
}

func (c *clients) Up(*testing.T) {
	for _, f := range c.hubs {
		f.start(f.address)
	}
}

func (f *followed) Name() string      { return f.hub.Name() }
func (f *followed) Wants(string) bool { return true }

func (f *followed) Close() error {
	f.stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for aggregate, conn := range f.following {
		_ = conn.CloseNow()
		delete(f.following, aggregate)
	}
	http.DefaultClient.CloseIdleConnections()
	return nil
}

func (f *followed) Handle(ctx context.Context, d subscriber.Delivery) error {
	return f.HandleBatch(ctx, []subscriber.Delivery{d})
}

func (f *followed) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	for _, d := range deliveries {
		f.follow(d.Key)
	}
	before := len(f.clients.Received(f.t))
	err := f.hub.HandleBatch(ctx, deliveries)
	if err == nil {
		eventually(f.t, "the clients to have it", func() bool { return len(f.clients.Received(f.t)) >= before+len(deliveries) })
	}
	return err
}

func (f *followed) follow(aggregate string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.following[aggregate] != nil {
		return
	}
	conn, _, err := websocket.Dial(context.Background(), "ws://"+f.address+"/events?aggregate="+url.QueryEscape(aggregate), nil) //nolint:bodyclose // the library owns it
	if err != nil {
		return // it is down
	}
	f.following[aggregate] = conn
	go func() {
		for {
			_, text, err := conn.Read(context.Background())
			if err != nil {
				return
			}
			f.clients.noteText(f.t, aggregate, text)
		}
	}()
}

func (c *clients) noteText(t *testing.T, key string, text []byte) {
	var m struct {
		ID            string
		Payload       json.RawMessage
		PayloadText   *string `json:"payload_text"`
		PayloadBase64 *string `json:"payload_base64"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	body := []byte(m.Payload)
	switch {
	case m.PayloadText != nil:
		body = []byte(*m.PayloadText)
	case m.PayloadBase64 != nil:
		body, _ = base64.StdEncoding.DecodeString(*m.PayloadBase64)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, sinktest.Received{ID: m.ID, Key: key, Body: body})
}
