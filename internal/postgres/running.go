package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// StillRunning returns those of the transactions, by the low 32 bits of their ids, that have not ended, as
// others see it. One whose commit waits for the flush of the WAL or for a synchronous standby has not: what
// it wrote may be in the stream, and is in no snapshot. So a row that is not found is gone only if its
// transaction has ended, and if it is not found by a statement that begins after that.
//
// It asks for the locks that transactions have on their ids until others see their end. Comparing ids would
// not do: they wrap around, and a debt can be older than that. (PostgreSQL manual, "pg_locks")
func StillRunning(ctx context.Context, tx pgx.Tx, xids []uint32) (map[uint32]bool, error) {
	numbers := make([]int64, len(xids))
	for i, xid := range xids {
		numbers[i] = int64(xid)
	}
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT transactionid::text::bigint FROM pg_catalog.pg_locks
		WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted AND transactionid::text::bigint = ANY ($1)`, numbers)
	if err != nil {
		return nil, fmt.Errorf("look which transactions still run: %w", err)
	}
	running := make(map[uint32]bool)
	var xid int64
	if _, err := pgx.ForEachRow(rows, []any{&xid}, func() error {
		running[uint32(xid)] = true
		return nil
	}); err != nil {
		return nil, fmt.Errorf("look which transactions still run: %w", err)
	}
	return running, nil
}
