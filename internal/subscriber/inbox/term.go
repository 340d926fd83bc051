package inbox

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/subscriber"
)

// HoldTerm queues what makes a transaction part of the leadership under which its deliveries were given out,
// or fails it with subscriber.ErrOldTerm. The next leader changes the row before it gives anything out, and waits
// for the transactions that hold it. So of a process that froze between its lease check and its commit, no effect comes
// after one of its successor: for a subscriber in the same database that is exact. (P10)
//
// All deliveries of a call have one term. Term 0 is no leadership, as in a test that calls a subscriber
// itself: then nothing is queued.
func HoldTerm(batch *pgx.Batch, tx pgx.Tx, slot string, term int64) {
	if term == 0 {
		return
	}
	store.QueueHold(batch, tx, slot, func(now int64, err error) error {
		switch {
		case err == nil && now == 0:
			return fmt.Errorf("no one leads slot %q in the database of this subscriber: is it the slot and database of the relay?", slot)
		case err == nil && now != term:
			return fmt.Errorf("%w: slot %q, then term %d, now %d", subscriber.ErrOldTerm, slot, term, now)
		}
		return err
	})
}
