package debt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// Record makes deliveries waiting, all or none. A delivery that is recorded already stays as it is, except that a row at a
// made-up position takes the real position of its event. An event is recorded by reference if only walpost deletes the rows
// of its source, and only after this slot has marked them; otherwise with a copy, because the retention of another slot may
// delete the rows of a source with mark: off.
func (s *Store) Record(ctx context.Context, subscriber string, owed []lane.Owed) error {
	if len(owed) == 0 {
		return nil
	}
	if len(owed) >= copyAtLeast {
		err := s.inTx(ctx, func(tx pgx.Tx) error { return s.copyWaiting(ctx, tx, subscriber, owed) })
		if postgres.Code(err) != "23505" { // unique_violation: some are recorded
			return err
		}
	}
	return s.inTx(ctx, func(tx pgx.Tx) error { return s.RecordWaiting(ctx, tx, subscriber, owed) })
}

// RecordWaiting is Record within the caller's transaction, which must be one of postgres.InTx: a slot that
// is being made writes the rows that waited before it, piece by piece, in the transaction that makes it
// ready.
func (s *Store) RecordWaiting(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error {
	return s.recordWaiting(ctx, tx, subscriber, owed, leaves)
}

// RecordRows is RecordWaiting for a pass over the tables: what waits already moves to its place among the rows, so that
// the events of a key are sent in one order, whether they were owed before or not.
func (s *Store) RecordRows(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error {
	return s.recordWaiting(ctx, tx, subscriber, once(owed), moves)
}

// PlaceRows moves those of the deliveries that wait to their places among the rows of a pass over the tables, and records
// nothing.
func (s *Store) PlaceRows(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error {
	for owed = once(owed); len(owed) > 0; {
		n := min(len(owed), maxRows)
		var c columns
		for i := range owed[:n] {
			c.add(&owed[i])
		}
		_, err := tx.Exec(ctx, `
			WITH places AS MATERIALIZED (
				SELECT * FROM unnest($3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::bigint[], $9::bool[], $10::bool[], $11::text[])
				AS u(source, event_id, occurrence, epoch, commit_lsn, ordinal, made_up, in_table_order, bound)
			), waiting AS MATERIALIZED (
				SELECT o.at, u.* FROM places u CROSS JOIN LATERAL ( -- LIMIT keeps it from becoming a join, which could read everything that is owed
					SELECT ctid AS at FROM walpost.owed
					WHERE slot = $1 AND event_id = u.event_id AND source = u.source AND occurrence = u.occurrence AND subscriber = $2
					AND state = 'waiting' LIMIT 1 FOR UPDATE) o
			)
			UPDATE walpost.owed o SET epoch = u.epoch, commit_lsn = u.commit_lsn::pg_lsn, ordinal = u.ordinal, bound = u.bound::pg_lsn,
			    made_up = u.made_up, in_table_order = u.in_table_order
			FROM waiting u WHERE o.ctid = u.at`,
			s.slot, subscriber, c.sources, c.ids, c.occurrences, c.epochs, c.commits, c.ordinals, c.madeUp, c.inTableOrder, c.bounds)
		if err != nil {
			return fmt.Errorf("move deliveries owed to %q to their places: %w", subscriber, err)
		}
		owed = owed[n:]
	}
	return nil
}

// once leaves out all but the first of two deliveries with one identity: a statement changes a row once.
func once(owed []lane.Owed) []lane.Owed {
	seen := make(map[event.Identity]bool, len(owed))
	return slices.DeleteFunc(slices.Clone(owed), func(o lane.Owed) bool {
		again := seen[o.Event.Identity()]
		seen[o.Event.Identity()] = true
		return again
	})
}

func (s *Store) recordWaiting(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed, conflict onConflict) error {
	byReference := s.byReference()
	for len(owed) > 0 {
		n := fit(owed)
		there := false // some were recorded already
		var references, copies columns
		for i := range owed[:n] {
			if byReference(owed[i].Event) {
				references.add(&owed[i])
			} else {
				copies.add(&owed[i])
				copies.addCopy(owed[i].Event)
			}
		}
		for _, write := range []struct {
			sql  string
			rows *columns
			args []any
		}{
			{conflict.references, &references, references.args()},
			{conflict.copies, &copies, append(copies.args(), copies.copyArgs()...)},
		} {
			if len(write.rows.ids) == 0 {
				continue
			}
			inserted, err := tx.Exec(ctx, write.sql, append([]any{s.slot, subscriber, lane.StateWaiting}, write.args...)...)
			if err != nil {
				return fmt.Errorf("record %s as owed to %q: %w", printable.Count(len(write.rows.ids), "delivery"), subscriber, err)
			}
			there = there || int(inserted.RowsAffected()) < len(write.rows.ids)
		}
		if there {
			if err := s.placeMadeUp(ctx, tx, subscriber, owed[:n]); err != nil {
				return err
			}
		}
		owed = owed[n:]
	}
	return nil
}

// byReference reports of an event whether it is recorded without a copy.
func (s *Store) byReference() func(*event.Event) bool {
	tables := s.current()
	return func(e *event.Event) bool {
		table := tables[e.Source]
		return e.Row != "" && table != nil && table.Source.Ours && table.Marks()
	}
}

// placeMadeUp gives those deliveries the positions of their events that were recorded at made-up ones. It is no part of
// the INSERT: ON CONFLICT DO UPDATE refuses two rows with one identity, which are one event.
func (s *Store) placeMadeUp(ctx context.Context, tx pgx.Tx, subscriber string, owed []lane.Owed) error {
	var batch pgx.Batch
	for i := range owed {
		e := owed[i].Event
		if e.Bound != 0 {
			continue
		}
		batch.Queue(`
			UPDATE walpost.owed SET epoch = $6, commit_lsn = $7::text::pg_lsn, ordinal = $8, made_up = false, bound = $7::text::pg_lsn,
			    xid = $9, committed_at = coalesce($10, committed_at)
			WHERE `+theDelivery+` AND made_up AND NOT in_table_order AND state NOT IN ('paid')`,
			append(delivery(s.slot, e.Identity(), subscriber), e.Position.Epoch, e.Position.Commit.String(), e.Position.Ordinal, int64(e.XID), known(e.CommittedAt))...)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("give deliveries that were added the positions of their events: %w", err)
	}
	return nil
}

// LastWaiting returns the position of the last delivery of an epoch that waits for one of the subscribers, zero if none
// does.
func (s *Store) LastWaiting(ctx context.Context, tx pgx.Tx, epoch int32, subscribers []string) (event.Position, error) {
	var commit string
	last := event.Position{Epoch: epoch}
	err := tx.QueryRow(ctx, `
		SELECT o.commit_lsn::text, o.ordinal FROM pg_catalog.unnest($2::text[]) n, LATERAL (
			SELECT commit_lsn, ordinal FROM walpost.owed WHERE slot = $1 AND subscriber = n AND state = 'waiting' AND epoch = $3
			ORDER BY epoch DESC, commit_lsn DESC, ordinal DESC LIMIT 1) o
		ORDER BY o.commit_lsn DESC, o.ordinal DESC LIMIT 1`, s.slot, subscribers, epoch).Scan(&commit, &last.Ordinal)
	if errors.Is(err, pgx.ErrNoRows) {
		return event.Position{}, nil
	}
	if err == nil {
		last.Commit, err = event.ParseLSN(commit)
	}
	if err != nil {
		return event.Position{}, fmt.Errorf("find the last delivery that waits: %w", err)
	}
	return last, nil
}

// fit is how many of the deliveries one statement takes, at least one.
func fit(owed []lane.Owed) int {
	size := 0
	for n := range owed {
		size += owed[n].Event.Size()
		if n == maxRows || n > 0 && size > maxBytes {
			return n
		}
	}
	return len(owed)
}

// Dead records a dead letter, or makes one of a delivery that is recorded in another state. It keeps a
// copy of the event, unless there is nothing to copy: an event that was too large to be held is recorded
// by reference to its row.
func (s *Store) Dead(ctx context.Context, subscriber string, letter lane.Owed) error {
	return s.inTx(ctx, func(tx pgx.Tx) error { return s.recordDead(ctx, tx, subscriber, letter) })
}

// RecordDead is Dead within the caller's transaction, which must be one of postgres.InTx.
func (s *Store) RecordDead(ctx context.Context, tx pgx.Tx, subscriber string, letter lane.Owed) error {
	return s.recordDead(ctx, tx, subscriber, letter)
}

func (s *Store) recordDead(ctx context.Context, tx pgx.Tx, subscriber string, letter lane.Owed) error {
	var row columns
	row.add(&letter)
	args := append([]any{s.slot, subscriber, lane.StateDead}, row.args()...)
	sql := recordDeadReference
	if e := letter.Event; e.Payload != nil || e.Row == "" || e.Invalid == "" {
		row.addCopy(e)
		sql, args = recordDeadCopy, append(args, row.copyArgs()...)
	}
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("record event %q as dead for %q: %w", letter.Event.ID, subscriber, err)
	}
	return nil
}

// columns are deliveries by column, as arguments of unnest. The first group is what every delivery has,
// the second what only a copy has.
type columns struct {
	sources, ids, occurrences []string
	epochs                    []int32
	commits                   []string
	ordinals                  []int64
	madeUp, inTableOrder      []bool
	bounds                    []string
	types, keys, rows         []string
	xids                      []int64
	committed                 []*time.Time
	attempts                  []int32
	next, firstFail, lastFail []*time.Time
	errors, invalid           []string
	lost                      []bool
	sizes                     []int32

	versions, aggregateTypes, aggregateIDs, topics, revisions, times, payloadTypes []string
	payloads, headers                                                              []*string
}

func (c *columns) add(o *lane.Owed) {
	e := o.Event
	c.sources = append(c.sources, e.Source)
	c.ids = append(c.ids, e.ID)
	c.occurrences = append(c.occurrences, e.Occurrence)
	c.epochs = append(c.epochs, e.Position.Epoch)
	c.commits = append(c.commits, e.Position.Commit.String())
	c.ordinals = append(c.ordinals, e.Position.Ordinal)
	c.madeUp = append(c.madeUp, e.Bound != 0)
	c.inTableOrder = append(c.inTableOrder, o.InTableOrder)
	c.bounds = append(c.bounds, e.LastOf().Commit.String())
	c.types = append(c.types, store.Storable(e.Type))
	c.keys = append(c.keys, store.Storable(e.Key))
	c.rows = append(c.rows, e.Row)
	c.xids = append(c.xids, int64(e.XID))
	c.committed = append(c.committed, known(e.CommittedAt))
	c.attempts = append(c.attempts, int32(o.Attempts))
	c.next = append(c.next, known(o.NextAttempt))
	c.firstFail = append(c.firstFail, known(o.FirstFailure))
	c.lastFail = append(c.lastFail, known(o.LastFailure))
	c.errors = append(c.errors, reason(o.Err))
	c.invalid = append(c.invalid, reason(e.Invalid))
	c.lost = append(c.lost, e.Lost)
	c.sizes = append(c.sizes, int32(e.Size()))
}

func (c *columns) addCopy(e *event.Event) {
	c.versions = append(c.versions, store.Storable(e.Version))
	c.aggregateTypes = append(c.aggregateTypes, store.Storable(e.AggregateType))
	c.aggregateIDs = append(c.aggregateIDs, store.Storable(e.AggregateID))
	c.topics = append(c.topics, store.Storable(e.Topic))
	c.revisions = append(c.revisions, store.Storable(e.Revision))
	c.times = append(c.times, store.Storable(e.OccurredAt))
	c.payloadTypes = append(c.payloadTypes, e.PayloadType.String())
	c.payloads = append(c.payloads, body(e.Payload))
	c.headers = append(c.headers, body(e.Headers))
}

func (c *columns) args() []any {
	return []any{c.sources, c.ids, c.occurrences, c.epochs, c.commits, c.ordinals, c.madeUp, c.inTableOrder, c.bounds, c.types, c.keys, c.rows, c.xids, c.committed,
		c.attempts, c.next, c.firstFail, c.lastFail, c.errors, c.invalid, c.lost, c.sizes}
}

func (c *columns) copyArgs() []any {
	return []any{c.versions, c.aggregateTypes, c.aggregateIDs, c.topics, c.revisions, c.times, c.payloadTypes, c.payloads, c.headers}
}

// typed is a column of walpost.owed and the type of its argument. They stand in the order of args and
// copyArgs. pgx knows no pg_lsn[], so positions go as text.
type typed struct{ name, typ string }

var (
	ofEach = []typed{
		{"source", "text"}, {"event_id", "text"}, {"occurrence", "text"}, {"epoch", "int"}, {"commit_lsn", "text"}, {"ordinal", "bigint"},
		{"made_up", "bool"}, {"in_table_order", "bool"}, {"bound", "text"},
		{"event_type", "text"}, {"key", "text"}, {"row_id", "text"}, {"xid", "bigint"}, {"committed_at", "timestamptz"},
		{"attempts", "int"}, {"next_attempt", "timestamptz"}, {"first_failure", "timestamptz"}, {"last_failure", "timestamptz"},
		{"error", "text"}, {"invalid", "text"}, {"lost", "bool"}, {"size", "int"},
	}
	ofCopies = []typed{
		{"version", "text"}, {"aggregate_type", "text"}, {"aggregate_id", "text"}, {"topic", "text"}, {"revision", "text"},
		{"occurred_at", "text"}, {"payload_type", "text"}, {"payload", "text"}, {"headers", "text"},
	}

	leaves              = recordUnless("ON CONFLICT DO NOTHING")
	moves               = recordUnless(becomesPlaced)
	recordUnmarked      = insert(ofEach, false, true) + "\nON CONFLICT (slot, event_id, source, occurrence, subscriber) DO UPDATE SET mark = true"
	recordDeadReference = insert(ofEach, false, false) + becomesDead
	recordDeadCopy      = insert(slices.Concat(ofEach, ofCopies), true, false) + becomesDead + replaces(ofCopies) + ", copied = true"
)

// onConflict are the statements that record references and copies, and what they do with what is recorded already.
type onConflict struct{ references, copies string }

func recordUnless(conflict string) onConflict {
	return onConflict{insert(ofEach, false, false) + "\n" + conflict, insert(slices.Concat(ofEach, ofCopies), true, false) + "\n" + conflict}
}

// becomesPlaced gives what waits its place in the order of the table.
const becomesPlaced = `
	ON CONFLICT (slot, event_id, source, occurrence, subscriber) DO UPDATE SET
	    epoch = excluded.epoch, commit_lsn = excluded.commit_lsn, ordinal = excluded.ordinal, bound = excluded.bound,
	    made_up = excluded.made_up, in_table_order = excluded.in_table_order
	WHERE owed.state = 'waiting'`

// becomesDead keeps the position, and whatever copy there is.
const becomesDead = `
	ON CONFLICT (slot, event_id, source, occurrence, subscriber) DO UPDATE SET state = 'dead', next_attempt = NULL, mark = false,
	    attempts = excluded.attempts, first_failure = excluded.first_failure, last_failure = excluded.last_failure,
	    error = excluded.error, invalid = excluded.invalid, lost = excluded.lost`

// insert writes the rows that its arguments hold by column; $1 to $3 are slot, subscriber and state.
func insert(columns []typed, copied, mark bool) string {
	var names, values, arrays []string
	for i, column := range columns {
		names = append(names, column.name)
		values = append(values, "u."+column.name)
		if column.name == "commit_lsn" || column.name == "bound" {
			values[i] += "::pg_lsn"
		}
		arrays = append(arrays, "$"+strconv.Itoa(4+i)+"::"+column.typ+"[]")
	}
	return "INSERT INTO walpost.owed (slot, subscriber, state, copied, mark, " + strings.Join(names, ", ") + ")\n" +
		"SELECT $1, $2, $3, " + strconv.FormatBool(copied) + ", " + strconv.FormatBool(mark) + ", " + strings.Join(values, ", ") + "\n" +
		"FROM unnest(" + strings.Join(arrays, ", ") + ") AS u(" + strings.Join(names, ", ") + ")"
}

func replaces(columns []typed) string {
	var sql strings.Builder
	for _, column := range columns {
		sql.WriteString(", " + column.name + " = excluded." + column.name)
	}
	return sql.String()
}
