package subscriber

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/store"
)

// ErrOldTerm means that deliveries were given out under a leadership that is over: their effect was rolled
// back, and the relay that leads now gives them out itself. It says nothing about the events.
var ErrOldTerm = errors.New("another relay has led the slot since this was given out")

// HoldTerm queues what makes a transaction part of the leadership under which its deliveries were given out,
// or fails it with ErrOldTerm. The next leader changes the row before it gives anything out, and waits
// for whoever holds it. So of a process that froze between its lease check and its commit, no effect comes
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
			return fmt.Errorf("%w: slot %q, then term %d, now %d", ErrOldTerm, slot, term, now)
		}
		return err
	})
}
