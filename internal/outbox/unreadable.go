package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
)

// Unreadable reports whether an error is one of a value that the server has and cannot send: other rows, and other
// columns of the same row, can be read. (PostgreSQL manual, appendix "PostgreSQL Error Codes")
func Unreadable(err error) bool {
	switch postgres.Code(err) {
	case "22021", // character_not_in_repertoire: bytes of an SQL_ASCII database that are no UTF-8
		"22P05", // untranslatable_character
		"53200", // out_of_memory: for one value
		"54000", // program_limit_exceeded: as text it would be longer than a gigabyte
		"XX000", // internal_error: "invalid memory alloc request size"
		"XX001": // data_corrupted: a part of a large value is missing
		return true
	}
	return false
}

// RowByRow returns the same table, whose Unpublished and Retained read rows one by one where that is needed: a row
// with a value that the server cannot send comes as an invalid event without a body that says so, and the
// others come as they are. It is slow; it is for after an Unreadable error.
func (t *Table) RowByRow() *Table {
	careful := *t
	careful.rowByRow = true
	return &careful
}

// carefulRows is how many rows are in memory while rows are read one by one.
const carefulRows = 20

// place is where a row lies, as text.
type place struct{ table, ctid string }

// found is a row that was read one by one.
type found struct {
	event     *event.Event
	committed []byte // as committedAt writes it, nil where that is not known
}

// readRowByRow calls fn with each row, named t, for which the condition holds, in the order given.
func (t *Table) readRowByRow(ctx context.Context, tx pgx.Tx, where, order, committed string, args []any, fn func(found) error) error {
	const cursor = "walpost_row_by_row"
	sql := "DECLARE " + cursor + " NO SCROLL CURSOR FOR SELECT t.tableoid::text, t.ctid::text, " + committed + " FROM " + t.sql() + " t WHERE " + where + order
	if _, err := tx.Exec(ctx, sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...); err != nil {
		return fmt.Errorf("list rows of %s: %w", t.Source.relation(), err)
	}
	for {
		rows, err := tx.Query(ctx, "FETCH "+strconv.Itoa(carefulRows)+" FROM "+cursor, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return fmt.Errorf("list rows of %s: %w", t.Source.relation(), err)
		}
		var places []place
		var times [][]byte
		for rows.Next() {
			values := rows.RawValues()
			places = append(places, place{string(values[0]), string(values[1])})
			times = append(times, append([]byte(nil), values[2]...))
		}
		rows.Close()
		if err := rows.Err(); err != nil {
			return fmt.Errorf("list rows of %s: %w", t.Source.relation(), err)
		}
		if len(places) == 0 {
			_, err := tx.Exec(ctx, "CLOSE "+cursor)
			return err
		}
		read := make(map[place]*rowRead, len(places))
		if err := t.readPlaces(ctx, tx, places, read); err != nil {
			return fmt.Errorf("read rows of %s one by one: %w", t.Source.relation(), err)
		}
		for i, p := range places {
			if read[p] == nil {
				continue // it has gone since the list was made
			}
			row := found{event: read[p].event}
			if len(times[i]) > 0 {
				row.committed = times[i]
			}
			if err := fn(row); err != nil {
				return err
			}
		}
	}
}

// rowRead is the event of a row that was read by its place. Of an unreadable one it says what cannot be sent.
type rowRead struct {
	event      *event.Event
	unreadable bool
}

// readPlaces reads rows by where they lie: together, or in halves where one of them cannot be read. Of one that has gone
// it returns nothing.
func (t *Table) readPlaces(ctx context.Context, tx pgx.Tx, places []place, read map[place]*rowRead) error {
	err := t.readSome(ctx, tx, strings.Join(t.used(), ", "), places, func(p place, values [][]byte) {
		read[p] = &rowRead{event: t.layout.Event(values)}
	})
	switch {
	case !Unreadable(err):
		return err
	case len(places) > 1:
		middle := len(places) / 2
		if err := t.readPlaces(ctx, tx, places[:middle], read); err != nil {
			return err
		}
		return t.readPlaces(ctx, tx, places[middle:], read)
	}
	ev, err := t.readParts(ctx, tx, places[0])
	if err == nil && ev != nil {
		read[places[0]] = &rowRead{event: ev, unreadable: true}
	}
	return err
}

// readParts makes an event of what can be read of a row, column by column. It says what cannot.
func (t *Table) readParts(ctx context.Context, tx pgx.Tx, p place) (*event.Event, error) {
	values := make([][]byte, len(t.Columns))
	var reasons []string
	there := false
	keyed := true
	for at, name := range t.Columns {
		if !t.layout.uses(at) {
			continue
		}
		err := t.readSome(ctx, tx, "t."+advice.Quote(name), []place{p}, func(_ place, value [][]byte) {
			there = true
			if value[0] != nil {
				values[at] = append([]byte{}, value[0]...)
			}
		})
		var refused *pgconn.PgError
		switch {
		case Unreadable(err) && errors.As(err, &refused):
			there = true
			reasons = append(reasons, fmt.Sprintf("the server cannot send column %q: %s (%s)", name, refused.Message, refused.Code))
			for _, key := range t.Key {
				keyed = keyed && key != name
			}
		case err != nil:
			return nil, err
		}
	}
	if !there {
		return nil, nil
	}
	e := t.layout.Event(values)
	e.Payload, e.Headers = nil, nil // what is left of them is not the event
	if !keyed {
		// Nothing refers to the row any more but its place, which a later write may change.
		e.ID, e.Row = "row-"+p.table+"-"+strings.Trim(p.ctid, "()"), ""
	}
	e.Invalid = strings.Join(reasons, "; ")
	return e, nil
}

// readSome reads columns of the rows at places, in a savepoint, so that an error leaves the transaction usable. fn
// is called when all of them were read.
func (t *Table) readSome(ctx context.Context, tx pgx.Tx, columns string, places []place, fn func(place, [][]byte)) error {
	tables, ctids := make([]string, len(places)), make([]string, len(places))
	for i, p := range places {
		tables[i], ctids[i] = p.table, p.ctid
	}
	type row struct {
		at     place
		values [][]byte
	}
	var read []row
	err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		// A place is of use to the server only if it stands alone, so tables and places are matched here.
		rows, err := savepoint.Query(ctx, "SELECT t.tableoid::text, t.ctid::text, "+columns+" FROM "+t.sql()+
			" t WHERE t.ctid = ANY ($1::tid[]) AND t.tableoid = ANY ($2::oid[])", pgx.QueryExecModeSimpleProtocol, ctids, tables)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			values := rows.RawValues()
			r := row{at: place{string(values[0]), string(values[1])}, values: make([][]byte, len(values)-2)}
			for i, value := range values[2:] {
				if value != nil {
					r.values[i] = append([]byte{}, value...)
				}
			}
			read = append(read, r)
		}
		return rows.Err()
	})
	if err != nil {
		return err
	}
	for _, r := range read {
		fn(r.at, r.values)
	}
	return nil
}

// setCommitted sets the commit time that committedAt wrote.
func setCommitted(e *event.Event, committed []byte) error {
	if committed == nil {
		return nil
	}
	µs, err := strconv.ParseInt(string(committed), 10, 64)
	if err != nil {
		return fmt.Errorf("commit time: %w", err)
	}
	e.CommittedAt = time.UnixMicro(µs).UTC()
	return nil
}
