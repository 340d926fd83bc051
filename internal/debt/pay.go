package debt

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// Paid removes deliveries that were delivered, and raises the subscriber's secured position. It marks nothing: a
// delivery whose outbox row is to be marked stays as paid until MarkRows has done that. So does one whose
// transaction is beyond secured, until secured passes it.
func (s *Store) Paid(ctx context.Context, subscriber string, paid []lane.Paid, secured event.Position) error {
	tables := s.current()
	return s.inTx(ctx, func(tx pgx.Tx) error {
		var batch pgx.Batch
		for i := range paid {
			e := paid[i].Event
			args := delivery(s.slot, e.Identity(), subscriber)
			switch {
			case mayMark(tables, e):
				batch.Queue(`UPDATE walpost.owed SET `+becomesPaid+`, mark = true, attempts = $6 WHERE `+theDelivery, append(args, paid[i].Attempts)...)
			case e.LastOf().Compare(secured) > 0:
				batch.Queue(`UPDATE walpost.owed SET `+becomesPaid+` WHERE `+theDelivery, args...)
			default:
				batch.Queue(`DELETE FROM walpost.owed WHERE `+theDelivery, args...)
			}
		}
		batch.Queue(removePassed, s.slot, subscriber, secured.Epoch, secured.Commit.String(), secured.Ordinal)
		store.QueueRaiseSecured(&batch, s.slot, subscriber, secured)
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return fmt.Errorf("record %s to %q as paid: %w", printable.Count(len(paid), "delivery"), subscriber, err)
		}
		return nil
	})
}

// removePassed removes what is paid, has no row to be marked, and is not beyond the secured position: what a payment
// leaves for later, it finds here. It reads along owed_paid what it removes, however much is paid and still to be
// marked, or waits for the stream; and it removes no more than so many at a time.
//
// Below the secured commit everything is passed, by its bound, which of a real position is the commit itself; in that
// commit, what is not behind the ordinal, and what was read from the table.
var removePassed = `
	DELETE FROM walpost.owed WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM (
			(SELECT ctid FROM walpost.owed WHERE ` + paidBy + ` AND (epoch, bound) < ($3::int, $4::text::pg_lsn)
			 ORDER BY epoch, bound LIMIT ` + strconv.Itoa(10*maxRows) + `)
			UNION ALL
			SELECT ctid FROM walpost.owed WHERE ` + paidBy + ` AND epoch = $3::int AND bound = $4::text::pg_lsn AND (made_up OR ordinal <= $5::bigint)
		) passed))`

const paidBy = `slot = $1 AND subscriber = $2 AND state = 'paid' AND NOT mark`

// mayMark reports whether the row of an event may have to be marked: not where it has none, nor where its source
// is known not to be marked.
func mayMark(tables map[string]*outbox.Table, e *event.Event) bool {
	table := tables[e.Source]
	return e.Row != "" && (table == nil || table.Marks())
}

// becomesPaid keeps of a delivery what is needed to know it again.
const becomesPaid = `state = 'paid', next_attempt = NULL, copied = false, payload = NULL, headers = NULL`

// theDelivery is the primary key. Single deliveries go in statements of their own, many at once in a
// batch: for a join with a list the planner needs statistics, and those of a queue are always
// stale; guessing wrong it reads everything that is owed, for each page.
const theDelivery = `slot = $1 AND event_id = $2 AND source = $3 AND occurrence = $4 AND subscriber = $5`

// delivery returns the arguments of theDelivery, which others may follow.
func delivery(slot string, of event.Identity, subscriber string) []any {
	return []any{slot, of.ID, of.Source, of.Occurrence, subscriber}
}

// Failed notes failed attempts of those of the deliveries that are still waiting: a person may have
// ended or discarded one meanwhile.
func (s *Store) Failed(ctx context.Context, subscriber string, owed []lane.Owed) error {
	if len(owed) == 0 {
		return nil
	}
	return s.inTx(ctx, func(tx pgx.Tx) error {
		var batch pgx.Batch
		for i := range owed {
			o := &owed[i]
			// "NOT IN" and not "= 'waiting'", which would offer the index of all that wait.
			batch.Queue(`
				UPDATE walpost.owed SET attempts = $6, next_attempt = $7, first_failure = $8, last_failure = $9, error = $10
				WHERE `+theDelivery+` AND state NOT IN ('dead', 'paid')`,
				append(delivery(s.slot, o.Event.Identity(), subscriber),
					o.Attempts, known(o.NextAttempt), known(o.FirstFailure), known(o.LastFailure), reason(o.Err))...)
		}
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return fmt.Errorf("record %d failed attempts of %q: %w", len(owed), subscriber, err)
		}
		return nil
	})
}
