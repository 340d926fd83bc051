package lane

import "time"

// A runner is a call of the subscriber that has begun: an attempt, or a sending of a pipeline.
type runner interface {
	run()       // makes the call
	endLocked() // gives its slot back, and settles what it has settled
}

// startCallsLocked starts calls while there is something to do and a free slot. Every change of state ends with it.
func (l *Lane) startCallsLocked() {
	for r := l.nextCallLocked(); r != nil; r = l.nextCallLocked() {
		l.handler.Go(func() { l.work(r) })
	}
	l.scheduleWakeLocked(time.Now())
}

// work makes a call, and others as long as there is something to do. So a goroutine goes on whose stack is as large as the
// handler needs it.
func (l *Lane) work(r runner) {
	for r != nil {
		r.run()
		l.mu.Lock()
		r.endLocked()
		if a, is := r.(*attempt); is {
			l.recycleLocked(a)
		}
		r = l.nextCallLocked()
		l.afterSettlingLocked()
		l.mu.Unlock()
	}
}

// nextCallLocked begins a call, or returns nil while there is nothing to do, or no slot or no room is free.
func (l *Lane) nextCallLocked() runner {
	for l.mayCallLocked() && l.freeLocked() {
		if l.backlog.ready.empty() && len(l.backlog.retries) == 0 {
			return nil
		}
		now := time.Now()
		a := l.newAttemptLocked(now)
		if l.breaker.open() {
			l.chooseProbeLocked(&a.call, now)
		} else {
			l.chooseLocked(&a.call, now)
		}
		if len(a.items) > 0 {
			return l.beginLocked(a)
		}
		l.recycleLocked(a)
		if l.breaker.open() || l.backlog.ready.empty() {
			return nil // the timer comes back for what is not due
		}
	}
	return nil
}

// freeLocked reports whether a slot is free, and room in a pipeline.
func (l *Lane) freeLocked() bool {
	return l.calls.slots.free(l.options.Concurrency) && l.flight.room() > 0
}

// beginLocked gives an attempt its slot. Of a pipeline it makes a sending of it.
func (l *Lane) beginLocked(a *attempt) runner {
	l.calls.slots.occupy(&a.slot)
	if l.pipe != nil {
		s := l.pipe.splitLocked(&a.call)
		l.recycleLocked(a)
		return s
	}
	a.deliveries = a.addressLocked(a.deliveries)
	l.calls.add(&a.call)
	return a
}

// newAttemptLocked uses an attempt that has ended again, with its lists: a busy lane makes no garbage but what its
// handlers make.
func (l *Lane) newAttemptLocked(now time.Time) *attempt {
	var a *attempt
	if last := len(l.spare) - 1; last >= 0 {
		a = l.spare[last]
		l.spare[last] = nil
		l.spare = l.spare[:last]
	} else {
		a = &attempt{}
	}
	a.beginLocked(&l.core, now)
	return a
}

// recycleLocked ends the use of an attempt.
func (l *Lane) recycleLocked(a *attempt) {
	if a.clearLocked() && len(l.spare) < l.options.Concurrency {
		l.spare = append(l.spare, a)
	}
}

// scheduleWakeLocked sets the timer that calls startCallsLocked when the next retry or probe may begin.
func (l *Lane) scheduleWakeLocked(now time.Time) {
	if !l.mayCallLocked() || !l.freeLocked() {
		return // the end of a call comes back here
	}
	var at time.Time
	if l.breaker.open() {
		at = l.nextProbeAtLocked()
	} else if q := l.backlog.retries.first(); q != nil && q.due.After(now) {
		at = q.due // what is due already waits for a call to end
	}
	if at.IsZero() || at.Equal(l.wakeAt) {
		return
	}
	l.wakeAt = at
	wait := max(at.Sub(now), 0)
	if l.wake == nil {
		l.wake = time.AfterFunc(wait, l.wakeUp)
		return
	}
	l.wake.Reset(wait)
}

func (l *Lane) wakeUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeAt = time.Time{}
	if l.stage.handsOver() {
		l.startCallsLocked()
	}
}
