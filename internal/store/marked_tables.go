package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// MarkedTable is a table, written schema.table, and the slot that marks its rows.
type MarkedTable struct{ Relation, Slot string }

// ClaimTables makes the slot the one that marks these tables and no others, but for those that another slot marks.
// A slot that is not in walpost.slots any more claims nothing. The relations must be sorted.
func ClaimTables(ctx context.Context, tx pgx.Tx, slot string, relations []string) error {
	_, err := tx.Exec(ctx, `DELETE FROM walpost.marked_tables WHERE slot = $1 AND relation <> ALL ($2)`, slot, relations)
	if err == nil {
		_, err = tx.Exec(ctx, `
			INSERT INTO walpost.marked_tables AS m (relation, slot) SELECT unnest($2::text[]), $1
			ON CONFLICT (relation) DO UPDATE SET slot = excluded.slot
			WHERE m.slot <> excluded.slot AND NOT `+SlotIsKnown(`m.slot`), slot, relations)
	}
	if err != nil {
		return fmt.Errorf("record which tables slot %q marks: %w", slot, err)
	}
	return nil
}

// MarkedByOthers returns those of the tables that another slot marks.
func MarkedByOthers(ctx context.Context, q Querier, slot string, relations []string) ([]MarkedTable, error) {
	rows, err := q.Query(ctx, `
		SELECT m.relation, m.slot FROM walpost.marked_tables m
		WHERE m.relation = ANY ($2) AND m.slot <> $1 AND `+SlotIsKnown(`m.slot`)+` ORDER BY 1`, slot, relations)
	if err != nil {
		return nil, fmt.Errorf("look which slots mark the tables: %w", err)
	}
	others, err := pgx.CollectRows(rows, pgx.RowToStructByPos[MarkedTable])
	if err != nil {
		return nil, fmt.Errorf("look which slots mark the tables: %w", err)
	}
	return others, nil
}
