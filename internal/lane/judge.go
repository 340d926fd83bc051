package lane

import (
	"errors"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// judgeLocked updates what the lane thinks of its subscriber after a call: the breaker and the size of calls to come.
func (c *core) judgeLocked(ended *call, outcome []error, now time.Time) {
	var delivered, failed bool
	var whole bool
	for i, err := range outcome {
		switch {
		case err == nil:
			delivered = true
		case ended.items[i].dead: // says nothing about the subscriber's health
		default:
			failed = true
			whole = whole || errors.As(err, new(wholeBatch))
		}
	}
	if delivered {
		ended.verdict.delivered = true
		c.noteSuccessLocked(now)
	}
	if !ended.overdue { // else that was counted when it became overdue
		c.endPartLocked(ended, failed, now)
	}
	batch := &c.sizes.batch
	if ended.slot.retry {
		batch = &c.sizes.retryBatch
	}
	switch {
	case whole:
		// The bad event is among them: hand over fewer at once until it fails alone. By eights, so that
		// the steps from 500 to 1 stay below the breaker's threshold.
		*batch = max(1, len(ended.items)/8)
	case delivered:
		*batch = min(c.options.Batch, *batch*2)
	}
}

// endPartLocked notes that a part of a call has ended, or is overdue. With the last one it tells the breaker of a call
// in which nothing was delivered.
func (c *core) endPartLocked(part *call, failed bool, now time.Time) {
	v := part.verdict
	v.open--
	if failed {
		v.failed = true
		v.known = v.known && !slices.ContainsFunc(part.items, func(it *item) bool { return !it.dead && !c.breaker.knows(it.queue.failedAt) })
	}
	if v.open > 0 || v.delivered || !v.failed || !c.breaker.fail(now, v.known, part.probe) {
		return
	}
	c.metrics.breakerOpen.Set(1)
	c.log.Warn("subscriber is away, trying one event at a time", "event", part.items[0].ev.ID,
		"correlation_id", part.items[0].ev.CorrelationID(), "failures", c.breaker.streak)
	signal(c.readerWake)
}

// noteSuccessLocked notes a delivery. If the subscriber was away nothing has to wait any longer, except for
// keys whose receiver has asked for it.
func (c *core) noteSuccessLocked(now time.Time) {
	if !c.breaker.succeed(now) {
		return
	}
	c.backlog.sample = nil
	c.metrics.breakerOpen.Set(0)
	c.log.Info("subscriber is back", "keys_waiting", len(c.backlog.retries))
	for _, q := range c.backlog.retries {
		q.due = latest(now, q.heldUntil)
	}
	c.backlog.retries.sort()
	c.backAgain = true
	signal(c.readerWake)
}

// noteFailureLocked counts a failed attempt and returns how long the key has to wait.
func (c *core) noteFailureLocked(it *item, err error, now time.Time) time.Duration {
	c.stats.Failed++
	c.stats.LastError = err.Error()
	c.metrics.failed.Inc()
	past := it.failing()
	if it.dead { // its record was refused; the reason stays the first one
		past.refused++
		return c.options.Backoff.Wait(past.refused)
	}
	past.attempts++
	past.err, past.last = err, now
	if it.fromDebt() {
		c.scope.failed[it] = struct{}{}
	}
	if subscriber.IsPause(err) && c.unwanted == nil && c.scope.mode != debtPaused {
		c.unwanted = err
		c.pauseLocked("it wants nothing any more")
		signal(c.readerWake) // to write it down
	}
	if past.first.IsZero() {
		past.first = now
	} else if c.breaker.counts(past.first, err) {
		past.counted++
		it.dead = c.options.MaxAttempts > 0 && past.counted >= c.options.MaxAttempts
	}
	if c.options.GiveUpAfter > 0 && now.Sub(past.first) >= c.options.GiveUpAfter {
		it.dead = true
	}
	wait := max(c.options.Backoff.Wait(past.attempts), min(subscriber.RetryAfterOf(err), maxRetryAfter))
	past.next = now.Add(wait)
	if now.Sub(c.warned) >= warnEvery {
		c.warned = now
		c.log.Warn("delivery failed, will retry", "event", it.ev.ID, "correlation_id", it.ev.CorrelationID(), "key", it.ev.Key,
			"attempt", past.attempts, "wait", wait, "keys_waiting", len(c.backlog.retries)+1, "err", err)
	}
	return wait
}
