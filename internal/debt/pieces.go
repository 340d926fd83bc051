package debt

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// Narrow returns an error unless the filter is one by which people may change deliveries.
func (f Filter) Narrow() error {
	facts := f.facts()
	delete(facts, "state")
	switch {
	case len(facts) == 0:
		return Refused("the filter chooses everything: name a subscriber, a source, a type, a key, an event, a time or an error")
	case len(f.Events) > maxRows:
		return Refused(fmt.Sprintf("%s too many at once: name at most %d", printable.Count(len(f.Events), "event", "is"), maxRows))
	case f.State != "" && f.State != lane.StateWaiting && f.State != lane.StateDead:
		return Refused(fmt.Sprintf("state %q: it must be %s or %s; what is paid was delivered or discarded already", f.State, lane.StateWaiting, lane.StateDead))
	}
	return nil
}

// change is what a person does to all deliveries that a filter chooses.
type change struct {
	action   string
	result   Result // of a delivery that is changed
	filter   Filter
	who, why string
}

// piece are deliveries that are locked, and what is about to be done to them in the same transaction.
type piece struct {
	keys  []deliveryKey
	batch pgx.Batch
}

// deliveryKey is the key of a row of walpost.owed.
type deliveryKey struct {
	subscriber string
	event      event.Identity
	position   event.Position // where it matters in which order they are changed
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
