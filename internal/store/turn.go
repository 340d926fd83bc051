package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Turn is something at a slot that one transaction at a time may do.
type Turn string

const (
	// TurnAudit is writing into walpost.audit: its numbers become visible in their order.
	TurnAudit Turn = "audit"
	// TurnAdd is choosing the positions of events that a person makes owed.
	TurnAdd Turn = "add"
)

// AwaitTurn waits until the transaction has the turn, which is its until it ends: it locks a row of walpost.turns, which
// it makes if there is none. An advisory lock would do the same, but any role can hold that.
func AwaitTurn(ctx context.Context, tx pgx.Tx, slot string, turn Turn) error {
	// The row is locked although no condition is true that would update it. (PostgreSQL manual, "INSERT", ON CONFLICT)
	_, err := tx.Exec(ctx, `
		INSERT INTO walpost.turns (slot, what) VALUES ($1, $2)
		ON CONFLICT (slot, what) DO UPDATE SET what = excluded.what WHERE false`, slot, turn)
	if err != nil {
		return fmt.Errorf("wait for another change at slot %q: %w", slot, err)
	}
	return nil
}
