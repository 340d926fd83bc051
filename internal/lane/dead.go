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
func (c *core) recordDead(items []*item, outcome []error) {
	var refused error // of one: the others would only wait for the same answer
	for i, it := range items {
		err := outcome[i]
		if err == nil {
			continue
		}
		letter, dies := c.noteDeath(it, err)
		if !dies {
			continue
		}
		if refused != nil {
			outcome[i] = refused
			continue
		}
		// A stop must not keep a dead letter from being written.
		ctx, cancel := context.WithTimeout(context.Background(), c.options.Timeout)
		recordErr := c.writeDead(ctx, it, letter)
		cancel()
		if recordErr != nil {
			c.log.Error("record dead letter, the event stays open", "event", it.ev.ID, "correlation_id", it.ev.CorrelationID(), "err", recordErr)
			refused = fmt.Errorf("record dead letter: %w", recordErr)
			outcome[i] = refused
			continue
		}
		c.sayDead(letter, err)
	}
}

// sayDead names a dead letter in the log. Where many come at once it names a few a second: all of them
// stand in walpost.owed.
func (c *core) sayDead(letter Owed, err error) {
	if !c.deadSaid.AllowN(time.Now(), 1) {
		return
	}
	ev := letter.Event
	c.log.Error("event is a dead letter", "event", ev.ID, "type", ev.Type,
		"attempts", letter.Attempts, "correlation_id", ev.CorrelationID(), "err", err)
}

// noteDeath notes why an item that failed is to be a dead letter, and returns the letter. It says no where the item is
// to be tried again, or was recorded as owed meanwhile: then it is sent again from there.
func (c *core) noteDeath(it *item, err error) (letter Owed, dies bool) {
	permanent := subscriber.IsPermanent(err) && !errors.As(err, new(wholeBatch))
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.abandoned || !it.dead && !permanent {
		return Owed{}, false
	}
	past := it.failing()
	if !it.dead {
		it.dead, past.err = true, err
		past.attempts++
	}
	if now := time.Now(); past.first.IsZero() {
		past.first, past.last = now, now
	}
	return it.owedLocked(), true
}

// writeDead records the dead letter of an item and shows whether that works.
func (c *core) writeDead(ctx context.Context, it *item, letter Owed) error {
	other, err := c.ower.Dead(ctx, c.Name(), letter)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.stats.DeadError = err.Error()
		c.metrics.deadRefused.Inc()
		return err
	}
	c.stats.DeadError = ""
	it.finished = true
	if it.other = other; other {
		c.noteOtherLocked(it)
	}
	return nil
}
