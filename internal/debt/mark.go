package debt

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// forAll stands for the subscriber in a row whose event is owed to no one: only its mark has to wait.
const forAll = ""

// MarkLater keeps events whose rows are still to be marked, within the caller's transaction: every subscriber has
// finished them, or none wants them. MarkRows marks them like what was paid.
func (s *Store) MarkLater(ctx context.Context, tx pgx.Tx, events []lane.Owed) error {
	for chunk := range slices.Chunk(events, maxRows) {
		var rows columns
		for i := range chunk {
			rows.add(&chunk[i])
		}
		if _, err := tx.Exec(ctx, recordUnmarked, append([]any{s.slot, forAll, lane.StatePaid}, rows.args()...)...); err != nil {
			return fmt.Errorf("keep %s to be marked: %w", printable.Count(len(chunk), "row"), err)
		}
	}
	return nil
}

// MarkQuery says which rows MarkRows may mark.
type MarkQuery struct {
	// Passed is what the stream of this leadership has brought: what was recorded in its epoch with a bound below
	// its Commit, and all of earlier epochs.
	Passed event.Position
	// Open returns which of the events are open for a subscriber. It is asked after Passed was known, and before
	// walpost.owed is looked at: so nothing of an event is in between.
	Open func([]event.Identity) map[event.Identity]bool
	// After is where the last round has ended; nil for the first.
	After *MarkPlace
	Limit int
}

// MarkRound is what came of one call of MarkRows.
type MarkRound struct {
	// Done is how many paid deliveries were dealt with, Left how many have to wait for something.
	Done, Left int
	// Locked are rows that another session has locked.
	Locked []LockedRow
	// Next is where the next round begins; nil when nothing is left beyond.
	Next *MarkPlace
}

// LockedRow is a row of a source's table that another session has locked.
type LockedRow struct{ Source, Row, EventID string }

// MarkPlace is a place in the order in which MarkRows reads.
type MarkPlace struct {
	epoch      int32
	bound      event.LSN
	event      event.Identity
	subscriber string
}

// unmarked is a paid delivery whose row is still to be marked.
type unmarked struct {
	MarkPlace
	event.Event
	attempts int
}

// MarkRows marks rows of events that are paid or discarded: those of which nothing is waiting, dead or open any
// more, and that the stream is past. It is called by one goroutine of the leader alone, which is why two
// payments at the same time cannot each leave the mark to the other. What is done is removed, or kept as
// paid as long as the stream may bring it again.
//
// If the event is still waiting or dead for another subscriber, the row of this one is deleted all the same: ending the
// other delivery makes a row that is to be marked again.
func (s *Store) MarkRows(ctx context.Context, query MarkQuery) (MarkRound, error) {
	var round MarkRound
	if some, err := s.anyUnmarked(ctx, query.Passed); err != nil || !some {
		return round, err
	}
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		round = MarkRound{}
		found, err := s.unmarked(ctx, tx, query)
		if err != nil || len(found) == 0 {
			return err
		}
		if len(found) == query.Limit {
			round.Next = &found[len(found)-1].MarkPlace
		}
		identities := make([]event.Identity, len(found))
		for i := range found {
			identities[i] = found[i].MarkPlace.event
		}
		wait := query.Open(identities)
		if wait, err = s.markFound(ctx, tx, found, wait, query.Passed.Epoch, &round); err != nil {
			return err
		}
		return s.removeMarked(ctx, tx, found, wait, &round)
	})
	if err != nil {
		return MarkRound{}, fmt.Errorf("mark rows of what is paid: %w", err)
	}
	return round, nil
}

