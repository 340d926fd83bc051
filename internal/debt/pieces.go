package debt

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/store"
)

// piece are deliveries that are locked, and what is about to be done to them in the same transaction.
type piece struct {
	keys  []deliveryKey
	batch pgx.Batch
}

// named are deliveries that are discarded, for the audit: later they can be told from those that were delivered.
func named(keys []deliveryKey) []store.Chosen {
	chosen := make([]store.Chosen, len(keys))
	for i, k := range keys {
		chosen[i] = store.Chosen{Subscriber: k.subscriber, Source: k.event.Source, Event: k.event.ID, Occurrence: k.event.Occurrence}
	}
	return chosen
}

// inPieces makes a change in transactions of at most maxRows deliveries: no one waits long for a lock, and
// each piece takes effect at once. choose locks at most n of them; it is told the last one before. All
// pieces together are one row of the audit; of a discard each piece is one, which names its deliveries.
func (s *Store) inPieces(ctx context.Context, c change, choose func(tx pgx.Tx, after deliveryKey, n int) (*piece, error)) (Outcome, error) {
	var (
		outcome Outcome
		changed []deliveryKey // of events that were named
		last    deliveryKey
		note    int64 // in the audit
	)
	for {
		n := maxRows
		if limit := c.filter.Limit; limit > 0 {
			n = min(n, limit-outcome.Deliveries)
		}
		var chosen *piece
		var noted int64
		err := s.inTx(ctx, func(tx pgx.Tx) (err error) {
			chosen, err = choose(tx, last, n)
			if err != nil || len(chosen.keys) == 0 {
				return err
			}
			if note == 0 || c.result == Discarded {
				facts := c.filter.facts()
				facts["deliveries"] = len(chosen.keys)
				if c.result == Discarded {
					facts["chosen"] = named(chosen.keys)
				}
				noted, err = store.Audit(ctx, tx, s.slot, c.who, c.action, facts, c.why)
			} else {
				noted, err = store.AuditMore(ctx, tx, s.slot, note, len(chosen.keys))
			}
			if err != nil {
				return err
			}
			return tx.SendBatch(ctx, &chosen.batch).Close()
		})
		if err != nil {
			return outcome, err
		}
		found := len(chosen.keys)
		if found > 0 {
			last, note = chosen.keys[found-1], noted
			store.Announce(ctx, s.pool, s.slot)
		}
		if len(c.filter.Events) > 0 {
			changed = append(changed, chosen.keys...)
		}
		if outcome.Deliveries += found; found < n || outcome.Deliveries == c.filter.Limit {
			break
		}
	}
	var err error
	outcome.Answers, err = s.answers(ctx, c, changed)
	return outcome, err
}
