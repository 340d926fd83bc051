package websocket

import (
	"context"
	"sync"
	"time"
)

// connection is how messages reach a client. One goroutine uses it.
type connection interface {
	// send writes a message; it may reach the client with the next flush only. Each call ends within the write timeout.
	send(m *message) error
	flush() error
	// ping asks for a sign of life, without waiting for it.
	ping() error
	// left is closed when the client has gone.
	left() <-chan struct{}
	// close tells the client why, and ends the connection within closeLimit.
	close(why ending)
}

// client is a connected client of one aggregate.
//
// Invariant: its connection gets revisions in their order, each once, and with Consecutive none is left out.
type client struct {
	hub        *Hub
	aggregate  string
	connection connection
	expires    time.Time // of its token; zero is never

	wake chan struct{} // capacity 1: something of what follows has changed

	mu       sync.Mutex
	queue    []*message // guarded by mu
	bytes    int        // of the queue; guarded by mu
	catching bool       // rows are read, so what does not fit can be dropped; guarded by mu
	missed   bool       // something was dropped; guarded by mu
	ended    *ending    // nothing is taken any more; guarded by mu

	// revision is the last one sent, -1 before the first. Of the goroutine that runs.
	revision int64
}

// offer hands a message over to the queue. It never waits: a client that is slow is closed, and one that reads its rows
// finds there what it had no room for.
func (c *client) offer(m *message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	if len(c.queue) < c.hub.Queue && (c.bytes+len(m.text) <= int(c.hub.QueueBytes) || len(c.queue) == 0) {
		c.queue = append(c.queue, m)
		c.bytes += len(m.text)
		c.signal()
		return
	}
	c.dropLocked()
	if c.catching {
		c.missed = true
		return
	}
	c.ended = &slow
	c.signal()
}

// end closes the client with what it still has in its queue unsent: it connects again and gets it then.
func (c *client) end(why ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	c.ended = &why
	c.dropLocked()
	c.signal()
}

func (c *client) dropLocked() { c.queue, c.bytes = nil, 0 }

func (c *client) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next takes the first message of the queue, if there is one, and tells whether the client has ended.
func (c *client) next() (m *message, why *ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil || len(c.queue) == 0 {
		return nil, c.ended
	}
	m = c.queue[0]
	c.queue[0] = nil
	c.queue = c.queue[1:]
	c.bytes -= len(m.text)
	if len(c.queue) == 0 {
		c.queue = nil // what had room for many is not kept
	}
	return m, nil
}

// run sends until the client has ended, and says why. It must have been added to the hub before.
func (c *client) run(ctx context.Context) ending {
	if c.revision >= 0 {
		if why := c.catchUp(ctx); why != nil {
			return *why
		}
	}
	beat := time.NewTicker(c.hub.Ping.Std())
	defer beat.Stop()
	var expiry <-chan time.Time
	if !c.expires.IsZero() {
		timer := time.NewTimer(time.Until(c.expires))
		defer timer.Stop()
		expiry = timer.C
	}
	for unflushed := false; ; {
		m, why := c.next()
		switch {
		case why != nil:
			return *why
		case m != nil:
			if why := c.pass(ctx, m); why != nil {
				return *why
			}
			unflushed = true
			continue
		case unflushed:
			if c.connection.flush() != nil {
				return c.orEnded(left)
			}
			unflushed = false
			continue
		}
		select {
		case <-c.wake:
		case <-beat.C:
			if c.connection.ping() != nil {
				return c.orEnded(left)
			}
		case <-expiry:
			return expired
		case <-c.connection.left():
			return c.orEnded(left)
		case <-ctx.Done():
			return c.orEnded(leadEnded)
		}
	}
}

// orEnded is why the client had to end, or why.
func (c *client) orEnded(why ending) ending {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return *c.ended
	}
	return why
}

// pass sends a live message unless the client has it. One that does not follow the last revision shows that something was
// left out on its way here, such as an event that became a dead letter: the rows tell.
func (c *client) pass(ctx context.Context, m *message) *ending {
	if m.revision < 0 || c.revision < 0 {
		return c.send(m)
	}
	for tries := 0; c.hub.Revisions == Consecutive && m.revision > c.revision+1; tries++ {
		if tries == holeTries {
			return &startAgain
		}
		if why := c.catchUp(ctx); why != nil {
			return why
		}
		if m.revision > c.revision+1 { // its own row may become visible after it was delivered
			if why := c.pause(ctx, holeWait); why != nil {
				return why
			}
		}
	}
	if m.revision <= c.revision {
		return nil
	}
	return c.send(m)
}

// pause waits unless the client ends meanwhile.
func (c *client) pause(ctx context.Context, wait time.Duration) *ending {
	why := left
	select {
	case <-time.After(wait):
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.ended
	case <-c.connection.left():
	case <-ctx.Done():
		why = leadEnded
	}
	why = c.orEnded(why)
	return &why
}

func (c *client) send(m *message) *ending {
	if c.connection.send(m) != nil {
		why := c.orEnded(left)
		return &why
	}
	c.hub.metrics.sent.Inc()
	c.revision = max(c.revision, m.revision)
	return nil
}
