package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
)

// Unpublished calls fn with the event of every row that is not published and visible in tx, invalid ones
// too, and stops at its first error. Rows are read one by one while fn works, so tx cannot be used
// within fn.
//
// They come in commit order where the server has track_commit_timestamp on; rows older than that
// setting come first. Without it they come in the order of the source's order column. (docs/postgres.md §5:
// right only because the relay never touches an unpublished row.)
//
// Position and XID are left to the caller; CommittedAt is zero where the server does not know it. tx
// must be one of postgres.InTx or postgres.InSnapshot: only with their settings does a row have the
// bytes that the stream would have.
func (t *Table) Unpublished(ctx context.Context, tx pgx.Tx, fn func(*event.Event) error) error {
	if t.Published == "" {
		return fmt.Errorf("read unpublished rows of %s: it has no published column, so no one knows which ones wait", t.Source.relation())
	}
	return t.readAll(ctx, tx, t.unpublished(), true, fn)
}

// Retained is Unpublished for all rows that the table has, published or not. Where rows can be marked they come in the
// order of the source's order column, whatever the server tracks: of a marked row it knows when the mark committed.
func (t *Table) Retained(ctx context.Context, tx pgx.Tx, fn func(*event.Event) error) error {
	return t.readAll(ctx, tx, "true", t.Published == "", fn)
}

// readAll calls fn with the event of every row that fits the condition, in commit order where that is asked for and known.
func (t *Table) readAll(ctx context.Context, tx pgx.Tx, condition string, byCommit bool, fn func(*event.Event) error) error {
	var tracked bool
	if err := tx.QueryRow(ctx, `SELECT current_setting('track_commit_timestamp')::bool`).Scan(&tracked); err != nil {
		return fmt.Errorf("read rows of %s: %w", t.Source.relation(), err)
	}
	tracked = tracked && byCommit
	if t.rowByRow {
		return t.readRowByRow(ctx, tx, condition, " ORDER BY "+t.orderSQL(tracked), t.committedSQL(tracked), nil, func(row found) error {
			if err := setCommitted(row.event, row.committed); err != nil {
				return fmt.Errorf("read rows of %s: %w", t.Source.relation(), err)
			}
			return fn(row.event)
		})
	}
	// The simple protocol answers in text made by the types' output functions, as the stream is. A cast
	// to text would not do: bool, char(n) and inet have casts that write something else.
	rows, err := tx.Query(ctx, t.readSQL(condition, tracked), pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return fmt.Errorf("read rows of %s: %w", t.Source.relation(), err)
	}
	defer rows.Close()
	for rows.Next() {
		values := rows.RawValues()
		e := t.layout.Event(values[:len(t.Columns)])
		if err := setCommitted(e, values[len(t.Columns)]); err != nil {
			return fmt.Errorf("read rows of %s: %w", t.Source.relation(), err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read rows of %s: %w", t.Source.relation(), err)
	}
	return nil
}

// When the transaction committed that wrote the row, named t, as it stands: of an unpublished row the one
// that made it. It is NULL for old rows, and an error without track_commit_timestamp. committedAt is in
// microseconds since 1970.
const (
	commitTime  = "pg_xact_commit_timestamp(t.xmin)"
	committedAt = "(extract(epoch FROM " + commitTime + ") * 1000000)::bigint"
)

func (t *Table) readSQL(condition string, tracked bool) string {
	return "SELECT " + strings.Join(t.used(), ", ") + ", " + t.committedSQL(tracked) +
		" FROM " + t.sql() + " t WHERE " + condition + " ORDER BY " + t.orderSQL(tracked)
}

func (t *Table) committedSQL(tracked bool) string {
	if tracked {
		return committedAt
	}
	return "NULL"
}

// In which order a transaction wrote its rows, named t, as long as they stand as it made them: by command, and
// by place where one command made several. A cid has no order of its own.
const withinTransaction = "t.cmin::text::bigint, t.ctid"

// orderSQL is the order in which a repair reads rows, named t: that of the commits where the server tracks them,
// and within a transaction the table's own order, or that of its rows. Where the server tracks nothing, or rows are
// marked, the time has to do; and where there is no time, the age of the transaction.
func (t *Table) orderSQL(tracked bool) string {
	var order []string
	if tracked {
		order = append(order, commitTime+" NULLS FIRST")
	}
	switch {
	case t.ordered:
		for _, name := range t.order {
			order = append(order, "t."+advice.Quote(name))
		}
	case t.written == "":
		order = append(order, "pg_catalog.age(t.xmin) DESC")
	case tracked:
		order = append(order, "CASE WHEN "+commitTime+" IS NULL THEN t."+advice.Quote(t.written)+" END")
	default:
		order = append(order, "t."+advice.Quote(t.written))
	}
	return strings.Join(append(order, withinTransaction), ", ")
}

// PlacesSQL lists the events of the rows for which a condition on their ids and occurrences holds: event_id, occurrence,
// and n, which counts them from 1 in the order of Retained. Two rows with one identity are one event, at the place of the
// first. It is for a table whose rows can be marked.
func (t *Table) PlacesSQL(condition func(eventID, occurrence string) string) string {
	return `SELECT p.event_id, p.occurrence, row_number() OVER (ORDER BY min(p.n)) AS n FROM (
			SELECT ` + t.idSQL() + ` AS event_id, ` + t.occurrenceSQL() + ` AS occurrence, row_number() OVER (ORDER BY ` + t.orderSQL(false) + `) AS n
			FROM ` + t.sql() + ` t WHERE ` + condition(t.idSQL(), t.occurrenceSQL()) + `) p
		GROUP BY p.event_id, p.occurrence`
}

// CountUnpublished counts the rows of the tables that wait. A table without a published column has none.
func CountUnpublished(ctx context.Context, db DB, tables []*Table) (int64, error) {
	var all int64
	for _, t := range tables {
		if t.Published == "" {
			continue
		}
		var n int64
		if err := db.QueryRow(ctx, "SELECT count(*) FROM "+t.sql()+" t WHERE "+t.unpublished()).Scan(&n); err != nil {
			return 0, fmt.Errorf("count unpublished rows of %s: %w", t.Source.relation(), err)
		}
		all += n
	}
	return all, nil
}
