package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
)

// Repairable returns the identities of the rows with one of the event ids that a repair would read.
func (t *Table) Repairable(ctx context.Context, tx pgx.Tx, ids []string) ([]event.Identity, error) {
	condition := ""
	if t.Marks() {
		condition = " AND " + t.unpublished()
	}
	var identities []event.Identity
	err := t.byID(ctx, tx, func(tx pgx.Tx, where string) error {
		rows, err := tx.Query(ctx, "SELECT $2, "+t.idSQL()+", "+t.occurrenceSQL()+" FROM "+t.sql()+" t WHERE "+where+condition,
			pgx.QueryExecModeSimpleProtocol, ids, t.Source.Name)
		if err != nil {
			return err
		}
		identities, err = pgx.CollectRows(rows, pgx.RowToStructByPos[event.Identity])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for unpublished rows of %s: %w", t.Source.relation(), err)
	}
	return identities, nil
}
