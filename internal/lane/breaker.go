package lane

import "time"

// breakerThreshold is how many calls in a row must fail before the subscriber counts as away.
const breakerThreshold = 5

// breaker tells an outage of the subscriber from the failures of single events: while it is open, one
// probe at a time goes out, and no failure counts against an event. All of it is guarded by Lane.mu.
type breaker struct {
	backoff Backoff
	streak  int // failed calls since the last success
	open    bool
	since   time.Time // when it opened
	next    time.Time // of the next probe, while open
	timer   *time.Timer
}

func (b *breaker) mayProbe(now time.Time) bool { return !now.Before(b.next) }

// scheduleProbe arranges that probe is called when the next one may go out.
func (b *breaker) scheduleProbe(probe func()) {
	if b.timer == nil {
		b.timer = time.AfterFunc(time.Until(b.next), probe)
		return
	}
	b.timer.Reset(time.Until(b.next))
}

func (b *breaker) stop() {
	if b.timer != nil {
		b.timer.Stop()
	}
}

// failed counts a call in which nothing was delivered. it is its first event.
func (l *Lane) failed(it *item, retryAfter time.Duration) {
	b := &l.breaker
	b.streak++
	if b.streak < breakerThreshold {
		return
	}
	b.next = time.Now().Add(max(b.backoff.Wait(b.streak-breakerThreshold+1), min(retryAfter, maxRetryAfter)))
	if !b.open {
		b.open, b.since = true, time.Now()
		l.metrics.breakerOpen.Set(1)
		l.log.Warn("subscriber is away, trying one event at a time", "event", it.ev.ID, "failures", b.streak)
	}
}

// succeeded closes the breaker: the subscriber is there, so nothing has to wait any longer.
func (l *Lane) succeeded(now time.Time) {
	b := &l.breaker
	l.lastSuccess = now
	b.streak = 0
	if !b.open {
		return
	}
	b.open = false
	b.stop()
	l.metrics.breakerOpen.Set(0)
	l.log.Info("subscriber is back", "keys_waiting", len(l.resting))
	for q := range l.resting {
		l.makeReady(q)
	}
}
