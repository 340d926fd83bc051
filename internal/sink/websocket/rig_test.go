package websocket

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

const patience = time.Minute

// retained is a History in memory.
type retained struct {
	mu   sync.Mutex
	rows map[string][]*event.Event
	err  error // of every read
}

func (r *retained) Revisions(_ context.Context, aggregate string, after int64, limit, _ int) (events []*event.Event, kept, more bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.rows[aggregate] {
		switch revision, _ := strconv.ParseInt(e.Revision, 10, 64); {
		case revision == after:
			kept = true
		case revision > after && len(events) == limit:
			return events, kept, true, r.err
		case revision > after:
			events = append(events, e)
		}
	}
	return events, kept, false, r.err
}

func (r *retained) add(e *event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows[aggregateOf(e)] = append(r.rows[aggregateOf(e)], e)
}

// forget drops the rows up to a revision.
func (r *retained) forget(aggregate string, upTo int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows[aggregate] = slices.DeleteFunc(r.rows[aggregate], func(e *event.Event) bool {
		revision, _ := strconv.Atoi(e.Revision)
		return revision <= upTo
	})
}

// rig is a hub that serves, with rows behind it.
type rig struct {
	t        *testing.T
	hub      *Hub
	rows     *retained
	registry *prometheus.Registry
	leads    atomic.Bool
	address  string
	stop     func()
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, rows: &retained{rows: map[string][]*event.Event{}}, registry: prometheus.NewRegistry()}
	r.leads.Store(true)
	c := NewConfig()
	c.Listen, c.Open = "127.0.0.1:0", true
	o := Options{Config: c, Name: "live", History: r.rows, Leads: r.leads.Load, Registry: r.registry, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	var err error
	if r.hub, err = New(o); err != nil {
		t.Fatal(err)
	}
	r.start("127.0.0.1:0")
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start(address string) {
	r.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.hub.Run(ctx, listener) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("the hub ended with %v", err)
		}
	})
	eventually(r.t, "the hub to serve", func() bool { return !r.leads.Load() || r.hub.leads() })
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for begun := time.Now(); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func eventOf(aggregate string, revision int) *event.Event {
	return &event.Event{
		Source: "games", ID: fmt.Sprintf("%s-%d", aggregate, revision), Type: "game.moved", AggregateType: "game", AggregateID: aggregate,
		Key: aggregate, Revision: strconv.Itoa(revision), Payload: fmt.Appendf(nil, `{"n": %d}`, revision),
	}
}

// commit keeps the row, as Postgres does before the stream has it.
func (r *rig) commit(e *event.Event) *event.Event {
	r.rows.add(e)
	return e
}

func (r *rig) deliver(events ...*event.Event) {
	r.t.Helper()
	var all []subscriber.Delivery
	for _, e := range events {
		all = append(all, subscriber.Delivery{Event: e, Attempt: 1, Term: 1})
	}
	if err := r.hub.HandleBatch(r.t.Context(), all); err != nil {
		r.t.Fatalf("deliver: %v", err)
	}
}

// received is a message as a client gets it.
type received struct {
	Aggregate string
	Revision  int64
	ID        string
	Type      string
	Payload   json.RawMessage
	text      string
	closed    int // a close code; the others are empty then
}

// follower is a client of a test.
type follower interface {
	// next returns the next message, or the close code.
	next(ctx context.Context) (received, error)
	cut()
}

func (r *rig) url(aggregate string, last int) string {
	url := "http://" + r.address + "/events?aggregate=" + strings.ReplaceAll(aggregate, "/", "%2F")
	if last >= 0 {
		url += "&last=" + strconv.Itoa(last)
	}
	return url
}

type webSocketFollower struct{ *websocket.Conn }

func (r *rig) overWebSocket(aggregate string, last int) (follower, error) {
	conn, _, err := websocket.Dial(r.t.Context(), r.url(aggregate, last), nil) //nolint:bodyclose // the library owns it
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(1 << 24)
	return &webSocketFollower{conn}, nil
}

func (f *webSocketFollower) cut() { _ = f.CloseNow() }

func (f *webSocketFollower) next(ctx context.Context) (m received, err error) {
	_, text, err := f.Read(ctx)
	if code := websocket.CloseStatus(err); code > 0 {
		return received{closed: int(code)}, nil
	}
	if err != nil {
		return m, err
	}
	m.text = string(text)
	return m, json.Unmarshal(text, &m)
}

type streamFollower struct {
	body  io.ReadCloser
	lines *bufio.Reader
}

func (r *rig) overStream(aggregate string, last int) (follower, error) {
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url(aggregate, -1), nil)
	if err != nil {
		return nil, err
	}
	if last >= 0 {
		request.Header.Set("Last-Event-ID", strconv.Itoa(last))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	return &streamFollower{response.Body, bufio.NewReader(response.Body)}, nil
}

func (f *streamFollower) cut() { _ = f.body.Close() }

func (f *streamFollower) next(ctx context.Context) (m received, err error) {
	stop := context.AfterFunc(ctx, f.cut)
	defer stop()
	var name, id string
	var data []string
	for {
		line, err := f.lines.ReadString('\n')
		if err != nil {
			return m, err
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "event":
			name = value
		case "id":
			id = value
		case "data":
			data = append(data, value)
		case "":
			if len(data) == 0 {
				continue
			}
			m.text = strings.Join(data, "\n")
			if name == "close" {
				var why struct{ Code int }
				err := json.Unmarshal([]byte(m.text), &why)
				return received{closed: why.Code}, err
			}
			if err := json.Unmarshal([]byte(m.text), &m); err != nil {
				return m, err
			}
			if m.Revision > 0 && id != strconv.FormatInt(m.Revision, 10) {
				return m, fmt.Errorf("id %q of revision %d", id, m.Revision)
			}
			return m, nil
		}
	}
}
