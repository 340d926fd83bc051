package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
)

// maxMarked is the number of rows that one statement marks (as many locks are held at once).
const maxMarked = 1000

// Marked is a row whose event every subscriber that wants it has finished.
type Marked struct {
	// Row is the Row of the event, Identity what the row must still hold, XID the transaction that wrote it, 0
	// where that is not known.
	Row      string
	Identity event.Identity
	XID      uint32
	// Attempts is the number of failed attempts over all subscribers, to be added to the row's.
	Attempts int
	// Owed says that a delivery of the event was recorded as owed: then its row may be marked already, and it is
	// no other poller's doing.
	Owed bool
}

// MarkResult tells what became of the rows.
type MarkResult struct {
	Marked int
	// Owed rows stay unpublished, because something of them is still waiting or dead.
	Owed int
	// Elsewhere rows were published already: by us before a restart, or by another poller.
	Elsewhere int
	// Missing are the rows that are gone: their owner has deleted them, or another event stands there now.
	Missing []Marked
	// Replaced is how many of the missing rows have another event in their place.
	Replaced int
	// Locked are the indexes of rows that another session has locked, Hidden those of rows that are not visible
	// yet (see ErrNotVisible). The same call later marks them.
	Locked, Hidden []int
}

// ErrNotVisible means that the row of an event cannot be seen yet: an event can come a moment before its row,
// and long before it while a synchronous standby is away. The same call later finds it.
var ErrNotVisible = errors.New("its row is not visible yet: its commit is in the WAL and not over, because it waits for the flush or a synchronous standby")

// ErrNotTaken means that the server reports success and has left a row as it was. ExplainMark knows why.
var ErrNotTaken = errors.New("the mark did not take: the row is as it was")

// Owed is the condition under which something of an event is still waiting or dead. The arguments are SQL expressions.
type Owed func(slot, source, eventID, occurrence string) string

// Mark publishes rows by primary key and identity, 1,000 with each statement: it sets the published column where it
// is not set and the event is not owed, and adds the attempts. Nothing else is
// ever written to a row. No row may come twice with one identity. It waits for no lock on a row.
//
// It is for a table that Marks. Its error is a MarkError; ExplainMark says what a person must do.
func (t *Table) Mark(ctx context.Context, tx pgx.Tx, slot string, rows []Marked, owed Owed) (MarkResult, error) {
	result, err := t.mark(ctx, tx, slot, rows, owed)
	if err != nil {
		return result, &MarkError{t, err}
	}
	return result, nil
}

// MarkError is an error of Mark: the rows are as they were.
type MarkError struct {
	table *Table
	err   error
}

func (e *MarkError) Error() string { return e.err.Error() }
func (e *MarkError) Unwrap() error { return e.err }

func (t *Table) mark(ctx context.Context, tx pgx.Tx, slot string, rows []Marked, owed Owed) (MarkResult, error) {
	var result MarkResult
	if t.Published == "" {
		return result, fmt.Errorf("mark rows of %s: it has no published column", t.Source.relation())
	}
	all := make([]int, len(rows))
	for i := range all {
		all[i] = i
	}
	missing, err := t.markAll(ctx, tx, slot, rows, all, owed, &result)
	if err != nil || len(missing) == 0 {
		return result, err
	}
	// What is missing may have become visible since the look, or not be visible yet.
	xids := make([]uint32, len(missing))
	for i, n := range missing {
		xids[i] = rows[n].XID
	}
	running, err := postgres.StillRunning(ctx, tx, xids)
	if err != nil {
		return result, err
	}
	result.Replaced = 0
	if missing, err = t.markAll(ctx, tx, slot, rows, missing, owed, &result); err != nil {
		return result, err
	}
	for _, n := range missing {
		if running[rows[n].XID] {
			result.Hidden = append(result.Hidden, n)
		} else {
			result.Missing = append(result.Missing, rows[n])
		}
	}
	if len(result.Missing) > 0 && t.OnMissing != nil {
		t.OnMissing(len(result.Missing)-result.Replaced, result.Replaced)
	}
	return result, nil
}