// anyUnmarked looks before a transaction of the leadership begins: that writes, and an idle relay writes nothing.
func (s *Store) anyUnmarked(ctx context.Context, passed event.Position) (some bool, err error) {
	err = postgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM walpost.owed WHERE slot = $1 AND state = 'paid' AND mark AND (epoch, bound) < ($2::int, $3::text::pg_lsn))`,
			s.slot, passed.Epoch, passed.Commit.String()).Scan(&some)
	})
	if err != nil {
		return false, fmt.Errorf("look for rows that are still to be marked: %w", err)
	}
	return some, nil
}

// unmarked reads and locks.
func (s *Store) unmarked(ctx context.Context, tx pgx.Tx, query MarkQuery) ([]unmarked, error) {
	after := query.After
	if after == nil {
		after = &MarkPlace{epoch: -1}
	}
	rows, err := tx.Query(ctx, `
		SELECT subscriber, source, event_id, occurrence, row_id, xid, epoch, commit_lsn::text, ordinal, made_up, bound::text, attempts
		FROM walpost.owed WHERE slot = $1 AND state = 'paid' AND mark
		AND (epoch, bound) < ($2::int, $3::text::pg_lsn)
		AND (epoch, bound, event_id, source, occurrence, subscriber) > ($4::int, $5::text::pg_lsn, $6::text, $7::text, $8::text, $9::text)
		ORDER BY epoch, owed.bound, event_id, source, occurrence, subscriber LIMIT $10 FOR UPDATE SKIP LOCKED`, // not the text above
		s.slot, query.Passed.Epoch, query.Passed.Commit.String(),
		after.epoch, after.bound.String(), after.event.ID, after.event.Source, after.event.Occurrence, after.subscriber, query.Limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (unmarked, error) {
		var u unmarked
		var xid int64
		var commit, bound string
		var madeUp bool
		err := row.Scan(&u.subscriber, &u.Source, &u.ID, &u.Occurrence, &u.Row, &xid, &u.Position.Epoch, &commit, &u.Position.Ordinal, &madeUp, &bound, &u.attempts)
		if err != nil {
			return u, err
		}
		if u.Position.Commit, err = event.ParseLSN(commit); err != nil {
			return u, err
		}
		if u.bound, err = event.ParseLSN(bound); err != nil {
			return u, err
		}
		if madeUp {
			u.Bound = u.bound
		}
		u.epoch, u.MarkPlace.event = u.Position.Epoch, u.Identity()
		u.XID = uint32(xid)
		return u, nil
	})
}

// markFound marks the rows of what was found, but of those that wait, and returns those and what else has to
// wait: for a lock, or because its row is not visible yet.
func (s *Store) markFound(ctx context.Context, tx pgx.Tx, found []unmarked, wait map[event.Identity]bool, epoch int32, round *MarkRound) (map[event.Identity]bool, error) {
	marks := make(map[*outbox.Table][]outbox.Marked)
	at := make(map[event.Identity]int) // in the list of its table
	tables := s.current()
	for i := range found {
		u := &found[i]
		of := u.MarkPlace.event
		table := tables[u.Source]
		if wait[of] || u.Row == "" || table == nil || !table.Marks() {
			continue
		}
		if n, ok := at[of]; ok { // paid for another subscriber as well
			marks[table][n].Attempts += u.attempts
			continue
		}
		row := outbox.Marked{Row: u.Row, Identity: of, Attempts: u.attempts, Owed: true}
		if u.epoch == epoch { // the number of a transaction says nothing on another server
			row.XID = u.XID
		}
		at[of] = len(marks[table])
		marks[table] = append(marks[table], row)
	}
	waits := make(map[event.Identity]bool, len(wait))
	for of, open := range wait {
		waits[of] = open
	}
	for table, rows := range marks {
		result, err := table.Mark(ctx, tx, s.slot, rows, OwedToAnyoneSQL)
		if err != nil {
			return nil, err
		}
		for _, n := range result.Locked {
			waits[rows[n].Identity] = true
			round.Locked = append(round.Locked, LockedRow{table.Source.Name, rows[n].Row, rows[n].Identity.ID})
		}
		for _, n := range result.Hidden {
			waits[rows[n].Identity] = true
		}
	}
	return waits, nil
}

// removeMarked removes what was found, but what has to wait. A delivery whose event the stream may bring again
// after a restart is kept: that is how it is known.
func (s *Store) removeMarked(ctx context.Context, tx pgx.Tx, found []unmarked, wait map[event.Identity]bool, round *MarkRound) error {
	passed, err := s.passed(ctx, tx)
	if err != nil {
		return err
	}
	var batch pgx.Batch
	for i := range found {
		u := &found[i]
		of := u.MarkPlace.event
		if wait[of] {
			round.Left++
			continue
		}
		round.Done++
		sql := `UPDATE walpost.owed SET mark = false WHERE ` + theDelivery
		if last := u.LastOf(); u.subscriber == forAll || last.Compare(passed[forAll]) < 0 || last.Compare(passed[u.subscriber]) <= 0 {
			sql = `DELETE FROM walpost.owed WHERE ` + theDelivery
		}
		batch.Queue(sql, delivery(s.slot, of, u.subscriber)...)
	}
	return tx.SendBatch(ctx, &batch).Close()
}

// passed returns the recorded position below which the server sends nothing again, as that of forAll, and up to
// where each subscriber needs nothing that it sends.
func (s *Store) passed(ctx context.Context, tx pgx.Tx) (map[string]event.Position, error) {
	passed := make(map[string]event.Position)
	record, err := store.ReadSlotRecord(ctx, tx, s.slot)
	if err != nil {
		return nil, err
	}
	if record != nil {
		passed[forAll] = event.Position{Epoch: record.Epoch, Commit: record.Confirmed}
	}
	subscribers, err := store.Subscribers(ctx, tx, s.slot)
	if err != nil {
		return nil, err
	}
	for _, sub := range subscribers {
		passed[sub.Name] = sub.Secured
	}
	return passed, nil
}
