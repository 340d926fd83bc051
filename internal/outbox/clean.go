package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/jackc/pgx/v5"
)

// Spared is the condition, on a row whose event has an id and an occurrence, under which retention keeps the row of a
// slot. The arguments are SQL expressions; the statement begins with "WITH" and with.
type Spared func(slot, eventID, occurrence string) (with, condition string)

// Clean deletes at most batch rows that were published longer ago than the source's retention, and reports
// whether there may be more. A row that is spared stays, whatever its age. Rows that another session has locked are
// left for the next time. What was published at before or later stays; the zero time says nothing. Without retention it does
// nothing.
//
// It reads by the time of publication; a table of many rows wants an index on it. tx must be one of
// postgres.InTx: only with its settings is a row known by its identity.
func (t *Table) Clean(ctx context.Context, tx pgx.Tx, slot string, batch int, before time.Time, spared Spared) (deleted int64, more bool, err error) {
	if t.Source.Retention <= 0 {
		return 0, false, nil
	}
	at := t.Published
	if t.boolean {
		at = t.at
	}
	if at == "" {
		return 0, false, fmt.Errorf("clean %s: no column tells when a row was published: set retention: off", t.Source.relation())
	}
	where := "t." + advice.Quote(at) + " < now() - $2::interval"
	args := []any{slot, t.Source.Retention, batch}
	if !before.IsZero() {
		where += " AND t." + advice.Quote(at) + " < $4::timestamptz"
		args = append(args, before)
	}
	if t.boolean {
		where += " AND t." + advice.Quote(t.Published)
	}
	key := t.eachKey(", ", func(column string, _ int, _ string) string { return "t." + column })
	with, stays := spared("$1", t.idSQL(), t.occurrenceSQL())
	tag, err := tx.Exec(ctx, `
		WITH `+with+`
		DELETE FROM `+t.sql()+` t WHERE (`+key+`) IN (
			SELECT `+key+` FROM `+t.sql()+` t
			WHERE `+where+` AND NOT `+stays+`
			LIMIT $3 FOR UPDATE OF t SKIP LOCKED)`,
		args...)
	if err != nil {
		return 0, false, fmt.Errorf("clean %s: %w", t.Source.relation(), err)
	}
	return tag.RowsAffected(), tag.RowsAffected() == int64(batch), nil
}
