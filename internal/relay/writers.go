package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/slot"
)

// awaitWritersOf waits until every transaction that writes to the tables now has ended.
func (r *base) awaitWritersOf(ctx context.Context, what string, tables []*outbox.Table) error {
	writers, err := slot.FindWriters(ctx, r.Pool, tables)
	if err != nil {
		return err
	}
	return r.awaitWriters(ctx, what, writers)
}

// awaitWriters waits until none of the transactions runs any more, and says meanwhile in the log and in /ready for whom.
func (r *base) awaitWriters(ctx context.Context, what string, writers []slot.Writer) error {
	defer r.condition.setAwaited("")
	said := time.Time{}
	for begun := time.Now(); ; pause(ctx, 100*time.Millisecond) {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for running transactions: %w", context.Cause(ctx))
		}
		running, err := slot.StillWriting(ctx, r.Pool, writers)
		if err != nil && !postgres.Unavailable(err) && postgres.Code(err) == "" && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if err != nil {
			continue // while Postgres is away they run, perhaps
		}
		if len(running) == 0 {
			return nil
		}
		waited := time.Since(begun).Round(time.Second)
		r.condition.setAwaited(fmt.Sprintf("%s waits for %d running transactions to end that have written to a source's table, for %v now; the oldest is %s: end it if it is forgotten",
			what, len(running), waited, running[0].Who))
		if waited >= time.Second && time.Since(said) >= 30*time.Second {
			said = time.Now()
			r.Log.Info(what+" waits for running transactions to end", "since", begun, "number", len(running), "oldest", running[0].Who)
		}
	}
}

// sayWhoIsWaitedFor says in the log and in /ready what making a slot waits for: every transaction that was running when
// it began. Any role that can connect can have one.
func (r *base) sayWhoIsWaitedFor(ctx context.Context, what string, ended <-chan struct{}) {
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	defer r.condition.setAwaited("")
	for begun := time.Now(); ; {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		oldest, err := slot.OldestTransaction(ctx, r.Pool)
		if err != nil {
			oldest = "unknown"
		}
		r.condition.setAwaited(fmt.Sprintf("%s waits for running transactions to end, for %v now; the oldest is %s: end it if it is forgotten",
			what, time.Since(begun).Round(time.Second), oldest))
		r.Log.Info(what+" waits for running transactions to end", "since", begun, "oldest", oldest)
	}
}
