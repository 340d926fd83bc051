package debt

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
)

// Discard gives deliveries up for good. Outbox rows of which nothing else is owed are marked: a person has
// settled them. One that the stream might bring again is kept as paid until the stream is past it.
//
// It works in pieces that are committed one by one, so after an error some are discarded already; how
// many, says the outcome, and walpost.audit. A waiting delivery may be in its handler at this moment, and be
// delivered all the same.
func (s *Store) Discard(ctx context.Context, filter Filter, who, why string) (Outcome, error) {
	outcome, err := s.discard(ctx, filter, who, why)
	if err != nil {
		return outcome, fmt.Errorf("discard owed deliveries, after %d: %w", outcome.Deliveries, err)
	}
	return outcome, nil
}

func (s *Store) discard(ctx context.Context, filter Filter, who, why string) (Outcome, error) {
	if err := filter.Narrow(); err != nil {
		return Outcome{}, err
	}
	where, args := filter.where(s.slot)
	change := change{action: "discard", fate: Discarded, filter: filter, who: who, why: why}
	return s.inPieces(ctx, change, func(tx pgx.Tx, _ spot, n int) (*piece, error) { return s.choose(ctx, tx, where, args, n) })
}

// choose locks deliveries, of any subscribers, and prepares what settles them: those that the stream is
// past are removed, others become paid.
func (s *Store) choose(ctx context.Context, tx pgx.Tx, where string, args []any, limit int) (*piece, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.subscriber, o.source, o.event_id, o.occurrence, o.row_id, o.xid, o.attempts, o.mark OR o.state <> 'paid', `+passed+` FROM walpost.owed o
		WHERE `+where+` ORDER BY o.event_id, o.source, o.occurrence, o.subscriber LIMIT `+strconv.Itoa(limit)+` FOR UPDATE OF o`, args...)
	if err != nil {
		return nil, err
	}
	var (
		subscriber string
		row        outbox.Marked
		xid        int64
		mark, past bool
	)
	chosen := &piece{marks: make(marks)}
	tables := s.current()
	of := &row.Identity
	_, err = pgx.ForEachRow(rows, []any{&subscriber, &of.Source, &of.ID, &of.Occurrence, &row.Row, &xid, &row.Attempts, &mark, &past}, func() error {
		chosen.spots = append(chosen.spots, spot{subscriber: subscriber, event: *of})
		args := delivery(s.slot, *of, subscriber)
		if !past {
			chosen.batch.Queue(`UPDATE walpost.owed SET `+becomesPaid+`, mark = true WHERE `+theDelivery, args...)
			return nil
		}
		chosen.batch.Queue(`DELETE FROM walpost.owed WHERE `+theDelivery, args...)
		if table := tables[of.Source]; mark && table != nil && table.Marks() && row.Row != "" {
			row.XID = uint32(xid)
			chosen.marks.add(table, row)
		}
		return nil
	})
	return chosen, err
}

// Clean removes the paid deliveries of all subscribers that the slot's recorded position has passed, so
// that the stream never brings them again, and marks those of their rows that could not be marked before.
// It returns how many it removed.
func (s *Store) Clean(ctx context.Context) (int, error) {
	for total := 0; ; {
		found := 0
		err := s.inTx(ctx, func(tx pgx.Tx) error {
			chosen, err := s.choose(ctx, tx, `o.slot = $1 AND o.state = 'paid' AND `+passed, []any{s.slot}, maxRows)
			if err != nil {
				return err
			}
			if found = len(chosen.spots); found == 0 {
				return nil
			}
			return s.settle(ctx, tx, chosen)
		})
		if err != nil {
			return total, fmt.Errorf("remove paid deliveries: %w", err)
		}
		if total += found; found < maxRows {
			return total, nil
		}
	}
}

// passed is true of a delivery, named o, whose transaction the slot has behind it: the server never sends
// one again that committed below the confirmed position. (docs/postgres.md §1)
const passed = `EXISTS (SELECT FROM walpost.slots s WHERE s.slot = o.slot AND (o.epoch, o.commit_lsn) < (s.epoch, s.confirmed))`
