package relay

import (
	"context"
	"errors"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/wal"
)

const (
	watchInterval     = 5 * time.Second
	retentionInterval = time.Minute
	retentionBatch    = 1000
)

// watch looks at the slot, the publication and the debt from outside the stream, so that their figures
// do not vanish while the slot is idle, and a change that the stream does not tell is noticed.
func (r *Relay) watch(ctx context.Context, s *session, stop context.CancelCauseFunc) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		r.observe(limited)
		err := r.publicationChanged(limited, s.fingerprint)
		if lead := r.fence.Check(limited, r.Pool); errors.Is(lead, debt.ErrFenced) {
			err = lead
		}
		cancel()
		if err != nil {
			stop(err)
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// observe brings the metrics that come from SQL up to date. While Postgres is away they stay as they were.
func (r *Relay) observe(ctx context.Context) {
	if slot, err := wal.FindSlot(ctx, r.Pool, r.Slot); err == nil && slot != nil {
		r.wal.Observe(*slot)
	}
	if counts, err := r.owed.Counts(ctx); err == nil {
		r.showOwed(counts)
	}
	if lost, err := r.owed.Lost(ctx); err == nil {
		r.mu.Lock()
		r.lost = lost
		r.mu.Unlock()
	}
}

// publicationChanged compares what the publication carries with what it carried when the stream began. A
// table that was taken off it and put back leaves a hole that no message of the stream tells.
func (r *Relay) publicationChanged(ctx context.Context, fingerprint string) error {
	now, err := outbox.Fingerprint(ctx, r.Pool, r.Publication, r.Sources)
	if err != nil || now == fingerprint {
		return nil // an error here is one of the stream as well, and told there
	}
	return r.resetAdvice("what the publication carries was changed while it was streamed: rows may be missing from the stream")
}

// clean deletes what retention allows, in small batches, so that neither the stream nor the application
// waits for it.
func (r *Relay) clean(ctx context.Context, ledger *tableLedger) {
	ticker := time.NewTicker(retentionInterval)
	defer ticker.Stop()
	for {
		var longest time.Duration
		for _, table := range ledger.tables.BySource() {
			longest = max(longest, table.Source.Retention)
			r.cleanAll(ctx, "delete old outbox rows", func() (int64, bool, error) {
				return table.Clean(ctx, r.Pool, r.Slot, retentionBatch)
			})
		}
		r.cleanAll(ctx, "delete paid deliveries", func() (int64, bool, error) {
			deleted, err := r.owed.Clean(ctx)
			return int64(deleted), false, err
		})
		if longest > 0 {
			r.cleanAll(ctx, "delete old inbox rows", func() (int64, bool, error) {
				return outbox.CleanInbox(ctx, r.Pool, r.Slot, longest, retentionBatch)
			})
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Relay) cleanAll(ctx context.Context, what string, batch func() (int64, bool, error)) {
	for ctx.Err() == nil {
		deleted, more, err := batch()
		if err != nil {
			if ctx.Err() == nil {
				r.Log.Warn("cannot "+what+", will try again", "wait", retentionInterval, "err", err)
			}
			return
		}
		if deleted > 0 {
			r.Log.Debug(what, "rows", deleted)
		}
		if !more {
			return
		}
		pause(ctx, 100*time.Millisecond) // leave the others their share
	}
}
