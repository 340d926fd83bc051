package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/advice"
)

// OldestUnpublished is when the oldest row that waits was written, by the table's own time column. It is
// the zero time when no row waits, and when the table has no published or no time column. Without an index
// on the rows that wait it reads the whole table.
func (t *Table) OldestUnpublished(ctx context.Context, db DB) (time.Time, error) {
	if t.Published == "" || !t.layout.time.there() || t.layout.time.steps != nil {
		return time.Time{}, nil
	}
	var oldest *time.Time
	err := db.QueryRow(ctx, `SELECT `+t.momentSQL(`min(`+t.part(t.layout.time)+`)`)+` FROM `+t.sql()+` t WHERE `+t.unpublished()).Scan(&oldest)
	if err != nil {
		return time.Time{}, fmt.Errorf("look for the oldest unpublished row of %s: %w", t.Source.relation(), err)
	}
	if oldest == nil {
		return time.Time{}, nil
	}
	return *oldest, nil
}

// CountAsPublishedSQL is what a person's UPDATE of the table needs to count rows as published that were delivered without a
// mark: what it sets, and a condition on a row, named t, that waits and was written before a moment, an SQL expression.
// id is its event id. The table has a published column; where no time tells when a row was written, all of it is "".
func (t *Table) CountAsPublishedSQL(before string) (set, condition, id string) {
	if !t.timed || t.layout.time.steps != nil {
		return "", "", ""
	}
	set = advice.Quote(t.Published) + " = now()"
	if t.boolean {
		set = advice.Quote(t.Published) + " = true"
		if t.at != "" {
			set += ", " + advice.Quote(t.at) + " = now()"
		}
	}
	return set, t.unpublished() + " AND " + t.momentSQL(t.part(t.layout.time)) + " < " + before, outputSQL(t.part(t.layout.id))
}
