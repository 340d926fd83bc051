package outbox

import (
	"context"
	"fmt"
	"time"
)

// Clean deletes at most batch rows that were published longer ago than the source's retention, and tells
// whether there may be more. A row with a delivery of this slot that is waiting or dead stays, whatever
// its age. Rows that somebody else has locked are left for the next time. Without retention it does
// nothing.
//
// It reads by the time of publication; a table of many rows wants an index on it.
func (t *Table) Clean(ctx context.Context, db DB, slot string, batch int) (deleted int64, more bool, err error) {
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
	where := "t." + quote(at) + " < now() - $3::interval"
	if t.boolean {
		where += " AND t." + quote(t.Published)
	}
	key := t.eachKey(", ", func(column string, _ int, _ string) string { return "t." + column })
	tag, err := db.Exec(ctx, `
		DELETE FROM `+t.sql()+` t WHERE (`+key+`) IN (
			SELECT `+key+` FROM `+t.sql()+` t
			WHERE `+where+` AND NOT EXISTS (
				SELECT FROM walpost.owed o WHERE o.slot = $1 AND o.source = $2
				AND o.event_id = `+t.idSQL()+` AND o.occurrence = `+t.occurrenceSQL()+` AND o.state IN ('waiting', 'dead'))
			LIMIT $4 FOR UPDATE OF t SKIP LOCKED)`,
		slot, t.Source.Name, t.Source.Retention, batch)
	if err != nil {
		return 0, false, fmt.Errorf("clean %s: %w", t.Source.relation(), err)
	}
	return tag.RowsAffected(), tag.RowsAffected() == int64(batch), nil
}

// CleanInbox deletes at most batch rows of walpost.inbox that are older than retention and whose
// subscriber owes nothing of their event, and tells whether there may be more. Retention must not be
// shorter than any source's: a row that is gone lets its effect happen a second time.
func CleanInbox(ctx context.Context, db DB, slot string, retention time.Duration, batch int) (deleted int64, more bool, err error) {
	if retention <= 0 {
		return 0, false, nil
	}
	tag, err := db.Exec(ctx, `
		DELETE FROM walpost.inbox i WHERE (i.slot, i.subscriber, i.event_id, i.source, i.occurrence) IN (
			SELECT i.slot, i.subscriber, i.event_id, i.source, i.occurrence FROM walpost.inbox i
			WHERE i.slot = $1 AND i.done_at < now() - $2::interval AND NOT EXISTS (
				SELECT FROM walpost.owed o WHERE o.slot = i.slot AND o.subscriber = i.subscriber
				AND o.event_id = i.event_id AND o.source = i.source AND o.occurrence = i.occurrence AND o.state IN ('waiting', 'dead'))
			ORDER BY i.done_at
			LIMIT $3 FOR UPDATE OF i SKIP LOCKED)`, slot, retention, batch)
	if err != nil {
		return 0, false, fmt.Errorf("clean walpost.inbox: %w", err)
	}
	return tag.RowsAffected(), tag.RowsAffected() == int64(batch), nil
}
