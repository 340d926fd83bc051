package lane

import (
	"context"
	"errors"
)

// errSuspended is the cause with which handlers end when the lane is suspended.
var errSuspended = errors.New("the relay does not lead at the moment")

// Suspend lets no attempt begin and ends the contexts of those that are under way, until Resume. What they
// had in hand is tried again then; that it ended says nothing about it. A pipeline is told to abort, and sends nothing
// before it has. It may be called at any time, and again.
func (c *core) Suspend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lead.suspended {
		return
	}
	c.lead.suspended = true
	if c.lead.end != nil {
		c.lead.end(errSuspended)
	}
	c.startAbortLocked(c.options.Timeout)
}

// Suspended reports whether Resume is waited for. A lane suspends itself when it may not begin an attempt, and
// when a subscriber has found out that another relay has led.
func (c *core) Suspended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lead.suspended
}

// Resume is the end of Suspend. A pipeline that is still aborting goes on when it has.
func (c *core) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lead.suspended {
		return
	}
	c.lead.begin()
	c.startCalls()
}

// awaitLead reports whether a call may begin under a leadership. While it is in doubt whether we lead, the call waits;
// that is no time of its handler. Where we do not lead the lane is suspended.
func (c *core) awaitLead(lead context.Context, waits doubter) bool {
	for {
		if lead.Err() != nil { // another leadership may have begun since
			return false
		}
		if c.stream.MayBegin == nil {
			return true
		}
		may, again := c.stream.MayBegin()
		if again == nil {
			if !may {
				c.Suspend() // the keeper of the lead finds out whether it is still ours
			}
			return may
		}
		c.mu.Lock()
		waits.setDoubtedLocked(true)
		c.mu.Unlock()
		select {
		case <-again:
		case <-lead.Done():
		}
		c.mu.Lock()
		waits.setDoubtedLocked(false)
		c.mu.Unlock()
	}
}
