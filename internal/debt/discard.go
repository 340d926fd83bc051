package debt

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
)

// Discard gives deliveries up for good and returns how many. Outbox rows of which nothing else is owed are
// marked: a person has settled them. One that the stream might bring again is kept as paid until the
// stream is past it.
//
// It works in pieces that are committed one by one, so after an error some are discarded already; how
// many, stands in walpost.audit. A waiting delivery may be in its handler at this moment, and be delivered
// all the same.
func (s *Store) Discard(ctx context.Context, filter Filter, who, why string) (int, error) {
	if err := filter.Narrow(); err != nil {
		return 0, err
	}
	limit := filter.Limit
	where, args := filter.where(s.slot)
	var audited int64
	for total := 0; ; {
		n := maxRows
		if limit > 0 {
			n = min(n, limit-total)
		}
		found := 0
		err := s.inTx(ctx, func(tx pgx.Tx) error {
			chosen, number, err := s.choose(ctx, tx, where, args, n)
			if found = number; err != nil || found == 0 {
				return err
			}
			note := audited
			if note == 0 {
				if note, err = s.audit(ctx, tx, who, "discard", filter.facts(), why); err != nil {
					return err
				}
			}
			chosen.batch.Queue(`
				UPDATE walpost.audit
				SET what = what || jsonb_build_object('deliveries', coalesce((what->>'deliveries')::bigint, 0) + $2::bigint)
				WHERE id = $1`, note, found)
			if err := s.settle(ctx, tx, chosen); err != nil {
				return err
			}
			audited = note
			return nil
		})
		if err != nil {
			return total, fmt.Errorf("discard owed deliveries, after %d: %w", total, err)
		}
		if total += found; found < n || total == limit {
			return total, nil
		}
	}
}

// Narrow returns an error unless the filter is one that Discard takes.
func (f Filter) Narrow() error {
	switch {
	case f == Filter{State: f.State, Limit: f.Limit}:
		return Refused("discard owed deliveries: the filter chooses everything: name a subscriber, a source, a type, a key, an event, a time or an error")
	case f.State == lane.StatePaid:
		return Refused("discard owed deliveries: paid ones are delivered already")
	}
	return nil
}

// settled are deliveries that are locked, to be removed by settle.
type settled struct {
	batch pgx.Batch
	marks marks
}

// choose locks deliveries, of any subscribers, and prepares what settles them: those that the stream is
// past are removed, others become paid. It returns how many there are.
func (s *Store) choose(ctx context.Context, tx pgx.Tx, where string, args []any, limit int) (*settled, int, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.subscriber, o.source, o.event_id, o.row_id, o.xid, o.attempts, o.mark OR o.state <> 'paid', `+passed+` FROM walpost.owed o
		WHERE `+where+` ORDER BY o.event_id, o.source, o.subscriber LIMIT `+strconv.Itoa(limit)+` FOR UPDATE OF o`, args...)
	if err != nil {
		return nil, 0, err
	}
	var (
		subscriber, source string
		row                outbox.Marked
		xid                int64
		mark, past         bool
	)
	chosen := &settled{marks: make(marks)}
	tables := s.current()
	_, err = pgx.ForEachRow(rows, []any{&subscriber, &source, &row.EventID, &row.Row, &xid, &row.Attempts, &mark, &past}, func() error {
		delivery := []any{s.slot, row.EventID, source, subscriber}
		if !past {
			chosen.batch.Queue(`UPDATE walpost.owed SET `+becomesPaid+`, mark = true WHERE `+theDelivery, delivery...)
			return nil
		}
		chosen.batch.Queue(`DELETE FROM walpost.owed WHERE `+theDelivery, delivery...)
		if table := tables[source]; mark && table != nil && table.Marks() && row.Row != "" {
			chosen.marks.add(table, row, uint32(xid))
		}
		return nil
	})
	return chosen, chosen.batch.Len(), err
}

func (s *Store) settle(ctx context.Context, tx pgx.Tx, chosen *settled) error {
	if err := tx.SendBatch(ctx, &chosen.batch).Close(); err != nil {
		return err
	}
	return s.mark(ctx, tx, chosen.marks)
}

// Clean removes the paid deliveries of all subscribers that the slot's recorded position has passed, so
// that the stream never brings them again, and marks those of their rows that could not be marked before.
// It returns how many it removed.
func (s *Store) Clean(ctx context.Context) (int, error) {
	for total := 0; ; {
		found := 0
		err := s.inTx(ctx, func(tx pgx.Tx) error {
			chosen, n, err := s.choose(ctx, tx, `o.slot = $1 AND o.state = 'paid' AND `+passed, []any{s.slot}, maxRows)
			if found = n; err != nil || n == 0 {
				return err
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
// one again that committed below the confirmed position. (POSTGRES §1)
const passed = `EXISTS (SELECT FROM walpost.slots s WHERE s.slot = o.slot AND (o.epoch, o.commit_lsn) < (s.epoch, s.confirmed))`
