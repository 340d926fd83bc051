package lane

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/subscriber"
)

// finish ends a delivery: delivered, or recorded as a dead letter. Its caller acknowledges.
func (h *holdings) finish(it *item, err error, now time.Time) {
	if err == nil {
		h.stats.Delivered++
		h.metrics.delivered.Inc()
	} else {
		h.stats.Dead++
		h.metrics.dead.Inc()
		if h.options.BlockKey && !it.other {
			h.blockKeyLocked(h.keyOf(it))
		}
	}
	switch o := it.origin.(type) {
	case liveOrigin:
		h.noteCommitToAck(it, now)
		h.open--
		h.ends = append(h.ends, ack.End{Delivery: o.Delivery, Recorded: err != nil, Other: it.other, Attempts: it.attempts()})
		if it.recorded == recordedWaiting && err == nil { // what a person has added meanwhile is paid with it
			added := &item{ev: it.ev, origin: owedOrigin{}}
			h.scope.takeInHand(added)
			h.scope.paid = append(h.scope.paid, added)
		}
	case owedOrigin:
		h.noteCommitToAck(it, now)
		if err == nil {
			h.scope.paid = append(h.scope.paid, it)
			return
		}
		// Its row is dead now and waits no more.
		h.scope.dropFromHand(it)
		h.scope.forget(h.keyOf(it))
	case replayOrigin: // it tells no lag: the event happened long ago
		o.finish(err)
	}
}

// noteCommitToAck observes how long after its commit an event was finished.
func (h *holdings) noteCommitToAck(it *item, now time.Time) {
	seconds := max(0, now.Sub(it.ev.CommittedAt).Seconds())
	if h.stream.Exemplar != nil {
		if labels := h.stream.Exemplar(it.ev); labels != nil {
			h.metrics.commitToAck.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, labels)
			return
		}
	}
	h.metrics.commitToAck.Observe(seconds)
}

// acknowledge tells the tracker which deliveries finish has ended.
func (h *holdings) acknowledge() {
	if len(h.ends) > 0 {
		h.acks.Finish(h.ends...)
		clear(h.ends)
		h.ends = h.ends[:0]
	}
}

// noteKeyFails notes that a key fails.
func (h *holdings) noteKeyFails(q *keyQueue, err error, now time.Time) {
	if asked := subscriber.RetryAfterOf(err); asked > 0 {
		q.heldUntil = now.Add(min(asked, maxRetryAfter))
	}
	if q.failedAt.IsZero() {
		q.failedAt = now
	}
	if h.options.Ordering == ByKey { // without an order each key has one event, and of a total order there is one key
		h.breaker.keys.noteKey(q.key, q.failedAt)
	}
}

// noteKeyDelivered notes that an event of a key was delivered.
func (h *holdings) noteKeyDelivered(q *keyQueue) {
	if q.failedAt.IsZero() {
		return
	}
	q.failedAt, q.heldUntil = time.Time{}, time.Time{}
	h.breaker.keys.forget(q.key)
}
