package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
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
	// Owed says that a delivery of the event was recorded as owed. Such a row is marked only when nothing
	// of it is waiting or dead any more.
	Owed bool
}

// MarkResult counts what became of the rows.
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
}

// ErrNotVisible means that the row of an event cannot be seen yet: an event can come a moment before its row,
// and long before it while a synchronous standby is away. The same call later finds it.
var ErrNotVisible = errors.New("its row is not visible yet: its commit is in the WAL and not over, because it waits for the flush or a synchronous standby")

// Mark publishes rows by primary key and identity, 1,000 with each statement: it sets the published column where it
// is not set, and adds the attempts. Nothing else is ever written to a row. No row may come twice with one
// identity. With ErrNotVisible the transaction has to be rolled back.
//
// It is for a table that Marks. The confirm waits for it, so its errors say what a person must do.
func (t *Table) Mark(ctx context.Context, tx pgx.Tx, slot string, rows []Marked) (MarkResult, error) {
	var result MarkResult
	if t.Published == "" {
		return result, fmt.Errorf("mark rows of %s: it has no published column", t.Source.relation())
	}
	if err := t.markAll(ctx, tx, slot, rows, &result); err != nil || len(result.Missing) == 0 {
		return result, err
	}
	// What is missing may have become visible since the look, or not be visible yet.
	missing := result.Missing
	xids := make([]uint32, len(missing))
	for i, row := range missing {
		xids[i] = row.XID
	}
	running, err := postgres.StillRunning(ctx, tx, xids)
	if err != nil {
		return result, err
	}
	result.Missing, result.Replaced = nil, 0
	if err := t.markAll(ctx, tx, slot, missing, &result); err != nil {
		return result, err
	}
	for _, row := range result.Missing {
		if running[row.XID] {
			return result, fmt.Errorf("mark event %q of %s: %w", row.Identity.ID, t.Source.relation(), ErrNotVisible)
		}
	}
	if result.Replaced > 0 && t.OnReplaced != nil {
		t.OnReplaced(result.Replaced)
	}
	return result, nil
}

func (t *Table) markAll(ctx context.Context, tx pgx.Tx, slot string, rows []Marked, result *MarkResult) error {
	for batch := range slices.Chunk(rows, maxMarked) {
		if err := t.markBatch(ctx, tx, slot, batch, result); err != nil {
			return t.explain(fmt.Errorf("mark %d rows of %s: %w", len(batch), t.Source.relation(), err))
		}
	}
	return nil
}

func (t *Table) markBatch(ctx context.Context, tx pgx.Tx, slot string, rows []Marked, result *MarkResult) error {
	ids, occurrences := make([]string, len(rows)), make([]string, len(rows))
	attempts, owed := make([]int32, len(rows)), make([]bool, len(rows))
	keys := make([][]string, len(t.Key))
	for i, row := range rows {
		ids[i], occurrences[i] = row.Identity.ID, row.Identity.Occurrence
		attempts[i], owed[i] = int32(row.Attempts), row.Owed
		values, err := t.keyValues(row.Row)
		if err != nil {
			return err
		}
		for k, value := range values {
			keys[k] = append(keys[k], value)
		}
	}
	args := []any{slot, t.Source.Name, ids, occurrences, attempts, owed}
	for _, key := range keys {
		args = append(args, key)
	}
	missed, err := tx.Query(ctx, t.markSQL(), args...)
	if err != nil {
		return err
	}
	defer missed.Close()
	unhit := 0
	for missed.Next() {
		var n int
		var taken, there, published bool
		if err := missed.Scan(&n, &taken, &there, &published); err != nil {
			return err
		}
		unhit++
		switch row := rows[n-1]; {
		case !there:
			result.Missing = append(result.Missing, row)
			if taken {
				result.Replaced++
			}
		case !published && row.Owed:
			result.Owed++
		case published && row.Owed:
			// Whoever paid the last delivery of it has marked it.
		default:
			// Also a row that somebody marked, or deleted, between our snapshot and our lock.
			result.Elsewhere++
		}
	}
	result.Marked += len(rows) - unhit
	return missed.Err()
}

// markSQL marks and returns the rows that were not hit. OFFSET 0 keeps Postgres from reading everything that
// is owed into a hash, where it takes a few rows of it; its estimates of a queue are of another hour. For the
// same reason coalesce hides that a row must be unpublished: an hour ago no row was, and an index of those
// looks like the shortest way, where now it has a million rows, each to be compared with all that are asked for.
func (t *Table) markSQL() string {
	set := quote(t.Published) + " = now()"
	if t.boolean {
		set = quote(t.Published) + " = true"
		if t.at != "" {
			set += ", " + quote(t.at) + " = now()"
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
	return `
		WITH asked AS MATERIALIZED (
			SELECT * FROM unnest($3::text[], $4::text[], $5::int[], $6::bool[]` +
		t.eachKey("", func(_ string, n int, _ string) string { return fmt.Sprintf(", $%d::text[]", 6+n) }) + `)
			WITH ORDINALITY AS a(event_id, occurrence, attempts, owed` +
		t.eachKey("", func(_ string, n int, _ string) string { return fmt.Sprintf(", k%d", n) }) + `, n)
		), hit AS (
			UPDATE ` + t.sql() + ` t SET ` + set + ` FROM asked a
			WHERE ` + same + ` AND ` + event + ` AND coalesce(` + t.unpublished() + `, false)
			AND NOT (a.owed AND EXISTS (
				SELECT FROM walpost.owed o WHERE o.slot = $1 AND o.source = $2
				AND o.event_id = a.event_id AND o.occurrence = a.occurrence AND o.state IN ('waiting', 'dead') OFFSET 0))
			RETURNING a.n
		)
		SELECT a.n, t.` + quote(t.Key[0]) + ` IS NOT NULL, t.` + quote(t.Key[0]) + ` IS NOT NULL AND ` + event + `, NOT coalesce(` + t.unpublished() + `, false)
		FROM asked a LEFT JOIN ` + t.sql() + ` t ON ` + same + `
		WHERE NOT EXISTS (SELECT FROM hit h WHERE h.n = a.n)
		ORDER BY a.n`
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

// explain adds what a person must do to an error of writing to the table.
func (t *Table) explain(err error) error {
	switch postgres.Code(err) {
	case "55000": // object_not_in_prerequisite_state
		return fmt.Errorf("%w: another publication carries updates of this table, which has no replica identity: give it a primary key, or ALTER TABLE %s REPLICA IDENTITY FULL, or take it off that publication", err, t.sql())
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w: GRANT SELECT, UPDATE (%s) ON %s to the relay's role, or set mark: off", err, t.updated(), t.sql())
	}
	return err
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
		quoted = append(quoted, quote(column))
	}
	return strings.Join(quoted, ", ")
}
