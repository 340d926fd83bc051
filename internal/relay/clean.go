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
func (c *cleaner) run(ctx context.Context, ledger *tableLedger) {
	ticker := time.NewTicker(retentionInterval)
	defer ticker.Stop()
	for {
		var longest time.Duration
		tables := ledger.tables.BySource()
		for _, table := range tables {
			longest = max(longest, table.Source.Retention)
			c.cleanBatches(ctx, "delete old outbox rows", func() (deleted int64, more bool, err error) {
				err = postgres.InTx(ctx, c.Pool, func(tx pgx.Tx) error {
					deleted, more, err = table.Clean(ctx, tx, c.Slot, retentionBatch, debt.SparedSQL)
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
