package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// statementLimit bounds what is asked of Postgres at once: a network that swallows everything must be
// noticed before TCP gives up.
const statementLimit = 30 * time.Second

// tableLedger writes to walpost.slots, walpost.subscribers and the outbox tables.
type tableLedger struct {
	pool  *postgres.Pool
	slot  string
	fence *store.Fence

	tables outbox.Tables
}

func (l *tableLedger) write(ctx context.Context, finished []*ack.Entry, confirm event.LSN, at *positions) (elsewhere int, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	err = postgres.InTx(ctx, l.pool, func(tx pgx.Tx) error {
		elsewhere = 0
		if err := l.fence.Hold(ctx, tx); err != nil {
			return err
		}
		for source, table := range l.tables.BySource() {
			if !table.Marks() {
				continue
			}
			rows := rowsOf(source, finished)
			if len(rows) == 0 {
				continue
			}
			result, err := table.Mark(ctx, tx, l.slot, rows)
			if err != nil {
				return err
			}
			elsewhere += result.Elsewhere
		}
		if at != nil {
			if err := at.write(ctx, tx, l.slot); err != nil {
				return err
			}
		}
		return l.confirm(ctx, tx, confirm)
	})
	if err == nil {
		l.fence.Recorded(confirm)
	}
	return elsewhere, err
}

// rowsOf lists the rows of a source that are to be marked.
func rowsOf(source string, finished []*ack.Entry) []outbox.Marked {
	var rows []outbox.Marked
	for _, e := range finished {
		if e.Event.Source == source && e.Event.Row != "" {
			rows = append(rows, outbox.Marked{Row: e.Event.Row, Identity: e.Event.Identity(), XID: e.Event.XID, Attempts: e.Attempts, Owed: e.Owed})
		}
	}
	return rows
}

// confirm records the position. Once that is committed the server may be told.
func (l *tableLedger) confirm(ctx context.Context, tx pgx.Tx, lsn event.LSN) error {
	tag, err := tx.Exec(ctx, `
		UPDATE walpost.slots SET confirmed = greatest(confirmed, $2::text::pg_lsn), updated_at = now()
		WHERE slot = $1`, l.slot, lsn.String())
	if err != nil {
		return fmt.Errorf("record %v as confirmed of slot %q: %w", lsn, l.slot, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("record %v as confirmed of slot %q: its row in walpost.slots is gone; restart walpost", lsn, l.slot)
	}
	return nil
}
