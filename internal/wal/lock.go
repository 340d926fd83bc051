package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
)

// lockKey is the advisory lock of the session that may touch a slot. The lease has another one, and no slot's
// name has a slash.
func lockKey(slot string) string {
	return `pg_catalog.hashtextextended('walpost/' || ` + slot + ` || '/session', 0)`
}

// Lock makes this session the only one that may make, drop and read the slot, until it ends. Those are done on
// this session and nowhere else. So when another one gets the lock, nothing can be done to the slot any more by
// who had it before, whether that process knows it or not. The slot itself is no such lock: it is free between
// its making and its first reader, and gone between dropping and making.
//
// A session that is just ending is waited for. It returns ErrSlotInUse while another one has the lock.
func (c *Conn) Lock(ctx context.Context, slot string) error {
	// Both are one transaction, so the limit is gone when the lock is there: making a slot may wait for longer.
	_, err := c.pg.Exec(ctx, `SET LOCAL lock_timeout = '1s'; SELECT pg_catalog.pg_advisory_lock(`+lockKey(literal(slot))+`)`).ReadAll()
	if postgres.Code(err) == "55P03" { // lock_not_available
		return fmt.Errorf("%w: %w", ErrSlotInUse, err)
	}
	if err != nil {
		return fmt.Errorf("lock slot %q: %w", slot, postgres.Mask(err, c.dsn))
	}
	return nil
}

// LockHolder is the process id of the session that has the lock of a slot, 0 for none.
func LockHolder(ctx context.Context, q Querier, slot string) (pid int, err error) {
	err = q.QueryRow(ctx, `
		SELECT pid FROM pg_catalog.pg_locks
		WHERE locktype = 'advisory' AND granted AND objsubid = 1
		AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
		AND (classid::bigint << 32 | objid::bigint) = `+lockKey("$1::text"), slot).Scan(&pid)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("look who has the lock of slot %q: %w", slot, err)
	}
	return pid, nil
}

// Drop drops the slot, which nobody reads.
func (c *Conn) Drop(ctx context.Context, slot string) error {
	if _, err := c.pg.Exec(ctx, "DROP_REPLICATION_SLOT "+quote(slot)).ReadAll(); err != nil {
		return explainSlotError(slot, fmt.Errorf("drop slot %q: %w", slot, postgres.Mask(err, c.dsn)))
	}
	return nil
}

// noticeOurEnd lets the server end what the session does when nobody is there any more to read the answer. The
// second statement is one of this setting already, and what it starts goes on in the command that follows.
// Servers on Windows, for example, cannot tell; there it ends when what it waits for does.
// (PostgreSQL manual, "client_connection_check_interval")
func (c *Conn) noticeOurEnd(ctx context.Context) {
	_, _ = c.pg.Exec(ctx, `SET client_connection_check_interval = '1s'; SELECT 1`).ReadAll()
}
