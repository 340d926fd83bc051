package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// ledger is where recorder and marker write; fulfilled by tableLedger.
type ledger interface {
	// write marks the rows of what is finished and records the position, and the subscribers' positions where
	// they are given, in one transaction, or does nothing: with outbox.ErrNotVisible while a row is not there yet.
	// It returns how many rows someone else had marked.
	write(ctx context.Context, finished []*ack.Entry, confirm event.LSN, at *positions) (elsewhere int, err error)
	// markRows is debt.Store.MarkRows.
	markRows(ctx context.Context, query debt.MarkQuery) (debt.MarkRound, error)
	// lockedBy tells who has locked a row, or "".
	lockedBy(ctx context.Context, row debt.LockedRow) (string, error)
}

// tableLedger writes to walpost.slots, walpost.subscribers, walpost.owed and the outbox tables.
type tableLedger struct {
	pool  *postgres.Pool
	slot  string
	fence *store.Fence
	debt  *debt.Store

	tables outbox.Tables
}

// use replaces what is known of the sources' tables.
func (l *tableLedger) use(tables []*outbox.Table) {
	l.tables.Use(tables)
	l.debt.Use(tables)
}

func (l *tableLedger) write(ctx context.Context, finished []*ack.Entry, confirm event.LSN, at *positions) (elsewhere int, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	err = postgres.InTx(ctx, l.pool, func(tx pgx.Tx) error {
		elsewhere = 0
		if err := l.fence.HoldTx(ctx, tx); err != nil {
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
			marked, err := l.mark(ctx, tx, table, rows)
			if err != nil {
				return err
			}
			elsewhere += marked.Elsewhere
		}
		if at != nil {
			if err := at.write(ctx, tx, l.slot); err != nil {
				return err
			}
		}
		return store.RaiseConfirmed(ctx, tx, l.slot, confirm)
	})
	if err != nil {
		return 0, l.explained(ctx, err)
	}
	l.fence.Recorded(confirm)
	return elsewhere, nil
}

// mark marks the rows of events that everyone has finished. A row that another session has locked is kept as one
// that is still to be marked; one that is not visible yet has to be waited for, because no one else knows of it.
func (l *tableLedger) mark(ctx context.Context, tx pgx.Tx, table *outbox.Table, finished []*ack.Entry) (outbox.MarkResult, error) {
	rows := make([]outbox.Marked, len(finished))
	for i, e := range finished {
		rows[i] = outbox.Marked{Row: e.Event.Row, Identity: e.Event.Identity(), XID: e.Event.XID, Attempts: e.Attempts, Owed: e.Owed}
	}
	result, err := table.Mark(ctx, tx, l.slot, rows, debt.OwedToAnyoneSQL)
	if err != nil {
		return result, err
	}
	if len(result.Hidden) > 0 {
		return result, fmt.Errorf("mark event %q: %w", rows[result.Hidden[0]].Identity.ID, outbox.ErrNotVisible)
	}
	var later []lane.Owed
	for _, n := range result.Locked {
		later = append(later, lane.Owed{Event: finished[n].Event, Attempts: finished[n].Attempts})
	}
	return result, l.debt.MarkLater(ctx, tx, later)
}

// rowsOf lists what is finished of a source and has a row to be marked. The row of an event that someone did not get,
// because another row with its identity was recorded, stays unpublished.
func rowsOf(source string, finished []*ack.Entry) []*ack.Entry {
	var rows []*ack.Entry
	for _, e := range finished {
		if e.Event.Source == source && e.Event.Row != "" && !e.Other {
			rows = append(rows, e)
		}
	}
	return rows
}

func (l *tableLedger) markRows(ctx context.Context, query debt.MarkQuery) (debt.MarkRound, error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	round, err := l.debt.MarkRows(ctx, query)
	if err != nil {
		return round, l.explained(ctx, err)
	}
	return round, nil
}

func (l *tableLedger) lockedBy(ctx context.Context, row debt.LockedRow) (who string, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	table := l.tables.BySource()[row.Source]
	if table == nil {
		return "", nil
	}
	err = postgres.InTx(ctx, l.pool, func(tx pgx.Tx) error {
		who, err = table.LockedBy(ctx, tx, row.Row)
		return err
	})
	return who, err
}

// explained adds to an error of a mark why, and looks at the tables again: what is known of them may be out of
// date, the type of a key for example. A table that seems to have lost its published column stays as it was, since
// otherwise its rows would not be marked, without a word.
func (l *tableLedger) explained(ctx context.Context, err error) error {
	var failed *outbox.MarkError
	if !errors.As(err, &failed) {
		return err
	}
	err = outbox.ExplainMark(ctx, l.pool, err)
	var tables []*outbox.Table
	for _, table := range l.tables.BySource() {
		now, lookErr := table.Source.Inspect(ctx, l.pool)
		if lookErr != nil || table.Marks() && !now.Marks() {
			now = table
		}
		now.OnMissing = table.OnMissing
		tables = append(tables, now)
	}
	l.use(tables)
	return err
}

// positions are where the subscribers stand: everything up to secured is finished or owed, everything up
// to finished is not even owed.
type positions struct {
	names             []string
	secured, finished []event.Position
}

func positionsOf(tracker *ack.Tracker, names []string) *positions {
	p := &positions{names: names}
	for i := range names {
		// Debt first: what is owed by then is secured at the latest now.
		finished := tracker.Secured(i)
		if owed := tracker.OwesSince(i); owed != nil && owed.Compare(finished) <= 0 {
			finished = *owed
			finished.Ordinal--
		}
		p.secured = append(p.secured, tracker.Secured(i))
		p.finished = append(p.finished, finished)
	}
	return p
}

// write raises the recorded positions; they never go back.
func (p *positions) write(ctx context.Context, tx pgx.Tx, slot string) error {
	progress := make([]store.SubscriberProgress, len(p.names))
	for i, name := range p.names {
		progress[i] = store.SubscriberProgress{Name: name, Secured: p.secured[i], Finished: p.finished[i]}
	}
	return store.RaisePositions(ctx, tx, slot, progress)
}
