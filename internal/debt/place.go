package debt

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
)

// PlaceMarked is for the end of a pass over tables, which has given the rows that are not published places from before on.
// Where a row waits for the subscriber that is marked, and so was not in the pass, everything of the tables that waits
// for it moves to places from at on, in the order of the tables' order columns: of a marked row nothing else is known.
// A subscriber that begins with all rows is owed such ones, and so is one to which the stream has brought again what it
// had. It returns how many deliveries have moved.
//
// The server sorts them, so that their number costs the relay no memory.
func (s *Store) PlaceMarked(ctx context.Context, tx pgx.Tx, subscriber string, tables []*outbox.Table, before, at event.Position, bound event.LSN) (int64, error) {
	found, err := s.waitsMarked(ctx, tx, subscriber, tables, before)
	if err != nil || !found {
		return 0, err
	}
	var moved int64
	for _, table := range tables {
		if !table.Marks() {
			continue
		}
		// "NOT IN" and not "= 'waiting'", which would offer the index of all that wait for each single row.
		const waits = ` AND o.subscriber = $2 AND o.state NOT IN ('dead', 'paid')`
		places := table.PlacesSQL(func(eventID, occurrence string) string {
			return `EXISTS (SELECT FROM walpost.owed o WHERE o.slot = $1 AND o.event_id = ` + eventID + ` AND o.source = $3
				AND o.occurrence = ` + occurrence + waits + `)`
		})
		tag, err := tx.Exec(ctx, `
			UPDATE walpost.owed o SET epoch = $4, commit_lsn = $5::text::pg_lsn, ordinal = $6::bigint + p.n - 1,
			    bound = $7::text::pg_lsn, made_up = true, in_table_order = true
			FROM (`+places+`) p
			WHERE o.slot = $1 AND o.event_id = p.event_id AND o.source = $3 AND o.occurrence = p.occurrence`+waits,
			s.slot, subscriber, table.Source.Name, at.Epoch, at.Commit.String(), at.Ordinal+moved, bound.String())
		if err != nil {
			return 0, fmt.Errorf("bring what %q is owed of source %q into the order of its table: %w", subscriber, table.Source.Name, err)
		}
		moved += tag.RowsAffected()
	}
	return moved, nil
}

// waitsMarked reports whether something of the tables waits for a subscriber before a position although its row is marked.
func (s *Store) waitsMarked(ctx context.Context, tx pgx.Tx, subscriber string, tables []*outbox.Table, before event.Position) (bool, error) {
	for after := (event.Position{Ordinal: -1}); ; {
		var page []*event.Event
		rows, err := tx.Query(ctx, `
			SELECT source, event_id, occurrence, row_id, epoch, commit_lsn::text, ordinal FROM walpost.owed
			WHERE slot = $1 AND subscriber = $2 AND state = 'waiting' AND (epoch, commit_lsn, ordinal) > ($3::int, $4::text::pg_lsn, $5::bigint)
			AND (epoch, commit_lsn, ordinal) < ($6::int, $7::text::pg_lsn, $8::bigint)
			ORDER BY owed.epoch, owed.commit_lsn, owed.ordinal LIMIT $9`, s.slot, subscriber,
			after.Epoch, after.Commit.String(), after.Ordinal, before.Epoch, before.Commit.String(), before.Ordinal, maxRows)
		if err == nil {
			page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*event.Event, error) {
				var e event.Event
				var commit string
				if err := row.Scan(&e.Source, &e.ID, &e.Occurrence, &e.Row, &e.Position.Epoch, &commit, &e.Position.Ordinal); err != nil {
					return nil, err
				}
				var err error
				e.Position.Commit, err = event.ParseLSN(commit)
				return &e, err
			})
		}
		if err != nil {
			return false, fmt.Errorf("read what %q is owed: %w", subscriber, err)
		}
		if len(page) == 0 {
			return false, nil
		}
		for _, table := range tables {
			var events []*event.Event
			for _, e := range page {
				if e.Source == table.Source.Name && e.Row != "" && table.Marks() {
					events = append(events, e)
				}
			}
			published, err := table.FindPublished(ctx, tx, events)
			if err != nil || len(published) > 0 {
				return len(published) > 0, err
			}
		}
		after = page[len(page)-1].Position
	}
}
