package outbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
)

// Stored is a row as it stands in the table.
type Stored struct {
	// Event has no Position and no XID. CommittedAt is zero for a published row, because the update that
	// published it is what the server knows then, and where the server knows nothing.
	*event.Event
	// Marks tells that the table has a published column, so that the next two say something.
	Marks     bool
	Published bool
	// PublishedAt is the text of its time, "" where there is none.
	PublishedAt string
	// Attempts are the failed ones over all subscribers as they were written when it was published; 0
	// where the table has no such column.
	Attempts int
}

// FindByID returns the rows with an event id, published or not. It is for people: an id that is no value of
// the column's type makes it read the table. tx must be one of postgres.InTx or postgres.InSnapshot.
func (t *Table) FindByID(ctx context.Context, tx pgx.Tx, eventID string) ([]Stored, error) {
	var tracked bool
	if err := tx.QueryRow(ctx, `SELECT current_setting('track_commit_timestamp')::bool`).Scan(&tracked); err != nil {
		return nil, fmt.Errorf("look up event %q in %s: %w", eventID, t.Source.relation(), err)
	}
	published, publishedAt, attempts, committed := "NULL", "NULL", "NULL", "NULL"
	if t.Published != "" {
		published, publishedAt = "NOT ("+t.unpublished()+")", "t."+advice.Quote(t.Published)+"::text"
		if t.boolean {
			publishedAt = "NULL"
		}
		if t.at != "" {
			publishedAt = "t." + advice.Quote(t.at) + "::text"
		}
	}
	if t.attempts {
		attempts = "t.attempts::bigint"
	}
	if tracked {
		committed = committedAt
	}
	columns := append(t.used(), published, publishedAt, attempts, committed)
	var found []Stored
	err := t.byID(ctx, tx, func(tx pgx.Tx, where string) error {
		found = nil
		sql := "SELECT " + strings.Join(columns, ", ") + " FROM " + t.sql() + " t WHERE " + where
		// The simple protocol, for the reason that Unpublished has.
		rows, err := tx.Query(ctx, sql, pgx.QueryExecModeSimpleProtocol, []string{eventID})
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			values := rows.RawValues()
			event, rest := values[:len(t.Columns)], values[len(t.Columns):]
			s := Stored{Event: t.layout.Event(event), Marks: t.Published != "", Published: string(rest[0]) == "t", PublishedAt: string(rest[1])}
			if rest[2] != nil {
				s.Attempts, _ = strconv.Atoi(string(rest[2])) // a bigint always fits
			}
			if rest[3] != nil && !s.Published {
				µs, err := strconv.ParseInt(string(rest[3]), 10, 64)
				if err != nil {
					return err
				}
				s.CommittedAt = time.UnixMicro(µs).UTC()
			}
			found = append(found, s)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("look up event %q in %s: %w", eventID, t.Source.relation(), err)
	}
	return found, nil
}
