package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/slot"
)

// awaitWritersOf waits until every transaction that writes to the tables now has ended.
func (b *base) awaitWritersOf(ctx context.Context, what string, tables []*outbox.Table) error {
	writers, err := slot.FindWriters(ctx, b.Pool, tables)
	if err != nil {
		return err
	}
	return b.awaitWriters(ctx, what, writers)
}

// awaitWriters waits until none of the transactions runs any more, and meanwhile names it in the log and in /ready.
func (b *base) awaitWriters(ctx context.Context, what string, writers []slot.Writer) error {
	defer b.condition.setAwaited("")
	said := time.Time{}
	for begun := time.Now(); ; pause(ctx, 100*time.Millisecond) {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for running transactions: %w", context.Cause(ctx))
		}
		running, err := slot.StillWriting(ctx, b.Pool, writers)
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
		b.condition.setAwaited(fmt.Sprintf("%s waits for the end of %s that wrote to a source's table, for %v now; the oldest is %s: end it if it is forgotten",
			what, printable.Count(len(running), "transaction"), waited, running[0].Who))
		if waited >= time.Second && time.Since(said) >= 30*time.Second {
			said = time.Now()
			b.Log.Info(what+" waits for running transactions to end", "since", begun, "number", len(running), "oldest", running[0].Who)
		}
	}
}

// sayWhoIsWaitedFor says in the log and in /ready what making a slot waits for: every transaction that was running when
// it began. Any role that can connect can have one.
func (b *base) sayWhoIsWaitedFor(ctx context.Context, what string, ended <-chan struct{}) {
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	defer b.condition.setAwaited("")
	for begun := time.Now(); ; {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		oldest, err := slot.OldestTransaction(ctx, b.Pool)
		if err != nil {
			oldest = "unknown"
		}
		b.condition.setAwaited(fmt.Sprintf("%s waits for running transactions to end, for %v now; the oldest is %s: end it if it is forgotten",
			what, time.Since(begun).Round(time.Second), oldest))
		b.Log.Info(what+" waits for running transactions to end", "since", begun, "oldest", oldest)
	}
}
