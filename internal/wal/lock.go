package wal

import (
	"context"
	"fmt"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/postgres"
)

// ShowLife takes the advisory lock of a key that no session has, and keeps it until the session ends: who finds it there
// knows that what the session was told to do to the slot can still happen.
func (c *Conn) ShowLife(ctx context.Context, key int64) error {
	results, err := c.pg.Exec(ctx, fmt.Sprintf(`SELECT pg_catalog.pg_try_advisory_lock(%d)`, key)).ReadAll()
	if err != nil {
		return fmt.Errorf("take advisory lock %d: %w", key, postgres.Mask(err, c.dsn))
	}
	if string(results[0].Rows[0][0]) != "t" {
		return fmt.Errorf("advisory lock %d: %w", key, ErrSlotInUse)
	}
	return nil
}

// Drop drops the slot, which no one reads.
func (c *Conn) Drop(ctx context.Context, slot string) error {
	if _, err := c.pg.Exec(ctx, "DROP_REPLICATION_SLOT "+advice.Quote(slot)).ReadAll(); err != nil {
		return explainSlotError(slot, fmt.Errorf("drop slot %q: %w", slot, postgres.Mask(err, c.dsn)))
	}
	return nil
}

// noticeOurEnd lets the server end what the session does when no one is there any more to read the answer. The
// second statement is one of this setting already, and what it starts goes on in the command that follows.
// Servers on Windows, for example, cannot tell; there it ends when what it waits for does.
// (PostgreSQL manual, "client_connection_check_interval")
func (c *Conn) noticeOurEnd(ctx context.Context) {
	_, _ = c.pg.Exec(ctx, `SET client_connection_check_interval = '1s'; SELECT 1`).ReadAll()
}
