package debt

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

// marks are rows to be marked, by table and primary key: deliveries to several subscribers have one row.
type marks map[*outbox.Table]map[string]*pending

type pending struct {
	outbox.Marked
	xid uint32
}

func (m marks) add(table *outbox.Table, row outbox.Marked, xid uint32) {
	if m[table] == nil {
		m[table] = make(map[string]*pending)
	}
	if other := m[table][row.Row]; other != nil {
		other.Attempts += row.Attempts
		return
	}
	row.Owed = true
	m[table][row.Row] = &pending{row, xid}
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
			rows = append(rows, row.Marked)
		}
		result, err := table.Mark(ctx, tx, s.slot, rows)
		if err != nil {
			return err
		}
		if len(result.Missing) == 0 {
			continue
		}
		if err := ended(ctx, tx, pending, result.Missing); err != nil {
			return err
		}
		// They ended, but perhaps between the mark and this look. What is missing now is gone.
		rows = rows[:0]
		for _, row := range result.Missing {
			rows = append(rows, pending[row].Marked)
		}
		if _, err := table.Mark(ctx, tx, s.slot, rows); err != nil {
			return err
		}
	}
	return nil
}

// ended is an error while the transaction of a row that was not found still runs, as others see it: under
// synchronous replication an event can be delivered a moment before its row is visible. The same call
// later finds it. A row whose transaction has ended is gone: its owner deleted it. (POSTGRES §7)
func ended(ctx context.Context, tx pgx.Tx, pending map[string]*pending, missing []string) error {
	running, err := postgres.ReadRunning(ctx, tx)
	if err != nil {
		return err
	}
	for _, row := range missing {
		if running.Has(pending[row].xid) {
			return fmt.Errorf("mark row %s: it is not visible yet: its commit is in the WAL and not over, because it waits for the flush or a synchronous standby", row)
		}
	}
	return nil
}
