package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
)

// Fetch reads rows by primary key, published or not, and returns their events by Row. A row that is gone
// is missing from the map. It builds one statement with all keys in it: a thousand is a good number.
//
// Position, XID and CommittedAt are left to the caller. tx must be one of postgres.InTx or
// postgres.InSnapshot: only with their settings does a row have the bytes that the stream had.
func (t *Table) Fetch(ctx context.Context, tx pgx.Tx, rows []string) (map[string]*event.Event, error) {
	events := make(map[string]*event.Event, len(rows))
	if len(rows) == 0 {
		return events, nil
	}
	keys, err := t.keyColumns(rows)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Source.relation(), err)
	}
	// As in Mark the text is cast to the column's type, so that the key's index is of use.
	where := "(" + t.eachKey(", ", func(column string, _ int, _ string) string { return "t." + column }) + ") IN (SELECT " +
		t.eachKey(", ", func(_ string, n int, typ string) string { return fmt.Sprintf("a.k%d::%s", n, typ) }) + " FROM unnest(" +
		t.eachKey(", ", func(_ string, n int, _ string) string { return fmt.Sprintf("$%d::text[]", n) }) + ") AS a(" +
		t.eachKey(", ", func(_ string, n int, _ string) string { return fmt.Sprintf("k%d", n) }) + "))"
	err = t.read(ctx, tx, where, "", keys, func(e *event.Event) { events[e.Row] = e })
	return events, err
}

// Find reads rows by event id, published or not, in the order in which a repair reads them. An id that
// no row has is missing from the answer. The same is true of it as of Fetch.
func (t *Table) Find(ctx context.Context, tx pgx.Tx, ids []string) ([]*event.Event, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var events []*event.Event
	err := t.byID(ctx, tx, func(tx pgx.Tx, where string) error {
		events = nil
		return t.read(ctx, tx, where, " ORDER BY "+t.orderSQL(false), []any{ids}, func(e *event.Event) { events = append(events, e) })
	})
	return events, err
}

// byID calls query with a condition on a row, named t, whose $1 is an array of event ids.
func (t *Table) byID(ctx context.Context, tx pgx.Tx, query func(tx pgx.Tx, where string) error) error {
	column := t.part(t.layout.id)
	if t.layout.id.steps != nil {
		return query(tx, t.pathIDCondition())
	}
	// The literal without a type takes the column's, so that its index is of use. But an id of another
	// source may be no value of that type; then the column is compared as text, which reads the table.
	err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		return query(savepoint, column+" = ANY ($1)")
	})
	if strings.HasPrefix(postgres.Code(err), "22") { // data exception
		err = query(tx, column+"::text = ANY ($1::text[])")
	}
	return err
}

// pathIDCondition is the condition on a row, named t, whose event id is at the end of a path, to be one of $1. Into jsonb
// each look succeeds, so that an index can be used.
func (t *Table) pathIDCondition() string {
	id := t.layout.id
	condition := t.part(id) + " = ANY ($1::text[])"
	if id.asWritten {
		return condition
	}
	return id.textSQL("t."+advice.Quote(t.Columns[id.at])) + " = ANY ($1::text[]) AND " + condition
}

// read calls fn with the event of each row, named t, for which the condition holds. A row with a value that the
// server cannot send is an invalid event that says so.
func (t *Table) read(ctx context.Context, tx pgx.Tx, where, order string, args []any, fn func(*event.Event)) error {
	sql := "SELECT " + strings.Join(t.used(), ", ") + " FROM " + t.sql() + " t WHERE " + where + order
	var events []*event.Event
	err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		// The simple protocol, for the reason that Unpublished has.
		rows, err := savepoint.Query(ctx, sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			events = append(events, t.layout.Event(rows.RawValues()))
		}
		return rows.Err()
	})
	if Unreadable(err) {
		return t.readRowByRow(ctx, tx, where, order, "NULL", args, func(row found) error {
			fn(row.event)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("read rows of %s: %w", t.Source.relation(), err)
	}
	for _, e := range events {
		fn(e)
	}
	return nil
}

// used are the columns of a row, named t, with NULL for those that are no part of an event: that keeps the
// layout's indexes.
func (t *Table) used() []string {
	columns := make([]string, len(t.Columns))
	for at, name := range t.Columns {
		columns[at] = "NULL"
		if t.layout.uses(at) {
			columns[at] = "t." + advice.Quote(name)
		}
	}
	return columns
}
