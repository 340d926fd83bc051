package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Clean deletes at most batch rows that were published longer ago than the source's retention, and tells
// whether there may be more. A row with a delivery of this slot that is waiting or dead stays, whatever its
// age, and so does one that another slot owes by reference: a second slot may read the same table, under
// another name of the source. Rows that someone else has locked are left for the next time. Without retention
// it does nothing.
//
// It reads by the time of publication; a table of many rows wants an index on it. tx must be one of
// postgres.InTx: only with its settings is a row known by its identity.
func (t *Table) Clean(ctx context.Context, tx pgx.Tx, slot string, batch int) (deleted int64, more bool, err error) {
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
	where := "t." + quote(at) + " < now() - $2::interval"
	if t.boolean {
		where += " AND t." + quote(t.Published)
	}
	key := t.eachKey(", ", func(column string, _ int, _ string) string { return "t." + column })
	// LIMIT keeps the look-up from becoming a join, which could read everything that is owed.
	tag, err := tx.Exec(ctx, `
		WITH `+owingSlots+`
		DELETE FROM `+t.sql()+` t WHERE (`+key+`) IN (
			SELECT `+key+` FROM `+t.sql()+` t
			WHERE `+where+` AND NOT EXISTS (
				SELECT FROM owing s CROSS JOIN LATERAL (
					SELECT FROM walpost.owed o WHERE o.slot = s.slot AND o.event_id = `+t.idSQL()+`
					AND o.occurrence = `+t.occurrenceSQL()+` AND o.state IN ('waiting', 'dead') AND (o.slot = $1 OR NOT o.copied) LIMIT 1) o)
			LIMIT $3 FOR UPDATE OF t SKIP LOCKED)`,
		slot, t.Source.Retention, batch)
	if err != nil {
		return 0, false, fmt.Errorf("clean %s: %w", t.Source.relation(), err)
	}
	return tag.RowsAffected(), tag.RowsAffected() == int64(batch), nil
}

// owingSlots are the slots that owe anything, as a query named owing. It steps through the primary key from
// one slot to the next.
const owingSlots = `RECURSIVE steps AS (
		SELECT min(o.slot) AS slot FROM walpost.owed o
		UNION ALL
		SELECT (SELECT min(o.slot) FROM walpost.owed o WHERE o.slot > s.slot) FROM steps s WHERE s.slot IS NOT NULL
	), owing AS MATERIALIZED (SELECT s.slot FROM steps s WHERE s.slot IS NOT NULL)`
