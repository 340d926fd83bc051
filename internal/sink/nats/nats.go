// Package nats sends events to NATS JetStream. An event is delivered when the stream that captures its subject has
// acknowledged it (PubAck), and by nothing else. It must never make a stream, never keep an event for a connection that is
// not there, and never send one after Abort has returned. docs/destinations.md is the page for users.
//
//	nats.go     the subscriber: Send, Abort, Probe in probe.go
//	session.go  a connection with what it has in hand
//	publish.go  waves, and batches where the stream takes them
//	streams.go  what is known of the streams
//	message.go  an event as a message
//	answer.go   what an answer means
package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/route"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Options say where to and how.
type Options struct {
	*Config
	// Name is the subscriber's identity, Slot that of the relay: both are in Nats-Msg-Id.
	Name, Slot string
	// Ordering is that of the subscriber: "key", "total" or "none".
	Ordering string
	// Timeout is how long an acknowledgement may take.
	Timeout  time.Duration
	Envelope envelope.Writer
}

// NATS is a subscriber.Pipeline.
type NATS struct {
	Options
	subject *route.Template
	headers []configuredHeader
	names   *route.Names
	masking masking
	// longChain is the constant, but in tests.
	longChain int

	use sync.RWMutex // held for reading by Send, so that Abort can wait for those under way
	mu  sync.Mutex
	now *session // nil until the next Send; guarded by mu
}

type configuredHeader struct {
	name     string
	template *route.Template
}

// New makes the subscriber. It connects to nothing: that the servers are away is no reason not to start.
func New(o Options) (*NATS, error) {
	var problem error
	o.Check(config.Subscriber{}, func(key string, err error) {
		if problem == nil {
			problem = fmt.Errorf("%s: %w", key, err)
		}
	})
	if problem != nil {
		return nil, problem
	}
	n := &NATS{Options: o, names: route.NewNames(int(o.MaxSubjects)), longChain: longChain}
	n.subject, _ = route.Compile(o.Subject, route.NATS) // Check has looked at it
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		template, _ := o.header(name)
		n.headers = append(n.headers, configuredHeader{name, template})
	}
	return n, nil
}

// Name implements subscriber.Subscriber.
func (n *NATS) Name() string { return n.Options.Name }

// Wants implements subscriber.Subscriber: which events go where is a matter of configuration.
func (n *NATS) Wants(string) bool { return true }

// Handle sends one event and waits for the report. When ctx ends before it, a message that is on its way may still arrive.
func (n *NATS) Handle(ctx context.Context, d subscriber.Delivery) error {
	reported := make(chan error, 1)
	n.Send(ctx, []subscriber.Delivery{d}, func(_ int, err error) { reported <- err })
	select {
	case err := <-reported:
		return err
	case <-ctx.Done():
		return subscriber.Away(fmt.Errorf("the servers have not answered: %w", context.Cause(ctx)))
	}
}

// Send implements subscriber.Pipeline. It waits for the first connection, and for nothing else: what it hands over is
// bounded by in_flight. Each delivery is reported within the timeout.
func (n *NATS) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	n.use.RLock()
	defer n.use.RUnlock()
	c := &call{nats: n, ctx: ctx, done: done}
	s := n.session()
	if err := s.connect(ctx); err != nil {
		for i := range deliveries {
			done(i, err)
		}
		return
	}
	c.session, c.begun = s, time.Now()
	c.publish(c.prepare(deliveries))
}

// session is the one in use, or a new one.
func (n *NATS) session() *session {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now != nil && n.now.isUseless() {
		n.now.close()
		n.now = nil
	}
	if n.now == nil {
		n.now = newSession(n)
	}
	return n.now
}

// endSession ends the use of the session: the next Send begins another. It returns nil where there is none.
func (n *NATS) endSession() *session {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.now
	n.now = nil
	return s
}

// Abort implements subscriber.Pipeline: it waits for the answer to what is on its way and sends nothing more. If ctx ends
// first, the connection is closed. Then a server that was frozen can still find in its socket what was sent: the term in
// its headers tells, and what another relay has sent meanwhile is refused as a duplicate.
func (n *NATS) Abort(ctx context.Context) error {
	n.mu.Lock()
	if n.now != nil {
		n.now.stop()
	}
	n.mu.Unlock()
	n.use.Lock() // no Send is under way any more
	defer n.use.Unlock()
	s := n.endSession()
	if s == nil {
		return nil
	}
	defer s.close()
	return s.awaitAnswers(ctx)
}

// Close closes the connection. No call may be under way.
func (n *NATS) Close() error {
	if s := n.endSession(); s != nil {
		s.close()
		s.work.Wait()
	}
	return nil
}

// call is one Send.
type call struct {
	nats    *NATS
	session *session
	ctx     context.Context // of the leadership; a call ends with it
	begun   time.Time
	done    func(int, error)
}

// sending is a delivery on its way.
type sending struct {
	index   int
	message message
}

// chainOf tells what has to keep an order among each other in one call.
func (n *NATS) chainOf(i int, d subscriber.Delivery) string {
	switch n.Ordering {
	case "total":
		return ""
	case "none":
		return fmt.Sprint(i)
	}
	return d.Key
}

// prepare makes the messages: those of a chain in their order. What cannot be sent is reported, and so is what follows it.
func (c *call) prepare(deliveries []subscriber.Delivery) [][]*sending {
	n := c.nats
	chains := map[string]int{}
	failed := map[string]bool{}
	var all [][]*sending
	largest := c.session.conn.MaxPayload()
	for i, d := range deliveries {
		chain := n.chainOf(i, d)
		if failed[chain] {
			c.done(i, subscriber.ErrHeld)
			continue
		}
		m, err := n.messageOf(d)
		if err == nil {
			err = c.admit(m, largest)
		}
		if err != nil {
			failed[chain] = true
			c.done(i, err)
			continue
		}
		at, known := chains[chain]
		if !known {
			at = len(all)
			chains[chain] = at
			all = append(all, nil)
		}
		all[at] = append(all[at], &sending{index: i, message: m})
	}
	return all
}

// admit looks at what can be known of a message before it is sent.
func (c *call) admit(m message, largest int64) error {
	if size := int64(sizeOf(m)); largest > 0 && size > largest {
		return subscriber.Permanent(fmt.Errorf("the message has %d bytes with its headers, the server takes %d (max_payload)", size, largest))
	}
	if err := c.session.denied(m.Subject); err != nil {
		return err
	}
	// One that no stream captures takes no place: who writes events could take them all.
	if c.session.streams.of(m.Subject) != nil {
		if err := c.nats.names.Admit(m.Subject); err != nil {
			return subscriber.Away(fmt.Errorf("max_subjects: %w", err))
		}
	}
	return nil
}

// errOver is why a message that was not acknowledged is given up when its session ends.
var errOver = errors.New("given up before it was acknowledged: the connection was closed")

// literal is what stands in a template before the first part of an event.
func literal(template string) string {
	text, _, _ := strings.Cut(template, "{")
	return text
}
