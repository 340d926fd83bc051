package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
)

// A CleanedInbox deletes old rows of walpost.inbox, in batches. A row that is gone lets its effect happen a
// second time, so a row stays while anything can bring its event again: while the event is owed to any
// subscriber of the slot, and while a repair would read its outbox row. A repair reads the unpublished rows,
// and where nothing marks rows it may read all of them.
type CleanedInbox struct {
	pool      *postgres.Pool
	slot      string
	tables    map[string]*Table
	retention time.Duration
	batch     int
	last      *inboxRow // that was looked at
}

// inboxRow is the primary key of a row, and its time.
type inboxRow struct {
	event.Identity
	Subscriber string
	DoneAt     time.Time
}

// CleanInbox begins with the oldest rows of a slot. Retention must not be shorter than any source's; tables are
// those of the slot's sources.
func CleanInbox(pool *postgres.Pool, slot string, tables map[string]*Table, retention time.Duration, batch int) *CleanedInbox {
	return &CleanedInbox{pool: pool, slot: slot, tables: tables, retention: retention, batch: batch}
}

// Next looks at the next batch of rows that are older than retention, deletes those that are not needed any
// more, and tells whether there may be more.
func (c *CleanedInbox) Next(ctx context.Context) (deleted int64, more bool, err error) {
	if c.retention <= 0 {
		return 0, false, nil
	}
	last := c.last
	err = postgres.InTx(ctx, c.pool, func(tx pgx.Tx) error {
		old, err := c.old(ctx, tx)
		if err != nil || len(old) == 0 {
			return err
		}
		end := old[len(old)-1]
		last, more = &end, len(old) == c.batch
		needed, err := c.needed(ctx, tx, old)
		if err != nil {
			return err
		}
		old = slices.DeleteFunc(old, func(row inboxRow) bool { return needed[row.Identity] })
		deleted, err = c.delete(ctx, tx, old)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("clean walpost.inbox: %w", err)
	}
	c.last = last
	return deleted, more, nil
}

// old locks the next rows in the order of their age.
func (c *CleanedInbox) old(ctx context.Context, tx pgx.Tx) ([]inboxRow, error) {
	where, args := "", []any{c.slot, c.retention, c.batch}
	if c.last != nil {
		where = " AND (i.done_at, i.subscriber, i.event_id, i.source, i.occurrence) > ($4::timestamptz, $5::text, $6::text, $7::text, $8::text)"
		args = append(args, c.last.DoneAt, c.last.Subscriber, c.last.ID, c.last.Source, c.last.Occurrence)
	}
	rows, err := tx.Query(ctx, `
		SELECT i.source, i.event_id, i.occurrence, i.subscriber, i.done_at FROM walpost.inbox i
		WHERE i.slot = $1 AND i.done_at < now() - $2::interval`+where+`
		ORDER BY i.done_at, i.subscriber, i.event_id, i.source, i.occurrence LIMIT $3 FOR UPDATE OF i SKIP LOCKED`, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[inboxRow])
}

// needed are the events of rows that can still come again.
func (c *CleanedInbox) needed(ctx context.Context, tx pgx.Tx, rows []inboxRow) (map[event.Identity]bool, error) {
	needed := make(map[event.Identity]bool)
	ids := make(map[string][]string) // by source
	for _, row := range rows {
		ids[row.Source] = append(ids[row.Source], row.ID)
	}
	for source, of := range ids {
		table := c.tables[source]
		if table == nil {
			continue // messages, or a source that is not in the configuration any more
		}
		found, err := table.repairable(ctx, tx, of)
		if err != nil {
			return nil, err
		}
		for _, identity := range found {
			needed[identity] = true
		}
	}
	sources, all, occurrences := make([]string, len(rows)), make([]string, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		sources[i], all[i], occurrences[i] = row.Source, row.ID, row.Occurrence
	}
	owed, err := tx.Query(ctx, `
		SELECT a.source, a.event_id, a.occurrence FROM unnest($2::text[], $3::text[], $4::text[]) AS a(source, event_id, occurrence)
		CROSS JOIN LATERAL ( -- LIMIT keeps it from becoming a join, which could read everything that is owed
			SELECT FROM walpost.owed o WHERE o.slot = $1 AND o.event_id = a.event_id AND o.source = a.source
			AND o.occurrence = a.occurrence AND o.state IN ('waiting', 'dead') LIMIT 1) o`, c.slot, sources, all, occurrences)
	if err != nil {
		return nil, err
	}
	var identity event.Identity
	_, err = pgx.ForEachRow(owed, []any{&identity.Source, &identity.ID, &identity.Occurrence}, func() error {
		needed[identity] = true
		return nil
	})
	return needed, err
}

func (c *CleanedInbox) delete(ctx context.Context, tx pgx.Tx, rows []inboxRow) (int64, error) {
	var batch pgx.Batch
	for _, row := range rows {
		batch.Queue(`
			DELETE FROM walpost.inbox WHERE slot = $1 AND subscriber = $2 AND event_id = $3 AND source = $4 AND occurrence = $5`,
			c.slot, row.Subscriber, row.ID, row.Source, row.Occurrence)
	}
	return int64(len(rows)), tx.SendBatch(ctx, &batch).Close()
}

// repairable returns the identities of the rows with one of the event ids that a repair would read.
func (t *Table) repairable(ctx context.Context, tx pgx.Tx, ids []string) ([]event.Identity, error) {
	condition := ""
	if t.Marks() {
		condition = " AND " + t.unpublished()
	}
	var identities []event.Identity
	err := t.byID(ctx, tx, func(tx pgx.Tx, where string) error {
		rows, err := tx.Query(ctx, "SELECT $2, "+t.idSQL()+", "+t.occurrenceSQL()+" FROM "+t.sql()+" t WHERE "+where+condition,
			pgx.QueryExecModeSimpleProtocol, ids, t.Source.Name)
		if err != nil {
			return err
		}
		identities, err = pgx.CollectRows(rows, pgx.RowToStructByPos[event.Identity])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for unpublished rows of %s: %w", t.Source.relation(), err)
	}
	return identities, nil
}
