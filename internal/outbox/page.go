package outbox

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
)

// A Choice chooses rows of a table, published or not; an empty field chooses all. Since and Until, which
// is exclusive, are compared with the source's time column, so a row without a time is chosen by neither.
type Choice struct {
	Since, Until time.Time
	Key, Type    string
}

// A Place is where a row stands in the order in which a repair reads its table: the texts of the order
// columns and of the primary key, nil for NULL. In JSON it is an array.
type Place []*string

// A PlacedRow is a row that Page has read.
type PlacedRow struct {
	Event *event.Event
	Place Place
	// Published tells that the relay has marked the row: every subscriber that wants it has it.
	Published bool
	// Unreadable tells that the server cannot send a value of the row, so that its event is an invalid one that says so.
	Unreadable bool
}

// Last returns the place of the table's last row, nil when it has none. tx is as for Page.
func (t *Table) Last(ctx context.Context, tx pgx.Tx) (Place, error) {
	var order []string
	for _, c := range t.place {
		order = append(order, c.sql()+" DESC")
	}
	rows, err := tx.Query(ctx, "SELECT "+t.placeSQL()+" FROM "+t.sql()+" t ORDER BY "+strings.Join(order, ", ")+" LIMIT 1",
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, fmt.Errorf("find the last row of %s: %w", t.Source.relation(), err)
	}
	defer rows.Close()
	var last Place
	for rows.Next() {
		last = placeOf(rows.RawValues())
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("find the last row of %s: %w", t.Source.relation(), err)
	}
	return last, nil
}

// Page reads rows that are chosen, after one place (nil is the beginning) and up to another, in the order
// in which a repair reads them: by the order column, not by commit time. It returns at most limit rows,
// and stops after the events have passed bytes; none means that there are no more.
//
// Position and XID are left to the caller. tx must be one of postgres.InTx or postgres.InSnapshot: only
// with their settings does a row have the bytes that the stream had.
func (t *Table) Page(ctx context.Context, tx pgx.Tx, choice Choice, after, last Place, limit, bytes int) ([]PlacedRow, error) {
	where, args, err := t.chosen(choice)
	if err != nil {
		return nil, err
	}
	if len(last) != len(t.place) || after != nil && len(after) != len(t.place) {
		return nil, fmt.Errorf("read rows of %s: its order or primary key has changed since they were asked for", t.Source.relation())
	}
	if after != nil {
		where += " AND " + t.afterSQL(after, &args)
	}
	where += " AND NOT " + t.afterSQL(last, &args)
	published := "false"
	if t.Marks() {
		published = "NOT (" + t.unpublished() + ")"
	}
	var order []string
	for _, c := range t.place {
		order = append(order, c.sql())
	}
	rest := " FROM " + t.sql() + " t WHERE " + where + " ORDER BY " + strings.Join(order, ", ") + " LIMIT " + strconv.Itoa(limit)
	var page []PlacedRow
	err = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) (err error) {
		page, err = t.readPage(ctx, savepoint, published+", "+t.placeSQL()+rest, args, bytes)
		return err
	})
	if Unreadable(err) {
		page, err = t.readPageRowByRow(ctx, tx, published+", "+t.placeSQL()+rest, args, bytes)
	}
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", t.Source.relation(), err)
	}
	return page, nil
}

