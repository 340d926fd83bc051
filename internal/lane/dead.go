package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// recordDead writes the dead letters among the outcomes. One that cannot be written stays open, and its
// key waits behind it: an event is never neither delivered nor recorded.
func (l *Lane) recordDead(items []*item, outcome []error) {
	var refused error // of one: the others would only wait for the same answer
	for i, it := range items {
		err := outcome[i]
		if err == nil || !it.dead && (!subscriber.IsPermanent(err) || errors.As(err, new(wholeBatch))) {
			continue
		}
		if !l.noteDeath(it, err) {
			continue
		}
		if refused != nil {
			outcome[i] = refused
			continue
		}
		// A stop must not keep a dead letter from being written.
		ctx, cancel := context.WithTimeout(context.Background(), l.options.Timeout)
		recordErr := l.writeDead(ctx, it)
		cancel()
		if recordErr != nil {
			l.log.Error("record dead letter, the event stays open", "event", it.ev.ID, "err", recordErr)
			refused = fmt.Errorf("record dead letter: %w", recordErr)
			outcome[i] = refused
			continue
		}
		l.sayDead(it, err)
	}
}

// sayDead names a dead letter in the log. Where many come at once it names a few a second: all of them
// stand in walpost.owed.
func (l *Lane) sayDead(it *item, err error) {
	if !l.deadSaid.AllowN(time.Now(), 1) {
		return
	}
	l.log.Error("event is a dead letter", "event", it.ev.ID, "type", it.ev.Type,
		"attempts", it.attempts(), "correlation_id", it.ev.CorrelationID(), "err", err)
}

// noteDeath notes why an item is to be a dead letter. The debt reader may read an item that is in work, or have
// recorded it as owed meanwhile: then it says no, and the item is sent again from there.
func (l *Lane) noteDeath(it *item, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.abandoned {
		return false
	}
	past := it.failing()
	if !it.dead {
		it.dead, past.err = true, err
		past.attempts++
	}
	if now := time.Now(); past.first.IsZero() {
		past.first, past.last = now, now
	}
	return true
}

// writeDead records a dead letter and shows whether that works.
func (l *Lane) writeDead(ctx context.Context, it *item) error {
	err := l.ower.Dead(ctx, l.Name(), it.owed())
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.stats.DeadError = err.Error()
		l.metrics.deadRefused.Inc()
		return err
	}
	l.stats.DeadError = ""
	it.finished = true
	return nil
}
