package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Running are the transactions that have not ended, as others see it. One whose commit waits for the flush of
// the WAL or for a synchronous standby has not: what it wrote may be in the stream, and is in no snapshot. So
// a row that is not found is gone only if its transaction has ended.
type Running struct {
	next    uint32   // no transaction from here on has ended
	running []uint32 // of those before it
}

// ReadRunning reads them as they are at this moment. Read before the rows are looked for it counts a
// transaction that ends in between as running; read after them, its rows have to be looked for again.
func ReadRunning(ctx context.Context, tx pgx.Tx) (Running, error) {
	var r Running
	var next int64
	var running []int64
	err := tx.QueryRow(ctx, `
		SELECT pg_catalog.txid_snapshot_xmax(s), ARRAY(SELECT pg_catalog.txid_snapshot_xip(s))
		FROM pg_catalog.txid_current_snapshot() s`).Scan(&next, &running)
	if err != nil {
		return r, fmt.Errorf("read the snapshot: %w", err)
	}
	r.next = uint32(next)
	for _, xid := range running {
		r.running = append(r.running, uint32(xid))
	}
	return r, nil
}

// Has reports whether a transaction had not ended, by the low 32 bits of its id; 0 is none. Ids wrap around;
// their order is that of the signed difference. (PostgreSQL manual, "Preventing Transaction ID Wraparound
// Failures")
func (r Running) Has(xid uint32) bool {
	return xid != 0 && (int32(xid-r.next) >= 0 || slices.Contains(r.running, xid))
}
