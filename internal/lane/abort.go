package lane

import (
	"context"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// startAbortLocked tells a pipeline to abort, if something was handed over. Nothing is before that has ended, or limit
// is over: the leadership that sends next must not be overtaken by what an earlier one has sent.
func (c *core) startAbortLocked(limit time.Duration) {
	f := &c.flight
	if !f.sent || f.aborting() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	ended := make(chan struct{})
	f.sent, f.abort, f.cutShort = false, ended, cancel
	go func() {
		defer close(ended)
		err := c.abort(ctx)
		cancel()
		if err != nil {
			c.log.Error("the pipeline does not abort: what was sent may still reach its destination", "limit", limit, "err", c.options.masked(err))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		f.sent = f.sent || err != nil
		f.abort, f.cutShort = nil, nil
		c.startCalls()
	}()
}

// abort makes a panic an error.
func (c *core) abort(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("pipeline panicked: %v", p)
		}
	}()
	return c.sub.(subscriber.Pipeline).Abort(ctx)
}

// abortNow starts an Abort, if none is under way, and returns a channel that is closed when none is.
func (c *core) abortNow() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startAbortLocked(c.options.Timeout)
	return c.flight.aborted()
}

// abortGrace is how long an Abort may take at a stop: a little less than cancelled handlers have, so that the lane
// hears of it.
const abortGrace = overdueGrace * 3 / 4

// abortAtStopLocked starts an Abort that has abortGrace, and returns a channel that is closed when none is under way.
func (c *core) abortAtStopLocked() <-chan struct{} {
	c.startAbortLocked(abortGrace)
	if c.flight.aborting() { // perhaps one that has begun before, with more time
		time.AfterFunc(abortGrace, c.flight.cutShort)
	}
	return c.flight.aborted()
}
