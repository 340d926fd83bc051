package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// finishLocked ends a delivery: delivered, or recorded as a dead letter. Its caller acknowledges.
func (l *Lane) finishLocked(it *item, err error, now time.Time) {
	if err == nil {
		l.stats.Delivered++
		l.metrics.delivered.Inc()
	} else {
		l.stats.Dead++
		l.metrics.dead.Inc()
		if l.options.BlockKey {
			l.blockKeyLocked(l.options.Ordering.keyOf(it.ev))
		}
	}
	it.origin.finishLocked(l, it, err, now)
}

// acknowledgeLocked tells the tracker which deliveries finishLocked has ended.
func (l *Lane) acknowledgeLocked() {
	if len(l.ends) > 0 {
		l.acks.Finish(l.ends...)
		clear(l.ends)
		l.ends = l.ends[:0]
	}
}

// noteFailureLocked counts a failed attempt and returns how long the key has to wait.
func (l *Lane) noteFailureLocked(it *item, err error, now time.Time) time.Duration {
	l.stats.Failed++
	l.stats.LastError = err.Error()
	l.metrics.failed.Inc()
	past := it.failing()
	if it.dead { // its record was refused; the reason stays the first one
		past.refused++
		return l.options.Backoff.Wait(past.refused)
	}
	past.attempts++
	past.err, past.last = err, now
	if it.fromDebt() {
		l.scope.failed[it] = struct{}{}
	}
	if subscriber.IsPause(err) && l.unwanted == nil && l.scope.mode != debtPaused {
		l.unwanted = err
		l.pauseLocked("it wants nothing any more")
		signal(l.readerWake) // to write it down
	}
	if past.first.IsZero() {
		past.first = now
	} else if l.breaker.counts(past.first, err) {
		past.counted++
		it.dead = l.options.MaxAttempts > 0 && past.counted >= l.options.MaxAttempts
	}
	if l.options.GiveUpAfter > 0 && now.Sub(past.first) >= l.options.GiveUpAfter {
		it.dead = true
	}
	wait := max(l.options.Backoff.Wait(past.attempts), min(subscriber.RetryAfterOf(err), maxRetryAfter))
	past.next = now.Add(wait)
	if now.Sub(l.warned) >= warnEvery {
		l.warned = now
		l.log.Warn("delivery failed, will retry", "event", it.ev.ID, "key", it.ev.Key,
			"attempt", past.attempts, "wait", wait, "keys_waiting", len(l.backlog.retries)+1, "err", err)
	}
	return wait
}

// failsLocked notes that a key fails.
func (l *Lane) failsLocked(q *keyQueue, err error, now time.Time) {
	if asked := subscriber.RetryAfterOf(err); asked > 0 {
		q.heldUntil = now.Add(min(asked, maxRetryAfter))
	}
	if q.failedAt.IsZero() {
		q.failedAt = now
	}
	if l.options.Ordering == ByKey { // without an order each key has one event, and of a total order there is one key
		l.breaker.keys.note(q.key, q.failedAt)
	}
}

// recoveredLocked notes that an event of a key was delivered.
func (l *Lane) recoveredLocked(q *keyQueue) {
	if q.failedAt.IsZero() {
		return
	}
	q.failedAt, q.heldUntil = time.Time{}, time.Time{}
	l.breaker.keys.forget(q.key)
}
