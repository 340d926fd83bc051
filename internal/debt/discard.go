package debt

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/store"
)

// Discard gives deliveries up for good. They stay as paid until the leader has marked the outbox rows of which
// nothing else is owed, and until the stream, which might bring their events again, is past them.
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
	change := change{action: "discard", result: Discarded, filter: filter, who: who, why: why}
	return s.inPieces(ctx, change, func(tx pgx.Tx, _ deliveryKey, n int) (*piece, error) { return s.choose(ctx, tx, where, args, n) })
}

// choose locks deliveries, of any subscribers, and prepares what discards them.
func (s *Store) choose(ctx context.Context, tx pgx.Tx, where string, args []any, limit int) (*piece, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.subscriber, o.source, o.event_id, o.occurrence, o.row_id FROM walpost.owed o
		WHERE `+where+` ORDER BY o.event_id, o.source, o.occurrence, o.subscriber LIMIT `+strconv.Itoa(limit)+` FOR UPDATE OF o`, args...)
	if err != nil {
		return nil, err
	}
	var subscriber string
	var e event.Event
	chosen := new(piece)
	tables := s.current()
	_, err = pgx.ForEachRow(rows, []any{&subscriber, &e.Source, &e.ID, &e.Occurrence, &e.Row}, func() error {
		chosen.keys = append(chosen.keys, deliveryKey{subscriber: subscriber, event: e.Identity()})
		chosen.batch.Queue(`UPDATE walpost.owed SET `+becomesPaid+`, mark = $6 WHERE `+theDelivery,
			append(delivery(s.slot, e.Identity(), subscriber), mayMark(tables, &e))...)
		return nil
	})
	return chosen, err
}

// Clean removes the paid deliveries of all subscribers that the slot's recorded position has passed, so that the
// stream never brings them again. Those whose rows are still to be marked stay. It returns how many it removed.
func (s *Store) Clean(ctx context.Context) (int, error) {
	from := "" // the subscriber to go on with: of those before it nothing is left that is passed
	for total := 0; ; {
		var found int
		err := s.inTx(ctx, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `
				WITH gone AS (
					DELETE FROM walpost.owed o WHERE (o.slot, o.event_id, o.source, o.occurrence, o.subscriber) IN (
						SELECT o.slot, o.event_id, o.source, o.occurrence, o.subscriber FROM walpost.owed o
						WHERE o.slot = $1 AND o.subscriber >= $2 AND o.state = 'paid' AND NOT o.mark AND `+passed+`
						ORDER BY o.subscriber, o.epoch, o.bound LIMIT `+strconv.Itoa(maxRows)+` FOR UPDATE OF o SKIP LOCKED)
					RETURNING o.subscriber)
				SELECT count(*), coalesce(max(subscriber), '') FROM gone`, s.slot, from).Scan(&found, &from)
		})
		if err != nil {
			return total, fmt.Errorf("remove paid deliveries: %w", err)
		}
		if total += found; found < maxRows {
			return total, nil
		}
	}
}

// passed is true of a delivery, named o, whose transaction the slot has behind it.
var passed = store.PassedBySlot("o.slot", "(o.epoch, greatest(o.commit_lsn, o.bound))")
