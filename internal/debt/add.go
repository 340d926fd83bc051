package debt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/store"
)

// Add makes events of the outbox tables owed to a subscriber, waiting or dead, and returns how many
// deliveries it added or changed, and which ids it has found nowhere. They are sent before what the stream
// still brings, in the order of their tables. Of an event that the stream still brings, or that a relay has open, the
// lane finds that it was added: it keeps its place in its key, or is not sent at all.
//
// With lane.StateDead it also ends waiting deliveries: that is how a person ends an outage. What is owed
// already stays as it is otherwise. All of it happens, or nothing; more than a thousand events are refused,
// because they are held in memory to bring them into order.
func (s *Store) Add(ctx context.Context, subscriber string, eventIDs []string, state lane.State, who, why string) (total int, missing []string, err error) {
	if state != lane.StateWaiting && state != lane.StateDead {
		return 0, nil, Refused(fmt.Sprintf("add owed events: state %q: it must be %s or %s", state, lane.StateWaiting, lane.StateDead))
	}
	if len(eventIDs) > maxRows {
		return 0, nil, Refused(fmt.Sprintf("add owed events: %d are too many at once: name at most %d, the older ones first", len(eventIDs), maxRows))
	}
	eventIDs = slices.Compact(slices.Sorted(slices.Values(eventIDs)))
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		position, err := s.behindTheStream(ctx, tx, subscriber)
		if err != nil {
			return err
		}
		total, missing, err = s.add(ctx, tx, subscriber, eventIDs, state, position, fmt.Sprintf("made dead by %s: %s", who, why))
		if err != nil {
			return err
		}
		facts := map[string]any{"subscriber": subscriber, "state": state, "deliveries": total, "events": eventIDs[:min(len(eventIDs), maxNoted)]}
		_, err = store.Audit(ctx, tx, s.slot, who, "add", facts, why)
		return err
	})
	if err != nil {
		return 0, nil, fmt.Errorf("add owed events for %q: %w", subscriber, err)
	}
	store.Announce(ctx, s.pool, s.slot)
	return total, missing, nil
}

func (s *Store) add(ctx context.Context, tx pgx.Tx, subscriber string, ids []string, state lane.State, position event.Position, why string) (changed int, missing []string, err error) {
	recorded, err := collect(tx.Query(ctx, `
		SELECT `+rowColumns+bodyColumns+` FROM walpost.owed o
		WHERE o.slot = $1 AND o.subscriber = $2 AND o.event_id = ANY ($3) ORDER BY o.event_id, o.source, o.occurrence FOR UPDATE`, s.slot, subscriber, ids))
	if err != nil {
		return 0, nil, err
	}
	there := make(map[event.Identity]bool)
	found := make(map[string]bool)
	for _, row := range recorded {
		there[row.Event.Identity()] = true
		found[row.Event.ID] = true
	}
	if state == lane.StateDead {
		ended := slices.DeleteFunc(recorded, func(row Row) bool { return row.State != lane.StateWaiting })
		filled, err := s.fill(ctx, tx, ended)
		if err == nil && filled < len(ended) {
			err = fmt.Errorf("event %q: %w: try again", ended[filled].Event.ID, outbox.ErrNotVisible)
		}
		if err != nil {
			return 0, nil, err
		}
		for _, row := range ended {
			row.Err = why
			if _, err := s.recordDead(ctx, tx, subscriber, row.Owed); err != nil {
				return 0, nil, err
			}
			changed++
		}
	}
	var added []lane.Owed
	for _, table := range s.sorted() {
		events, err := table.Find(ctx, tx, ids)
		if err != nil {
			return 0, nil, err
		}
		for _, e := range events {
			found[e.ID] = true
			if there[e.Identity()] {
				continue
			}
			e.Position = position
			position.Ordinal++
			added = append(added, lane.Owed{Event: e})
		}
	}
	bound, err := store.WALEnd(ctx, tx) // after the last look: what it has found committed before that
	if err != nil {
		return 0, nil, err
	}
	for _, o := range added {
		o.Event.Bound = bound
	}
	missing = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return found[id] })
	if state == lane.StateWaiting {
		return len(added), missing, s.RecordWaiting(ctx, tx, subscriber, added)
	}
	for _, letter := range added {
		letter.Err = why
		if _, err := s.recordDead(ctx, tx, subscriber, letter); err != nil {
			return 0, nil, err
		}
	}
	return changed + len(added), missing, nil
}

// behindTheStream is the first free position that is behind what the stream has brought to a subscriber, and before what
// it still brings.
func (s *Store) behindTheStream(ctx context.Context, tx pgx.Tx, subscriber string) (event.Position, error) {
	// So two people do not take the same positions.
	if err := store.AwaitTurn(ctx, tx, s.slot, store.TurnAdd); err != nil {
		return event.Position{}, err
	}
	position, err := FreePosition(ctx, tx, s.slot, subscriber)
	if err == nil {
		_, err = store.IsConfigured(ctx, tx, s.slot, subscriber)
	}
	return position, err
}

// FreePosition is the first free position before all that the stream still brings to a subscriber: those of a repair
// stand there, too. (docs/postgres.md §1)
func FreePosition(ctx context.Context, q store.Querier, slot, subscriber string) (event.Position, error) {
	record, err := store.ReadSlotRecord(ctx, q, slot)
	if err == nil && record == nil {
		err = fmt.Errorf("slot %q is not known in this database: start the relay first, or name the right slot", slot)
	}
	if err != nil {
		return event.Position{}, err
	}
	position := event.Position{Epoch: record.Epoch, Commit: max(record.Confirmed, 1) - 1}
	err = q.QueryRow(ctx, `
		SELECT coalesce(max(ordinal) + 1, 0) FROM walpost.owed WHERE slot = $1 AND subscriber = $2
		AND epoch = $3 AND commit_lsn = $4::text::pg_lsn`,
		slot, subscriber, position.Epoch, position.Commit.String()).Scan(&position.Ordinal)
	if err != nil {
		return position, fmt.Errorf("find a position before the stream: %w", err)
	}
	return position, nil
}

// sorted returns the tables in the order of their sources' names.
func (s *Store) sorted() []*outbox.Table {
	var tables []*outbox.Table
	for _, table := range s.current() {
		tables = append(tables, table)
	}
	slices.SortFunc(tables, func(a, b *outbox.Table) int { return strings.Compare(a.Source.Name, b.Source.Name) })
	return tables
}
