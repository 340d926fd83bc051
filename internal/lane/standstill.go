package lane

import (
	"time"
)

// assessLocked decides whether something has stood still for too long, or holds too much of the window, and
// puts it in debt: some keys where some stand still, everything where the subscriber does.
func (d *debtReader) assessLocked(now time.Time) {
	l := d.l
	s := &l.scope
	if s.mode.whole() || l.open == 0 {
		return
	}
	crowded := l.stream.Crowds()
	switch {
	case l.breaker.open() && (crowded || now.Sub(l.breaker.since) >= l.options.StallAfter):
		l.oweAllLocked("it is away")
		return
	case crowded && d.standsStillLocked(now):
		l.oweAllLocked("its handlers do not return")
		return
	case d.pressedForLongLocked(now):
		l.oweAllLocked("the others would have to wait for it")
		return
	}
	var stalled []*keyQueue
	for _, q := range l.backlog.retries {
		if len(q.items) > 0 && q.items[0].isLive() && (crowded || now.Sub(q.stoodSince(l.made)) >= l.options.StallAfter) {
			stalled = append(stalled, q)
		}
	}
	for c := range l.calls.all {
		if !c.overdue || !crowded && now.Sub(c.begun) < l.options.StallAfter {
			continue
		}
		for _, it := range c.items {
			if it.isLive() && !it.abandoned {
				stalled = append(stalled, it.queue)
			}
		}
	}
	if len(stalled) > 0 {
		l.oweKeysLocked(stalled)
	}
}

// patience is how long the others may wait for a subscriber that is slower than they are, while the stream
// is behind anyway.
const patience = 10 * time.Second

// pressedForLongLocked reports whether the others have waited for this subscriber for too long. While the stream
// keeps up they do not wait at all. While it is behind, after a stop or a burst, they wait for as long as it
// is behind, up to patience: to record a short backlog and read it again would take longer than that.
func (d *debtReader) pressedForLongLocked(now time.Time) bool {
	if !d.l.stream.Pressed() {
		d.pressed = time.Time{}
		return false
	}
	if d.pressed.IsZero() {
		d.pressed = now
	}
	return now.Sub(d.pressed) >= min(d.l.behind, patience)
}

// standsStillLocked reports whether all workers are busy and none has ended a call for a while, or a pipeline has
// reported nothing for a while.
func (d *debtReader) standsStillLocked(now time.Time) bool {
	l := d.l
	if l.pipe != nil {
		return l.calls.inTime() > 0 && l.flight.standsStill(now, l.options.Standstill)
	}
	if l.calls.slots.taken < l.options.Concurrency {
		return false
	}
	for c := range l.calls.all {
		if c.doubted || now.Sub(c.begun) < l.options.Standstill {
			return false
		}
	}
	return true
}
