// Package inbox lets a subscriber that writes to the relay's database have its effect once: what is done is recorded in
// the transaction of the effect. It must not be imported by package subscriber or lane, which know no database.
package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Once gives an effect that is not idempotent by itself, such as counting, exactly once per event.
//
// In one transaction it records (slot, subscriber, identity of the event) in walpost.inbox and calls effect with
// those deliveries that were not recorded before, in their order, each event once. The effect writes
// through tx and nowhere else, so that record and effect commit together or not at all; search_path is
// empty there, so its SQL names schemas. With nothing fresh, effect is not called. An error means that
// nothing happened, or that the connection broke while committing: then the next attempt finds out.
//
// The same event in two transactions at once is safe: the second waits for the first at the primary key
// of the inbox, and finds the event done, or takes it over when the first rolled back. Records are made
// in the order of their identities, so calls to Once do not deadlock among each other; an effect that locks
// several rows takes them in a fixed order too, ORDER BY its key, or it may.
//
// Where a delivery says Again, a record from before that moment is removed first, in the same transaction,
// and the new one is never older than it: so the effect happens once more for each replay that asks for
// it, also if the replay breaks off and begins again.
//
// Where deliveries carry a term, the transaction is part of that leadership of the slot: when another relay
// has led it since, nothing happens and the error is subscriber.ErrOldTerm.
//
// Sources are apart, and so are two events of a source that had one id at different times; see
// event.Identity. Once is safe for concurrent use.
func Once(
	ctx context.Context, pool *postgres.Pool, slot, name string, deliveries []subscriber.Delivery,
	effect func(ctx context.Context, tx pgx.Tx, fresh []subscriber.Delivery) error,
) error {
	// InTx is read committed: a stricter level answers a concurrent record with a serialization failure,
	// where this one waits and looks again. (PostgreSQL manual, "Read Committed Isolation Level")
	if len(deliveries) == 0 {
		return nil
	}
	return postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		fresh, err := record(ctx, tx, slot, name, deliveries)
		if err != nil {
			return fmt.Errorf("record events in inbox of %s: %w", name, err)
		}
		if len(fresh) == 0 {
			return nil
		}
		return effect(ctx, tx, fresh)
	})
}

// record returns the deliveries that were not in the inbox.
func record(ctx context.Context, tx pgx.Tx, slot, name string, deliveries []subscriber.Delivery) ([]subscriber.Delivery, error) {
	effects := new(store.Effects)
	for _, delivery := range deliveries {
		effects.Add(delivery.Identity(), delivery.Again)
	}
	// All in one round trip. The leadership comes first: what waits for it holds nothing yet.
	batch := &pgx.Batch{}
	HoldTerm(batch, tx, slot, deliveries[0].Term)
	var recorded []event.Identity
	store.QueueRecordEffects(batch, slot, name, effects, func(fresh []event.Identity) { recorded = fresh })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	isNew := make(map[event.Identity]bool, len(recorded))
	for _, identity := range recorded {
		isNew[identity] = true
	}
	var fresh []subscriber.Delivery
	for _, delivery := range deliveries {
		if isNew[delivery.Identity()] {
			fresh = append(fresh, delivery)
			delete(isNew, delivery.Identity()) // the same event again in this batch is not fresh
		}
	}
	return fresh, nil
}
