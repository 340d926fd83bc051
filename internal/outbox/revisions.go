package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/backendstart/walpost/internal/event"
)

// Revisions are rows of one aggregate.
type Revisions struct {
	// Events have a revision above the one that was asked for, in the order of their revisions.
	Events []*event.Event
	// Kept tells that the row of the revision that was asked for is still there: a table whose oldest rows go first has
	// every one above it.
	Kept bool
	// More tells that there may be more than what was read.
	More bool
}

// Revisions reads rows of an aggregate from a revision on, published or not: at most limit, and no more after their events
// have passed bytes. An aggregate is named "type/id", or "id" where the table has no column of its type. tx is as for Page.
//
// An index over type, id and revision is used as the columns are.
func (t *Table) Revisions(ctx context.Context, tx pgx.Tx, aggregate string, after int64, limit, bytes int) (Revisions, error) {
	var found Revisions
	if !t.layout.aggregateID.there() || !t.layout.revision.there() {
		return found, fmt.Errorf("source %q: %s has no column of an aggregate's id and its revision: map columns.aggregate_id and columns.revision", t.Source.Name, t.Source.relation())
	}
	var where []string
	var args []any
	is := func(f field, value string) {
		args = append(args, value)
		typ := "pg_catalog.text"
		if f.steps == nil {
			typ = t.types[f.at] // so that the column's index is used
		}
		where = append(where, t.part(f)+" = $"+strconv.Itoa(len(args))+"::"+typ)
	}
	id := aggregate
	if t.layout.aggregateType.there() {
		kind, rest, found := strings.Cut(aggregate, "/")
		if !found {
			return Revisions{}, nil
		}
		id = rest
		is(t.layout.aggregateType, kind)
	}
	is(t.layout.aggregateID, id)
	revision := t.part(t.layout.revision)
	if f := t.layout.revision; f.steps != nil || !slices.Contains([]string{"int2", "int4", "int8"}, t.bases[f.at]) {
		revision = "(" + revision + ")::pg_catalog.text::pg_catalog.int8"
	}
	args = append(args, after)
	where = append(where, revision+" >= $"+strconv.Itoa(len(args))+"::pg_catalog.int8")
	rows, err := tx.Query(ctx, "SELECT "+strings.Join(t.used(), ", ")+", "+revision+"::pg_catalog.int8 FROM "+t.sql()+" t WHERE "+strings.Join(where, " AND ")+
		" ORDER BY "+revision+" LIMIT "+strconv.Itoa(limit+2), append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return Revisions{}, t.explainRevisions(err)
	}
	defer rows.Close()
	for size := 0; rows.Next(); { // the row that was asked for, and one to know whether there is more
		if len(found.Events) == limit || size >= bytes {
			found.More = true
			break
		}
		values := rows.RawValues()
		if n := len(t.Columns); string(values[n]) == strconv.FormatInt(after, 10) {
			found.Kept = true
			continue
		}
		e := t.layout.Event(values[:len(t.Columns)])
		size += e.Size()
		found.Events = append(found.Events, e)
	}
	rows.Close()
	if err := t.explainRevisions(rows.Err()); err != nil {
		return Revisions{}, err
	}
	return found, nil
}

// explainRevisions takes a name that cannot be one of the column's type for one of no row.
func (t *Table) explainRevisions(err error) error {
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && slices.Contains([]string{"22P02", "22003", "22007", "22008", "22021"}, refused.Code): // manual, "Error Codes": class 22
		return fmt.Errorf("%w: %w", ErrNoAggregate, err)
	}
	return fmt.Errorf("read revisions of %s: %w", t.Source.relation(), err)
}

// ErrNoAggregate means that a name cannot be that of an aggregate, as "x" where ids are numbers.
var ErrNoAggregate = errors.New("no aggregate can have this name")
