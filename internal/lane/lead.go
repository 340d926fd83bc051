package lane

import (
	"context"
	"errors"
	"time"
)

// errSuspended is the cause with which handlers end when the lane is suspended.
var errSuspended = errors.New("the relay does not lead at the moment")

// Suspend lets no attempt begin and ends the contexts of those that are under way, until Resume. What they
// had in hand is tried again then; that it ended says nothing about it. A pipeline is told to abort, and sends nothing
// before it has. It may be called at any time, and again.
func (l *Lane) Suspend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.suspended {
		return
	}
	l.suspended = true
	if l.unlead != nil {
		l.unlead(errSuspended)
	}
	l.pipe.startAbortLocked(l.options.Timeout)
}

// Suspended reports whether Resume is waited for. A lane suspends itself when it may not begin an attempt, and
// when a subscriber has found out that another relay has led.
func (l *Lane) Suspended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.suspended
}

// Resume is the end of Suspend. A pipeline that is still aborting goes on when it has.
func (l *Lane) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.suspended {
		return
	}
	l.suspended = false
	if l.deliver != nil {
		l.lead, l.unlead = context.WithCancelCause(l.deliver)
	}
	l.startCallsLocked()
}

// A doubter is told when it begins and ends to be in doubt whether we lead.
type doubter interface{ setDoubtedLocked(doubted bool) }

// awaitLead reports whether a call may begin under a leadership. While it is in doubt whether we lead, the call waits;
// that is no time of its handler. Where we do not lead the lane is suspended.
func (l *Lane) awaitLead(lead context.Context, call doubter) bool {
	for {
		if lead.Err() != nil { // another leadership may have begun since
			return false
		}
		if l.stream.MayBegin == nil {
			return true
		}
		may, again := l.stream.MayBegin()
		if again == nil {
			if !may {
				l.Suspend() // the keeper of the lead finds out whether it is still ours
			}
			return may
		}
		l.mu.Lock()
		call.setDoubtedLocked(true)
		l.mu.Unlock()
		select {
		case <-again:
		case <-lead.Done():
		}
		l.mu.Lock()
		call.setDoubtedLocked(false)
		l.mu.Unlock()
	}
}

func (c *call) setDoubtedLocked(doubted bool) { c.doubted, c.begun = doubted, time.Now() }
