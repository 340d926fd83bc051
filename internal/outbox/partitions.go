package outbox

import (
	"context"
	"fmt"
)

// WaitsIn reports whether one of the partitions has an unpublished row.
func (t *Table) WaitsIn(ctx context.Context, db DB, partitions []uint32) (bool, error) {
	if len(partitions) == 0 {
		return false, nil
	}
	condition := "true"
	if t.Published != "" {
		condition = t.unpublished()
	}
	var waits bool
	err := db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+t.sql()+` t WHERE t.tableoid = ANY ($1) AND `+condition+`)`, partitions).Scan(&waits)
	if err != nil {
		return false, fmt.Errorf("look into new partitions of %s: %w", t.Source.relation(), err)
	}
	return waits, nil
}
