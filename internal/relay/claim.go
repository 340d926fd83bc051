package relay

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// markedRelations names the tables whose rows this slot marks.
func markedRelations(tables []*outbox.Table) []string {
	names := []string{}
	for _, table := range tables {
		if table.Marks() {
			names = append(names, table.Source.Schema+"."+table.Source.Table)
		}
	}
	slices.Sort(names)
	return names
}

// claimTables makes this slot the one that marks the tables, or returns why it may not. A mark says that every
// subscriber of one slot is done with an event; with two slots each would leave out in a repair what only the
// other's subscribers have had.
func (r *Relay) claimTables(ctx context.Context, s *session) error {
	return postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		if err := r.fence.Hold(ctx, tx); err != nil {
			return err
		}
		return r.claimTablesTx(ctx, tx, s)
	})
}

func (r *Relay) claimTablesTx(ctx context.Context, tx pgx.Tx, s *session) error {
	if err := store.ClaimTables(ctx, tx, r.Slot, markedRelations(s.tables)); err != nil {
		return err
	}
	return r.refuseMarkedTables(ctx, tx, s)
}

// refuseMarkedTables returns a SetupError where another slot marks one of the tables.
func (r *Relay) refuseMarkedTables(ctx context.Context, tx pgx.Tx, s *session) error {
	others, err := store.MarkedByOthers(ctx, tx, r.Slot, markedRelations(s.tables))
	if err != nil || len(others) == 0 {
		return err
	}
	other := others[0]
	return &wal.SetupError{
		Problem: fmt.Sprintf("slot %q marks the rows of %s already, and a mark stands for the subscribers of one slot", other.Slot, other.Relation),
		Fix: fmt.Sprintf("set mark: off for the source at one of the two slots (docs/RUNBOOK.md, \"Marks fail\"); or, if slot %[1]s is not used any more, "+
			"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %[1]s; DELETE FROM walpost.slots WHERE slot = %[1]s", quoteLiteral(other.Slot))}
}
