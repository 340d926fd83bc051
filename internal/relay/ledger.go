package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

// statementLimit bounds what is asked of Postgres at once: a network that swallows everything must be
// noticed before TCP gives up.
const statementLimit = 30 * time.Second

// tableLedger writes to walpost.slots, walpost.subscribers and the outbox tables.
type tableLedger struct {
	pool  *pgxpool.Pool
	slot  string
	fence *debt.Fence

	tables outbox.Tables
}

// errNotVisible means that rows are in the stream and not in the table: with synchronous replication an
// event can come a moment before its row.
type errNotVisible struct{ rows int }

func (e errNotVisible) Error() string {
	return fmt.Sprintf("%d rows are not visible yet: their commits are in the WAL and not over, because they wait for the flush or a synchronous standby", e.rows)
}

func (l *tableLedger) write(ctx context.Context, finished []*ack.Entry, confirm event.LSN, at *positions) (elsewhere int, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	err = postgres.InTx(ctx, l.pool, func(tx pgx.Tx) error {
		elsewhere = 0
		if err := l.fence.Hold(ctx, tx); err != nil {
			return err
		}
		// Read before the rows are looked for: a transaction that ends in between still counts as running.
		running, err := postgres.ReadRunning(ctx, tx)
		if err != nil {
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
			if invisible := stillInvisible(source, finished, result.Missing, running); invisible > 0 {
				return errNotVisible{invisible}
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
			rows = append(rows, outbox.Marked{Row: e.Event.Row, EventID: e.Event.ID, Attempts: e.Attempts, Owed: e.Owed})
		}
	}
	return rows
}

// stillInvisible counts the events whose row was not found although its transaction still runs, as others
// see it. A row whose transaction has ended is gone: its owner deleted it.
func stillInvisible(source string, finished []*ack.Entry, missing []string, running postgres.Running) int {
	if len(missing) == 0 {
		return 0
	}
	invisible := 0
	for _, e := range finished {
		if e.Event.Source == source && running.Has(e.Event.XID) && slices.Contains(missing, e.Event.Row) {
			invisible++
		}
	}
	return invisible
}

// confirm records the position. Once that is committed the server may be told.
func (l *tableLedger) confirm(ctx context.Context, tx pgx.Tx, lsn event.LSN) error {
	tag, err := tx.Exec(ctx, `
		UPDATE walpost.slots SET confirmed = greatest(confirmed, $2::text::pg_lsn), updated_at = now(),
		    unclean_starts = CASE WHEN confirmed < $2::text::pg_lsn THEN 0 ELSE unclean_starts END
		WHERE slot = $1`, l.slot, lsn.String())
	if err != nil {
		return fmt.Errorf("record %v as confirmed of slot %q: %w", lsn, l.slot, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("record %v as confirmed of slot %q: its row in walpost.slots is gone; restart walpost", lsn, l.slot)
	}
	return nil
}
