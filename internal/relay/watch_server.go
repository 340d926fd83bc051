package relay

import (
	"context"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
	"github.com/jackc/pgx/v5"
)

// serverWatch looks at the server for as long as the process lives, whether the relay leads, stands by or starts.
type serverWatch struct{ *base }

// watchSlot keeps the figures of the slot true until ctx ends, whether the relay leads, stands by or starts: the one that is
// woken by them may have no leader.
func (w *serverWatch) watchSlot(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	var named []string // of other slots, said in the log
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		slot, err := wal.FindSlot(limited, w.Pool, w.Slot)
		switch {
		case err == nil:
			unread := w.findUnread(limited)
			w.slotMetrics.Observe(time.Now(), slot, unread)
			named = w.nameUnread(unread, named)
		case ctx.Err() == nil:
			w.slotMetrics.Unobserved()
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
func (w *serverWatch) findUnread(ctx context.Context) []wal.Unread {
	records, err := store.ListSlotRecords(ctx, w.Pool)
	if err != nil {
		return nil
	}
	var others []string
	for _, record := range records {
		if record.Name != w.Slot {
			others = append(others, record.Name)
		}
	}
	unread, err := wal.FindUnread(ctx, w.Pool, others)
	if err != nil {
		return nil
	}
	return unread
}

// nameUnread logs each slot that no one reads, once for as long as no one does.
func (w *serverWatch) nameUnread(unread []wal.Unread, named []string) (now []string) {
	for _, other := range unread {
		if now = append(now, other.Name); !slices.Contains(named, other.Name) {
			w.Log.Warn("another slot of walpost in this database has no reader, and the server keeps WAL for it: start its relay, "+
				"or, if slot: has a new name, remove the old one as docs/operating.md says (Remove walpost)",
				"slot", other.Name, "retained_bytes", other.RetainedBytes)
		}
	}
	return now
}

// waitsAfter is how long a statement of the relay waits for a lock before it says so.
const waitsAfter = 5 * time.Second

// watchWaits says until ctx ends which statements of the relay, its subscribers and people's changes through it wait for a
// lock, and who holds it: nothing else tells a statement that waits from one that works.
func (w *serverWatch) watchWaits(ctx context.Context) {
	ticker := time.NewTicker(waitsAfter)
	defer ticker.Stop()
	said := make(map[int]time.Time) // by pid: the statement that was named in the log
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		waits, err := w.Pool.FindLockWaits(limited, waitsAfter)
		cancel()
		if err == nil { // any other error is one of the stream as well, and told there
			w.condition.setWaits(waits)
			now := make(map[int]time.Time, len(waits))
			for _, wait := range waits {
				if now[wait.PID] = wait.Since; !said[wait.PID].Equal(wait.Since) {
					w.Log.Warn("a statement waits for a lock", "pid", wait.PID, "since", wait.Since, "statement", wait.Query, "held_by", wait.By)
				}
			}
			said = now
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// watchStrangers looks until ctx ends who else is at the advisory locks by which relays show that they live.
func (w *serverWatch) watchStrangers(ctx context.Context) {
	ticker := time.NewTicker(strangersInterval)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		var found []store.Stranger
		err := postgres.InTx(limited, w.Pool, func(tx pgx.Tx) (err error) {
			found, err = store.FindStrangers(limited, tx, w.Slot)
			return err
		})
		cancel()
		if err == nil { // any other error is one of the stream as well, and told there
			w.condition.setStrangers(found)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
