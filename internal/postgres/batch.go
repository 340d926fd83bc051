package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// InBatch runs the statements that queue adds as a transaction (read committed) in one round trip, BEGIN and
// COMMIT included. Locks that they take are so held for the time that the server works, and not while it
// waits for us.
//
// The server skips what stands behind a statement that fails, so it reaches COMMIT only when everything
// before it went well; and if queue returns an error, nothing is sent. An error of a callback comes too late
// to undo anything: callbacks see results when the transaction is over.
func InBatch(ctx context.Context, pool *pgxpool.Pool, queue func(*pgx.Batch) error) error {
	var batch pgx.Batch
	// Read committed is named, because a server default of repeatable read would have everybody see what
	// there was before the first statement, and so before what that one may have waited for.
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED").Fn = result("begin")
	if err := queue(&batch); err != nil {
		return err
	}
	batch.Queue("COMMIT").Fn = result("commit")

	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire session: %w", err)
	}
	defer conn.Release() // closes a connection that is still in a transaction
	err = conn.SendBatch(ctx, &batch).Close()
	if conn.Conn().PgConn().TxStatus() != 'I' {
		_, _ = conn.Exec(ctx, "ROLLBACK") // the error that counts is that of the batch
	}
	if err != nil {
		return fmt.Errorf("transaction: %w", err)
	}
	return nil
}

// result is a callback that says of an error which statement it is of.
func result(of string) func(pgx.BatchResults) error {
	return func(results pgx.BatchResults) error {
		if _, err := results.Exec(); err != nil {
			return fmt.Errorf("%s: %w", of, err)
		}
		return nil
	}
}
