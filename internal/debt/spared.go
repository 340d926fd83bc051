package debt

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
)

// Conditions on walpost.owed, for statements that write to other tables. Their arguments are SQL expressions.

// OwedToAnyoneSQL is true of an event of which something is waiting or dead.
//
// OFFSET 0 keeps Postgres from reading everything that is owed into a hash, where it takes a few rows of it: planner
// statistics of a queue table are always stale.
func OwedToAnyoneSQL(slot, source, eventID, occurrence string) string {
	return `EXISTS (SELECT FROM walpost.owed o WHERE o.slot = ` + slot + ` AND o.source = ` + source + `
		AND o.event_id = ` + eventID + ` AND o.occurrence = ` + occurrence + ` AND o.state IN ('waiting', 'dead') OFFSET 0)`
}

// OwedToSQL is true of an event that is waiting or dead for a subscriber.
func OwedToSQL(slot, subscriber, source, eventID, occurrence string) string {
	return `EXISTS (SELECT FROM walpost.owed o WHERE o.slot = ` + slot + ` AND o.subscriber = ` + subscriber + ` AND o.source = ` + source + `
		AND o.event_id = ` + eventID + ` AND o.occurrence = ` + occurrence + ` AND o.state IN ('waiting', 'dead'))`
}

// OwedByIDSQL is true of an event id of which any slot owes something, whatever its source and occurrence: for a person's
// session, in which times have another text than in ours.
func OwedByIDSQL(eventID string) string {
	return "EXISTS (SELECT FROM walpost.owed o WHERE o.event_id = " + eventID + " AND o.state IN ('waiting', 'dead'))"
}

// SparedSQL is true of a row whose event is waiting or dead for a subscriber of the slot, or owed by reference by any
// other slot: a second slot may read the same table, under another name of the source. The statement begins with
// "WITH" and with.
//
// with steps through the primary key from one slot that owes anything to the next. LIMIT keeps the look-up from
// becoming a join, which could read everything that is owed.
func SparedSQL(slot, eventID, occurrence string) (with, condition string) {
	return `RECURSIVE steps AS (
			SELECT min(o.slot) AS slot FROM walpost.owed o
			UNION ALL
			SELECT (SELECT min(o.slot) FROM walpost.owed o WHERE o.slot > s.slot) FROM steps s WHERE s.slot IS NOT NULL
		), owing AS MATERIALIZED (SELECT s.slot FROM steps s WHERE s.slot IS NOT NULL)`,
		`EXISTS (
			SELECT FROM owing s CROSS JOIN LATERAL (
				SELECT FROM walpost.owed o WHERE o.slot = s.slot AND o.event_id = ` + eventID + `
				AND o.occurrence = ` + occurrence + ` AND o.state IN ('waiting', 'dead') AND (o.slot = ` + slot + ` OR NOT o.copied) LIMIT 1) o)`
}

// CanComeAgain returns those of the events that can still come to a subscriber: what is owed to anyone, and what a
// repair would read from the tables. A repair reads the unpublished rows, and where nothing marks rows it may read all.
func (s *Store) CanComeAgain(ctx context.Context, tx pgx.Tx, events []event.Identity) (map[event.Identity]bool, error) {
	again := make(map[event.Identity]bool)
	ids := make(map[string][]string) // by source
	sources, all, occurrences := make([]string, len(events)), make([]string, len(events)), make([]string, len(events))
	for i, e := range events {
		ids[e.Source] = append(ids[e.Source], e.ID)
		sources[i], all[i], occurrences[i] = e.Source, e.ID, e.Occurrence
	}
	tables := s.current()
	for source, of := range ids {
		table := tables[source]
		if table == nil {
			continue // messages, or a source that is not in the configuration any more
		}
		found, err := table.Repairable(ctx, tx, of)
		if err != nil {
			return nil, err
		}
		for _, identity := range found {
			again[identity] = true
		}
	}
	owed, err := tx.Query(ctx, `
		SELECT a.source, a.event_id, a.occurrence FROM unnest($2::text[], $3::text[], $4::text[]) AS a(source, event_id, occurrence)
		WHERE `+OwedToAnyoneSQL("$1", "a.source", "a.event_id", "a.occurrence"), s.slot, sources, all, occurrences)
	if err != nil {
		return nil, err
	}
	var identity event.Identity
	_, err = pgx.ForEachRow(owed, []any{&identity.Source, &identity.ID, &identity.Occurrence}, func() error {
		again[identity] = true
		return nil
	})
	return again, err
}
