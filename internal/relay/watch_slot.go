package relay

import (
	"context"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// watchSlot keeps the figures of the slot true until ctx ends, whether the relay leads, stands by or starts: the one that is
// woken by them may have no leader.
func (r *Relay) watchSlot(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	var named []string // of other slots, said in the log
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		slot, err := wal.FindSlot(limited, r.Pool, r.Slot)
		switch {
		case err == nil:
			unread := r.findUnread(limited)
			r.wal.Observe(slot, unread)
			named = r.nameUnread(unread, named)
		case ctx.Err() == nil:
			r.wal.Unobserved()
		}
		cancel()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// findUnread looks for the slots that relays of this database have used under other names, and that no one reads. Before
// the first migration there are none.
func (r *Relay) findUnread(ctx context.Context) []wal.Unread {
	records, err := store.ListSlotRecords(ctx, r.Pool)
	if err != nil {
		return nil
	}
	var others []string
	for _, record := range records {
		if record.Name != r.Slot {
			others = append(others, record.Name)
		}
	}
	unread, err := wal.FindUnread(ctx, r.Pool, others)
	if err != nil {
		return nil
	}
	return unread
}

// nameUnread logs each slot that no one reads, once for as long as no one does.
func (r *Relay) nameUnread(unread []wal.Unread, named []string) (now []string) {
	for _, other := range unread {
		if now = append(now, other.Name); !slices.Contains(named, other.Name) {
			r.Log.Warn("another slot of walpost in this database has no reader, and the server keeps WAL for it: start its relay, "+
				"or, if slot: has a new name, remove the old one as docs/operations.md says (Remove walpost)",
				"slot", other.Name, "retained_bytes", other.RetainedBytes)
		}
	}
	return now
}
