package debt

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
)

// marks are rows to be marked, by table: deliveries to several subscribers have one row. Two events may have
// one primary key, when it came again.
type marks map[*outbox.Table]map[markedRow]*outbox.Marked

type markedRow struct {
	row   string
	event event.Identity
}

func (m marks) add(table *outbox.Table, row outbox.Marked) {
	if m[table] == nil {
		m[table] = make(map[markedRow]*outbox.Marked)
	}
	key := markedRow{row.Row, row.Identity}
	if other := m[table][key]; other != nil {
		other.Attempts += row.Attempts
		return
	}
	row.Owed = true
	m[table][key] = &row
}

// mark marks the rows of which nothing is owed any more. It is the last thing that its transaction does.
//
// Two transactions that pay the last two deliveries of an event at the same time would each still see
// the other's as owed, and neither would mark the row. So they take turns here: who comes second sees
// what the first has committed.
func (s *Store) mark(ctx context.Context, tx pgx.Tx, marks marks) error {
	if len(marks) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('walpost marks ' || $1, 0))`, s.slot); err != nil {
		return fmt.Errorf("wait for another transaction to mark rows: %w", err)
	}
	for table, pending := range marks {
		rows := make([]outbox.Marked, 0, len(pending))
		for _, row := range pending {
			rows = append(rows, *row)
		}
		if _, err := table.Mark(ctx, tx, s.slot, rows); err != nil {
			return err
		}
	}
	return nil
}