// markAll marks the rows with these indexes and returns those that it does not find.
func (t *Table) markAll(ctx context.Context, tx pgx.Tx, slot string, rows []Marked, indexes []int, owed Owed, result *MarkResult) (missing []int, err error) {
	for batch := range slices.Chunk(indexes, maxMarked) {
		notFound, err := t.markBatch(ctx, tx, slot, rows, batch, owed, result)
		if err != nil {
			return nil, fmt.Errorf("mark %s of %s: %w", printable.Count(len(batch), "row"), t.Source.relation(), err)
		}
		missing = append(missing, notFound...)
	}
	return missing, nil
}

func (t *Table) markBatch(ctx context.Context, tx pgx.Tx, slot string, rows []Marked, batch []int, owedSQL Owed, result *MarkResult) (missing []int, err error) {
	keys, ids, occurrences := make([]string, len(batch)), make([]string, len(batch)), make([]string, len(batch))
	attempts := make([]int32, len(batch))
	for i, n := range batch {
		row := rows[n]
		keys[i], ids[i], occurrences[i], attempts[i] = row.Row, row.Identity.ID, row.Identity.Occurrence, int32(row.Attempts)
	}
	columns, err := t.keyColumns(keys)
	if err != nil {
		return nil, err
	}
	args := append([]any{slot, t.Source.Name, ids, occurrences, attempts}, columns...)
	unmarked, err := tx.Query(ctx, t.markSQL(owedSQL), args...)
	if err != nil {
		return nil, err
	}
	var at int
	var taken, there, published, owed, locked bool
	untouched := 0
	_, err = pgx.ForEachRow(unmarked, []any{&at, &taken, &there, &published, &owed, &locked}, func() error {
		n := batch[at-1]
		untouched++
		switch {
		case !there:
			missing = append(missing, n)
			if taken {
				result.Replaced++
			}
		case published && rows[n].Owed: // we marked it when its last delivery was paid
		case published:
			result.Elsewhere++
		case owed:
			result.Owed++
		case locked: // by this statement
			return fmt.Errorf("event %q: %w", rows[n].Identity.ID, ErrNotTaken)
		default: // by another session, or changed by one since the statement began
			result.Locked = append(result.Locked, n)
		}
		return nil
	})
	result.Marked += len(batch) - untouched
	return missing, err
}

// markSQL marks and returns the rows that are not marked now. A row is locked before it is updated, and not if
// another session has it: so one that is locked and not published afterwards has swallowed its update.
//
// Planner statistics of a queue table are always stale. So coalesce hides that a row must be unpublished: an hour ago
// no row was, and an index of those looks like the shortest way, where now it has a million rows, each to be compared
// with all that are asked for.
func (t *Table) markSQL(owedSQL Owed) string {
	set := advice.Quote(t.Published) + " = now()"
	if t.boolean {
		set = advice.Quote(t.Published) + " = true"
		if t.at != "" {
			set += ", " + advice.Quote(t.at) + " = now()"
		}
	}
	if t.attempts {
		set += ", attempts = coalesce(t.attempts, 0) + a.attempts"
	}
	// The text is cast to the column's type and not the column to text: an index must be of use.
	same := t.eachKey(" AND ", func(column string, n int, typ string) string {
		return fmt.Sprintf("t.%s = a.k%d::%s", column, n, typ)
	})
	event := t.sameSQL("a.event_id", "a.occurrence")
	waits := "coalesce(" + t.unpublished() + ", false)"
	owed := owedSQL("$1", "$2", "a.event_id", "a.occurrence")
	return `
		WITH asked AS MATERIALIZED (
			SELECT * FROM unnest($3::text[], $4::text[], $5::int[]` +
		t.eachKey("", func(_ string, n int, _ string) string { return fmt.Sprintf(", $%d::text[]", 5+n) }) + `)
			WITH ORDINALITY AS a(event_id, occurrence, attempts` +
		t.eachKey("", func(_ string, n int, _ string) string { return fmt.Sprintf(", k%d", n) }) + `, n)
		), ours AS MATERIALIZED (
			SELECT a.* FROM asked a JOIN ` + t.sql() + ` t ON ` + same + `
			WHERE ` + event + ` AND ` + waits + ` AND NOT ` + owed + `
			FOR NO KEY UPDATE OF t SKIP LOCKED
		), hit AS (
			UPDATE ` + t.sql() + ` t SET ` + set + ` FROM ours a
			WHERE ` + same + ` AND ` + waits + `
			RETURNING a.n, ` + waits + ` AS waits
		)
		SELECT a.n, t.` + advice.Quote(t.Key[0]) + ` IS NOT NULL, t.` + advice.Quote(t.Key[0]) + ` IS NOT NULL AND ` + event + `, NOT ` + waits + `,
			` + owed + `, EXISTS (SELECT FROM ours h WHERE h.n = a.n)
		FROM asked a LEFT JOIN ` + t.sql() + ` t ON ` + same + `
		WHERE NOT EXISTS (SELECT FROM hit h WHERE h.n = a.n AND NOT h.waits)
		ORDER BY a.n`
}