// readPage reads the rows of a page whole.
func (t *Table) readPage(ctx context.Context, tx pgx.Tx, sql string, args []any, bytes int) ([]PlacedRow, error) {
	rows, err := tx.Query(ctx, "SELECT "+strings.Join(t.used(), ", ")+", "+sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var page []PlacedRow
	for size := 0; size < bytes && rows.Next(); {
		values := rows.RawValues()
		n := len(t.Columns)
		e := t.layout.Event(values[:n])
		size += e.Size()
		page = append(page, PlacedRow{Event: e, Published: string(values[n]) == "t", Place: placeOf(values[n+1:])})
	}
	rows.Close()
	return page, rows.Err()
}

// readPageRowByRow reads where the rows of a page lie, and then the rows, so that the one that the server cannot send is
// known and the others come as they are.
func (t *Table) readPageRowByRow(ctx context.Context, tx pgx.Tx, sql string, args []any, bytes int) ([]PlacedRow, error) {
	rows, err := tx.Query(ctx, "SELECT t.tableoid::text, t.ctid::text, "+sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []PlacedRow
	var places []place
	for rows.Next() {
		values := rows.RawValues()
		places = append(places, place{string(values[0]), string(values[1])})
		all = append(all, PlacedRow{Published: string(values[2]) == "t", Place: placeOf(values[3:])})
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return nil, err
	}
	var page []PlacedRow
	for size := 0; len(places) > 0 && size < bytes; {
		n := min(len(places), carefulRows)
		read := make(map[place]*rowRead, n)
		if err := t.readPlaces(ctx, tx, places[:n], read); err != nil {
			return nil, err
		}
		for i, p := range places[:n] {
			if row := read[p]; row != nil { // else it has gone
				all[i].Event, all[i].Unreadable = row.event, row.unreadable
				size += row.event.Size()
				page = append(page, all[i])
			}
		}
		places, all = places[n:], all[n:]
	}
	return page, nil
}

// A TypeCount is how many rows of one type are chosen.
type TypeCount struct {
	Type string
	Rows int64
	// Owed ones are waiting or dead for the subscriber; Done ones are not, and stand in its inbox.
	Owed, Done int64
}

// OfSubscriber is a condition on an event and a subscriber of a slot. The arguments are SQL expressions.
type OfSubscriber func(slot, subscriber, source, eventID, occurrence string) string

// Count counts the rows that are chosen by their types, and what of them a subscriber is owed or has done.
// It reads all that is chosen, which without an index is the whole table. tx is as for Page.
func (t *Table) Count(ctx context.Context, tx pgx.Tx, choice Choice, slot, subscriber string, owed, done OfSubscriber) ([]TypeCount, error) {
	where, args, err := t.chosen(choice)
	if err != nil {
		return nil, err
	}
	args = append(args, slot, subscriber, t.Source.Name)
	arg := func(n int) string { return "$" + strconv.Itoa(len(args)-n) }
	is := func(condition OfSubscriber) string {
		return condition(arg(2), arg(1), arg(0), "t.event_id", "t.occurrence")
	}
	rows, err := tx.Query(ctx, `
		SELECT coalesce(c.type, ''), count(*), count(*) FILTER (WHERE c.owed), count(*) FILTER (WHERE c.done AND NOT c.owed) FROM (
			SELECT t.type, `+is(owed)+` AS owed, `+is(done)+` AS done
			FROM (SELECT `+t.part(t.layout.typ)+`::text AS type, `+t.idSQL()+` AS event_id, `+t.occurrenceSQL()+` AS occurrence FROM `+t.sql()+` t WHERE `+where+`) t) c
		GROUP BY 1 ORDER BY 1`, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("count rows of %s: %w", t.Source.relation(), err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[TypeCount])
	if err != nil {
		return nil, fmt.Errorf("count rows of %s: %w", t.Source.relation(), err)
	}
	return counts, nil
}

// Reach tells from when on the table has rows (zero when it has none), and how many rows have no time, so
// that no choice by time finds them. Without a time column it knows nothing.
func (t *Table) Reach(ctx context.Context, tx pgx.Tx) (from time.Time, timeless int64, err error) {
	if !t.timed {
		return time.Time{}, 0, nil
	}
	column := t.part(t.layout.time)
	var oldest *time.Time
	// The extremes of a date type are no time that Go knows.
	err = tx.QueryRow(ctx, `SELECT `+t.momentSQL(`min(`+column+`) FILTER (WHERE isfinite(`+column+`))`)+`, count(*) FILTER (WHERE `+column+` IS NULL)
		FROM `+t.sql()+` t`).Scan(&oldest, &timeless)
	if err != nil {
		return time.Time{}, 0, fmt.Errorf("look how far %s reaches back: %w", t.Source.relation(), err)
	}
	if oldest != nil {
		from = oldest.UTC()
	}
	return from, timeless, nil
}

// chosen is the condition on a row, named t.
func (t *Table) chosen(c Choice) (where string, args []any, err error) {
	conditions := []string{"true"}
	add := func(condition string, value any) {
		args = append(args, value)
		conditions = append(conditions, condition+" $"+strconv.Itoa(len(args)))
	}
	if !c.Since.IsZero() || !c.Until.IsZero() {
		if !t.timed {
			return "", nil, fmt.Errorf("source %q: %s has no column of a date type that tells when an event was: map columns.time, or choose by key or type", t.Source.Name, t.Source.relation())
		}
		column := t.part(t.layout.time)
		if !c.Since.IsZero() {
			args = append(args, c.Since)
			conditions = append(conditions, column+" >= "+t.atSQL("$"+strconv.Itoa(len(args))))
		}
		if !c.Until.IsZero() {
			args = append(args, c.Until)
			conditions = append(conditions, column+" < "+t.atSQL("$"+strconv.Itoa(len(args))))
		}
	}
	if c.Type != "" {
		add(t.part(t.layout.typ)+"::text =", c.Type)
	}
	if c.Key != "" {
		key, err := t.keySQL()
		if err != nil {
			return "", nil, err
		}
		add(key+" =", c.Key)
	}
	return strings.Join(conditions, " AND "), args, nil
}

// keySQL is the key of a row, as Layout.Event finds it.
func (t *Table) keySQL() (string, error) {
	var parts []string
	for _, f := range []field{t.layout.key, t.layout.aggregateID} {
		if !f.there() {
			continue
		}
		if f.steps != nil && !slices.Contains([]string{"json", "jsonb"}, t.bases[f.at]) {
			return "", fmt.Errorf("source %q: its key stands inside column %q of %s, which is no JSON type, so rows cannot be chosen by key: choose by time or type", t.Source.Name, t.Columns[f.at], t.Source.relation())
		}
		parts = append(parts, "nullif("+t.part(f)+"::text, '')")
	}
	return "coalesce(" + strings.Join(append(parts, "''"), ", ") + ")", nil
}

// placeColumn is a column of a Place.
type placeColumn struct {
	name, typ string
	notNull   bool
}

func (c placeColumn) sql() string { return "t." + advice.Quote(c.name) }

// findPlace makes the order total: rows that are equal in the order columns are told apart by the key.
func (t *Table) findPlace(columns []column) {
	names := slices.Clone(t.order)
	for _, name := range t.Key {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		c := columns[slices.IndexFunc(columns, func(c column) bool { return c.name == name })]
		t.place = append(t.place, placeColumn{c.name, c.typ, c.notNull})
		if c.key > 0 && len(t.Key) == 1 {
			break // what follows the primary key decides nothing, and would keep its index from being used
		}
	}
}

func (t *Table) placeSQL() string {
	var columns []string
	for _, c := range t.place {
		columns = append(columns, c.sql())
	}
	return strings.Join(columns, ", ")
}

// afterSQL is the condition for a row to stand behind a place; it is never NULL. NULLs are the last, as in
// ORDER BY.
func (t *Table) afterSQL(place Place, args *[]any) string {
	values := make([]string, len(place))
	simple := true
	for i, c := range t.place {
		simple = simple && c.notNull
		if place[i] == nil {
			values[i] = "NULL::" + c.typ
			continue
		}
		*args = append(*args, *place[i])
		values[i] = "$" + strconv.Itoa(len(*args)) + "::" + c.typ
	}
	if simple { // an index can be used
		return "((" + t.placeSQL() + ") > (" + strings.Join(values, ", ") + "))"
	}
	var either []string
	same := ""
	for i, c := range t.place {
		if place[i] != nil {
			either = append(either, "("+same+"("+c.sql()+" IS NULL OR "+c.sql()+" > "+values[i]+"))")
		}
		same += c.sql() + " IS NOT DISTINCT FROM " + values[i] + " AND "
	}
	if len(either) == 0 {
		return "false"
	}
	return "(" + strings.Join(either, " OR ") + ")"
}

func placeOf(values [][]byte) Place {
	place := make(Place, len(values))
	for i, value := range values {
		if value != nil {
			text := string(value)
			place[i] = &text
		}
	}
	return place
}

// CanChoose returns an error that says why the table cannot choose rows in that way, or nil.
func (t *Table) CanChoose(c Choice) error {
	_, _, err := t.chosen(c)
	return err
}
