package websocket

import (
	"context"
	"errors"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// History reads the retained rows of an aggregate.
type History interface {
	// Revisions returns events with a revision above after, in order, at most limit and no more after bytes. kept tells that
	// the row of after is still there, more that there may be others. An error that wraps ErrNoAggregate is for good.
	Revisions(ctx context.Context, aggregate string, after int64, limit, bytes int) (events []*event.Event, kept, more bool, err error)
}

// ErrNoAggregate means that no aggregate can have the name.
var ErrNoAggregate = errors.New("no aggregate can have this name")

const (
	pageRows  = 100
	pageBytes = 64 << 10
	// readers is how many read rows at a time: a thousand clients that come back at once leave sessions for others.
	readers = 3
	// A row may become visible a moment after its event was delivered: when the commit waits for a standby.
	holeTries, holeWait = 4, 250 * time.Millisecond
	readTries, readWait = 4, 500 * time.Millisecond
	readLimit           = 10 * time.Second
)

// errHole is that a revision is missing in the rows.
var errHole = errors.New("a revision is missing")

// catchUp sends what the client has missed from the retained rows, and joins the live messages, which wait in its queue
// meanwhile. The client was added to the hub before, so that there is no moment between the two: whatever was delivered
// before is in the rows, and whatever is delivered later is in the queue, or, where that had no room, in the rows again.
func (c *client) catchUp(ctx context.Context) *ending {
	c.hub.metrics.catchUps.Inc()
	c.mu.Lock()
	c.catching = true
	c.mu.Unlock()
	holes, failures := 0, 0
	for {
		more, why, err := c.readOn(ctx)
		wait := time.Duration(0)
		switch {
		case why != nil:
			return why
		case errors.Is(err, errHole), errors.Is(err, ErrNoAggregate):
			if holes++; holes == holeTries || errors.Is(err, ErrNoAggregate) {
				return &startAgain
			}
			wait = holeWait
		case err != nil:
			if failures++; failures == readTries {
				c.hub.Log.Warn("the rows that a client has missed cannot be read", "aggregate", c.aggregate, "err", err)
				return &unreadable
			}
			wait = readWait
		case more || c.hasMissed():
			continue
		default:
			return nil
		}
		if why := c.pause(ctx, wait); why != nil {
			return why
		}
	}
}

// hasMissed tells whether the rows must be read again; if not, the client is live from now on.
func (c *client) hasMissed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.missed {
		c.missed = false
		return true
	}
	c.catching = false
	return false
}

// readOn sends a page of rows.
func (c *client) readOn(ctx context.Context) (more bool, why *ending, err error) {
	events, kept, more, err := c.hub.read(ctx, c.aggregate, c.revision)
	if err != nil {
		return false, nil, err
	}
	if !kept && c.revision > 0 && (len(events) == 0 || c.hub.Revisions == Increasing) {
		return false, nil, errHole
	}
	for _, e := range events {
		m, err := newMessage(e, c.hub.Envelope.ID(e))
		ours := err == nil && e.Invalid == "" && c.hub.takes(e)
		switch {
		case ours && m.revision <= c.revision:
			continue // two rows with one revision
		case c.hub.Revisions == Consecutive && (!ours || m.revision != c.revision+1):
			return false, nil, errHole
		case !ours && err == nil:
			c.revision = max(c.revision, m.revision)
			continue
		case !ours:
			continue // a dead letter; its text is a number by which the next page does not begin
		}
		if why := c.send(m); why != nil {
			return false, why, nil
		}
	}
	if c.connection.flush() != nil {
		why := c.orEnded(left)
		return false, &why, nil
	}
	return more, c.pause(ctx, 0), nil // a long catch-up ends with the lead
}

// read is Revisions, for a few at a time.
func (h *Hub) read(ctx context.Context, aggregate string, after int64) (events []*event.Event, kept, more bool, err error) {
	if h.History == nil {
		return nil, false, false, ErrNoAggregate // there are no rows
	}
	select {
	case h.reading <- struct{}{}:
		defer func() { <-h.reading }()
	case <-ctx.Done():
		return nil, false, false, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	return h.History.Revisions(ctx, aggregate, after, pageRows, pageBytes)
}
