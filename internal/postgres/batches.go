package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// InTwoBatches runs a transaction (read committed) in two round trips: BEGIN goes out with the statements
// that first queues, COMMIT with those of last, which is called when the results of first are in and may
// depend on them. Locks that the first batch takes are so held for one round trip and not for three.
//
// The server skips what stands in a batch behind a statement that fails, so it reaches COMMIT only when
// everything before it went well. After any other end, an error of first or last included, it rolls back.
func InTwoBatches(ctx context.Context, pool *pgxpool.Pool, first, last func(*pgx.Batch) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if conn.Conn().PgConn().TxStatus() != 'I' {
			_, _ = conn.Exec(ctx, "ROLLBACK") // Release closes a connection that is still in a transaction
		}
		conn.Release()
	}()

	var begin, end pgx.Batch
	// Named, because a server default of repeatable read would take the snapshot of the whole transaction
	// before the first statement, and so before what that one may have waited for.
	begin.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	if err := first(&begin); err != nil {
		return err
	}
	if err := conn.SendBatch(ctx, &begin).Close(); err != nil {
		return err
	}
	if err := last(&end); err != nil {
		return err
	}
	end.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return fmt.Errorf("commit: the server answered %s: %w", tag, pgx.ErrTxCommitRollback)
		}
		return nil
	})
	return conn.SendBatch(ctx, &end).Close()
}
