package relay

import (
	"context"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/jackc/pgx/v5"
)

const (
	retentionInterval = time.Minute
	retentionBatch    = 1000
)

// cleaner deletes rows that are older than their retention, in small batches, so that neither the stream nor the
// application waits for it.
type cleaner struct{ *base }

// run cleans until ctx ends.
func (c *cleaner) run(ctx context.Context, p *parts) {
	ticker := time.NewTicker(retentionInterval)
	defer ticker.Stop()
	for {
		var longest time.Duration
		tables := p.ledger.tables.BySource()
		before, err := c.heldSince(ctx, p)
		if err != nil {
			if ctx.Err() == nil {
				c.Log.Warn("cannot look what the slot would bring again, will try again; no old row is deleted meanwhile", "wait", retentionInterval, "err", err)
			}
			tables = nil
		}
		for _, table := range tables {
			longest = max(longest, table.Source.Retention)
			c.cleanBatches(ctx, "delete old outbox rows", func() (deleted int64, more bool, err error) {
				err = postgres.InTx(ctx, c.Pool, func(tx pgx.Tx) error {
					deleted, more, err = table.Clean(ctx, tx, c.Slot, retentionBatch, before, debt.SparedSQL)
					return err
				})
				return deleted, more, err
			})
		}
		c.cleanBatches(ctx, "delete paid deliveries", func() (int64, bool, error) {
			deleted, err := c.owed.Clean(ctx)
			return int64(deleted), false, err
		})
		if longest > 0 {
			inbox := store.NewInboxCleaner(c.Pool, c.Slot, longest, retentionBatch, c.owed.CanComeAgain)
			c.cleanBatches(ctx, "delete old inbox rows", func() (int64, bool, error) { return inbox.CleanBatch(ctx) })
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// heldSince is the time before which everything that was published is confirmed; zero where all of it is. The slot brings
// the rest again in a repair, and what is marked of that is known by its row.
func (c *cleaner) heldSince(ctx context.Context, p *parts) (time.Time, error) {
	var names []string
	for _, sub := range c.Subscriptions {
		names = append(names, sub.Subscriber.Name())
	}
	since, err := c.owed.HeldSince(ctx, names)
	if err != nil {
		return since, err
	}
	for i := range p.lanes {
		if _, oldest := p.tracker.OpenOf(i); oldest != nil && (since.IsZero() || oldest.CommittedAt.Before(since)) {
			since = oldest.CommittedAt
		}
	}
	if since.IsZero() {
		return since, nil
	}
	// A row is published after its event has committed, and the times of commits are in the order of the WAL but for moments.
	return since.Add(-time.Minute), nil
}

func (c *cleaner) cleanBatches(ctx context.Context, what string, batch func() (int64, bool, error)) {
	for ctx.Err() == nil {
		deleted, more, err := batch()
		if err != nil {
			if ctx.Err() == nil {
				c.Log.Warn("cannot "+what+", will try again", "wait", retentionInterval, "err", err)
			}
			return
		}
		if deleted > 0 {
			c.Log.Debug(what, "rows", deleted)
		}
		if !more {
			return
		}
		pause(ctx, 100*time.Millisecond) // leave the others their share
	}
}
