package lane

import (
	"context"
	"fmt"
	"time"
)

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
