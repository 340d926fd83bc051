package examples

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/coder/websocket"
)

// hub is where clients follow, with the token that they need.
type hub struct{ address, token string }

// newHub chooses where the relay's hub will listen, and says so in the environment. origin is that of a page.
func newHub(r *runner, origin string) *hub {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	h := &hub{address: listener.Addr().String(), token: rand.Text()}
	_ = listener.Close() // for the relay
	r.env = append(r.env, "GAME_LISTEN="+h.address, "GAME_TOKEN="+h.token, "GAME_ORIGIN="+origin)
	return h
}

// follower follows one aggregate, is cut off in the middle, and comes back with the last revision that it has.
type follower struct {
	aggregate string
	until     int64
	comeBack  chan struct{}
	ended     chan error
	got       []string // lines for people; read it when it has ended
}

func (h *hub) follow(r *runner, aggregate string, until int64) *follower {
	f := &follower{aggregate: aggregate, until: until, comeBack: make(chan struct{}), ended: make(chan error, 1)}
	var conn *websocket.Conn
	r.await("the hub takes a client", func() (so bool) { // a moment after its relay has begun to stream
		var err error
		conn, err = h.connect(r.ctx, aggregate, 0)
		return err == nil
	})
	go func() { f.ended <- f.run(r.ctx, h, conn) }()
	return f
}

func (h *hub) connect(ctx context.Context, aggregate string, last int64) (*websocket.Conn, error) {
	conn, _, err := websocket.Dial(ctx, fmt.Sprintf("ws://%s/events?aggregate=%s&last=%d", h.address, url.QueryEscape(aggregate), last), //nolint:bodyclose // the library owns it
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + h.token}}})
	return conn, err
}

func (f *follower) run(ctx context.Context, h *hub, conn *websocket.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	middle := f.until / 2
	if err := f.read(ctx, conn, 0, middle); err != nil {
		return err
	}
	_ = conn.CloseNow()
	select {
	case <-f.comeBack:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f.got = append(f.got, fmt.Sprintf("%s is cut off, events go on, it comes back with revision %d", f.aggregate, middle))
	conn, err := h.connect(ctx, f.aggregate, middle)
	if err != nil {
		return err
	}
	defer conn.CloseNow() //nolint:errcheck // it has all
	return f.read(ctx, conn, middle, f.until)
}

// read takes the revisions after one up to another.
func (f *follower) read(ctx context.Context, conn *websocket.Conn, after, until int64) error {
	for after < until {
		_, text, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		var message struct{ Revision int64 }
		if err := json.Unmarshal(text, &message); err != nil {
			return err
		}
		if message.Revision != after+1 {
			return fmt.Errorf("revision %d comes after %d", message.Revision, after)
		}
		after++
		f.got = append(f.got, string(text))
	}
	return nil
}
