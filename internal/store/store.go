// Package store owns tables of the schema walpost, one file a table: their SQL stands here and nowhere else. It must
// not decide when anything is read or written; that is for its callers. Start with leader.go (who leads a slot) and
// fence.go (what keeps an old leadership from writing).
package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
