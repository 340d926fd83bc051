package debt

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// Row is a delivery as it is recorded.
type Row struct {
	Subscriber string
	State      lane.State
	lane.Owed
	// RecordedAt is when the delivery became owed.
	RecordedAt time.Time
	// Copied tells that the event is kept with the delivery; else its outbox row is all there is.
	Copied bool
}

// rowColumns and bodyColumns are what collect scans, of a table named o. Without the bodies, noBodies
// takes their place.
const (
	rowColumns = `o.subscriber, o.state, o.source, o.event_id, o.occurrence, o.epoch, o.commit_lsn::text, o.ordinal,
		CASE WHEN o.made_up THEN o.bound::text ELSE '0/0' END, o.event_type, o.key,
		o.row_id, o.xid, o.committed_at, o.attempts, o.next_attempt, o.first_failure, o.last_failure, o.error, o.invalid, o.lost, o.copied,
		o.version, o.aggregate_type, o.aggregate_id, o.topic, o.revision, o.occurred_at, o.payload_type, o.recorded_at`
	bodyColumns = `, o.payload, o.headers`
	noBodies    = `, NULL::text, NULL::text`
)

// collect takes the answer of a query apart.
func collect(rows pgx.Rows, err error) ([]Row, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Row, error) { return scanRow(row) })
}

// scanRow takes a row of rowColumns and bodyColumns apart, and what follows them.
func scanRow(row pgx.CollectableRow, more ...any) (Row, error) {
	var (
		r                            Row
		e                            event.Event
		commit, bound, payloadType   string
		xid                          int64
		committed, next, first, last *time.Time
	)
	err := row.Scan(append([]any{&r.Subscriber, &r.State, &e.Source, &e.ID, &e.Occurrence, &e.Position.Epoch, &commit, &e.Position.Ordinal, &bound,
		&e.Type, &e.Key, &e.Row, &xid, &committed, &r.Attempts, &next, &first, &last, &r.Err, &e.Invalid, &e.Lost, &r.Copied,
		&e.Version, &e.AggregateType, &e.AggregateID, &e.Topic, &e.Revision, &e.OccurredAt, &payloadType, &r.RecordedAt,
		(*[]byte)(&e.Payload), (*[]byte)(&e.Headers)}, more...)...)
	if err != nil {
		return Row{}, err
	}
	if e.Position.Commit, err = event.ParseLSN(commit); err != nil {
		return Row{}, err
	}
	if e.PayloadType, err = event.ParsePayloadType(payloadType); err != nil {
		return Row{}, err
	}
	e.Bound, err = event.ParseLSN(bound)
	e.XID, e.CommittedAt = uint32(xid), or(committed)
	r.NextAttempt, r.FirstFailure, r.LastFailure = or(next), or(first), or(last)
	r.RecordedAt = r.RecordedAt.UTC()
	r.Event = &e
	return r, err
}

// fill reads the events that are owed by reference. One whose row is gone becomes invalid and says so. It
// stops before the first whose row is not visible yet, and returns how many it has filled.
//
// A source that is not in the configuration any more is an error: its rows may well be there, and to
// call them gone would be the loss of them.
func (s *Store) fill(ctx context.Context, tx pgx.Tx, rows []Row) (filled int, err error) {
	references := make(map[string][]string)
	for i := range rows {
		if e := rows[i].Event; !rows[i].Copied {
			references[e.Source] = append(references[e.Source], e.Row)
		}
	}
	tables := s.current()
	filled = len(rows)
	for _, source := range slices.Sorted(maps.Keys(references)) {
		table := tables[source]
		if table == nil {
			return 0, fmt.Errorf("event rows of source %q are owed, but it is not in the configuration: put it back, or discard what is owed of it", source)
		}
		events, err := table.Fetch(ctx, tx, references[source])
		if err != nil {
			return 0, err
		}
		hidden, err := s.hidden(ctx, tx, table, rows, events)
		if err != nil {
			return 0, err
		}
		for i := range rows {
			if e := rows[i].Event; !rows[i].Copied && e.Source == source {
				if hidden[i] {
					filled = min(filled, i)
					break
				}
				rows[i].Event = referred(e, events[e.Row])
				if s.maxEvent > 0 {
					rows[i].Event.Limit(s.maxEvent)
				}
			}
		}
	}
	return filled, nil
}

// hidden tells which of the rows, by index, are not visible yet. It looks again for those that are not among
// events, and adds what it finds now: of what is then neither found nor hidden, the row is gone.
//
// The number of a transaction says nothing on another server than its own, so only what was recorded in the
// present epoch can be hidden.
func (s *Store) hidden(ctx context.Context, tx pgx.Tx, table *outbox.Table, rows []Row, events map[string]*event.Event) (map[int]bool, error) {
	var again []string
	var xids []uint32
	missing := make(map[int]*event.Event)
	for i := range rows {
		e := rows[i].Event
		if found := events[e.Row]; !rows[i].Copied && e.Source == table.Source.Name && !holds(found, e) {
			missing[i] = e
			again, xids = append(again, e.Row), append(xids, e.XID)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	epoch, err := store.SlotEpoch(ctx, tx, s.slot)
	if err != nil {
		return nil, err
	}
	running, err := postgres.StillRunning(ctx, tx, xids)
	if err != nil {
		return nil, err
	}
	found, err := table.Fetch(ctx, tx, again)
	if err != nil {
		return nil, err
	}
	maps.Copy(events, found)
	hidden := make(map[int]bool)
	for i, e := range missing {
		hidden[i] = !holds(events[e.Row], e) && e.Position.Epoch == epoch && running[e.XID]
	}
	return hidden, nil
}

// holds tells whether the row at an event's primary key, nil for none, is the event's and not that of another
// event that was written there since. The tables' names of their sources do not matter to it.
func holds(row, recorded *event.Event) bool {
	return row != nil && row.ID == recorded.ID && row.Occurrence == recorded.Occurrence
}

// referred puts together what is recorded of an event and what its row holds.
func referred(recorded, row *event.Event) *event.Event {
	if !holds(row, recorded) {
		recorded.Lost, recorded.Invalid = true, gone(recorded, row)
		return recorded
	}
	e := *row
	e.Position, e.Bound, e.XID, e.CommittedAt = recorded.Position, recorded.Bound, recorded.XID, recorded.CommittedAt
	e.Type, e.Key = recorded.Type, recorded.Key
	return &e
}

// gone says that the row of an event is not there, and which other event has its primary key, nil for none.
func gone(recorded, row *event.Event) string {
	if row == nil {
		return Gone
	}
	return fmt.Sprintf("%s: its primary key is now that of event %q, occurrence %q; the event that is owed was occurrence %q",
		Gone, row.ID, row.Occurrence, recorded.Occurrence)
}
