package lane

import (
	"context"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// count finds out which keys are in debt where a subscriber is in debt as a whole: a page at a time, so that a long debt
// takes neither the memory nor the time of a round. It belongs to the goroutine of the debt reader.
//
// Invariant: while it is under way, a key of which something waits is in keys, or is read by a page to come.
type count struct {
	at   time.Time     // when the last page was read
	took time.Duration // by it

	keys   map[string]int // nil while no count is under way
	cursor event.Position // of the pages
	change int64          // by people, when the count began
}

func (c *count) end() { c.keys, c.cursor = nil, event.Position{} }

// note is told of a delivery that was recorded, or got another position: a page may have passed that.
func (c *count) note(ev *event.Event) {
	if c.keys != nil && ev.Position.Compare(c.cursor) <= 0 {
		c.keys[ev.Key] = unknown
	}
}

// countKeys reads a page of the count, and with the last one leaves only those keys in debt of which something waits.
func (d *debtReader) countKeys(ctx context.Context) error {
	l, c := d.l, &d.count
	begins := c.keys == nil
	interval := time.Duration(0)
	if begins {
		interval = countInterval
	}
	began := time.Now()
	if began.Sub(c.at) < max(interval, 20*c.took) {
		return nil
	}
	page, err := l.ower.Count(ctx, l.Name(), c.cursor, readLimit)
	if err != nil {
		return fmt.Errorf("count what is owed: %w", err)
	}
	c.at, c.took = time.Now(), time.Since(began)
	if begins {
		c.keys, c.change = make(map[string]int), page.Change
	}
	c.cursor = page.Reached
	for key, n := range page.Keys {
		if !begins || page.More { // some are paid before the last page
			n = unknown
		}
		c.keys[key] = n
	}
	switch {
	case page.Change != c.change || c.change != d.change || len(c.keys) > maxKeys:
		c.end()
		return nil
	case page.More:
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.narrowToLocked(c.keys)
	c.end()
	return nil
}
