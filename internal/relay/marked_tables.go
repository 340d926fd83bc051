package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
)

// claimTables makes this slot the one that marks the tables, or returns why it may not. A mark says that every
// subscriber of one slot is done with an event; with two slots each would leave out in a repair what only the
// other's subscribers have had.
func (b *base) claimTables(ctx context.Context, s *session) error {
	return b.inTerm(ctx, func(tx pgx.Tx) error { return b.claimTablesTx(ctx, tx, s) })
}

func (b *base) claimTablesTx(ctx context.Context, tx pgx.Tx, s *session) error {
	if err := store.ClaimTables(ctx, tx, b.Slot, slot.MarkedRelations(s.tables)); err != nil {
		return err
	}
	others, err := store.MarkedByOthers(ctx, tx, b.Slot, slot.MarkedRelations(s.tables))
	if err == nil && len(others) > 0 { // since the plan was made
		err = fmt.Errorf("%w: slot %q marks the rows of %s now", errChangedMeanwhile, others[0].Slot, others[0].Relation)
	}
	return err
}