// FindPublished returns, in order, the indexes of those events whose rows are there and published; all of them have a Row.
// It is for a table that has a published column.
func (t *Table) FindPublished(ctx context.Context, tx pgx.Tx, events []*event.Event) ([]int, error) {
	keys, ids, occurrences := make([]string, len(events)), make([]string, len(events)), make([]string, len(events))
	for i, e := range events {
		keys[i], ids[i], occurrences[i] = e.Row, e.ID, e.Occurrence
	}
	columns, err := t.keyColumns(keys)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		SELECT (a.n - 1)::int FROM unnest($1::text[], $2::text[]`+
		t.eachKey("", func(_ string, n int, _ string) string { return fmt.Sprintf(", $%d::text[]", 2+n) })+`)
		WITH ORDINALITY AS a(event_id, occurrence`+
		t.eachKey("", func(_ string, n int, _ string) string { return fmt.Sprintf(", k%d", n) })+`, n)
		JOIN `+t.sql()+` t ON `+t.eachKey(" AND ", func(column string, n int, typ string) string {
		return fmt.Sprintf("t.%s = a.k%d::%s", column, n, typ)
	})+`
		WHERE `+t.sameSQL("a.event_id", "a.occurrence")+` AND NOT coalesce(`+t.unpublished()+`, false) ORDER BY a.n`,
		append([]any{ids, occurrences}, columns...)...)
	if err != nil {
		return nil, fmt.Errorf("look up marks in %s: %w", t.Source.relation(), err)
	}
	published, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("look up marks in %s: %w", t.Source.relation(), err)
	}
	return published, nil
}

// keyColumns are the primary keys of rows, column by column, as arguments of unnest.
func (t *Table) keyColumns(rows []string) ([]any, error) {
	columns := make([][]string, len(t.Key))
	for k := range columns {
		columns[k] = make([]string, len(rows))
	}
	for i, row := range rows {
		values, err := t.keyValues(row)
		if err != nil {
			return nil, err
		}
		for k, value := range values {
			columns[k][i] = value
		}
	}
	args := make([]any, len(columns))
	for k, column := range columns {
		args[k] = column
	}
	return args, nil
}

// keyValues takes the Row of an event apart: the text of a single key column, a JSON array of several.
func (t *Table) keyValues(row string) ([]string, error) {
	if len(t.Key) == 1 {
		return []string{row}, nil
	}
	var values []string
	if err := json.Unmarshal([]byte(row), &values); err != nil || len(values) != len(t.Key) {
		return nil, fmt.Errorf("row %q is no array of the %d key columns", row, len(t.Key))
	}
	return values, nil
}

// MarkColumns are the columns that Mark writes, and so those that its role needs UPDATE of.
func (t *Table) MarkColumns() []string {
	columns := []string{t.Published}
	if t.at != "" {
		columns = append(columns, t.at)
	}
	if t.attempts {
		columns = append(columns, "attempts")
	}
	return columns
}

func (t *Table) updated() string {
	var quoted []string
	for _, column := range t.MarkColumns() {
		quoted = append(quoted, advice.Quote(column))
	}
	return strings.Join(quoted, ", ")
}
