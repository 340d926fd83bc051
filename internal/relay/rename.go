package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// carryOver gives subscribers that were renamed what is recorded under their former names: state, position, debt,
// replays and inbox. It happens in one transaction, before anything is read of them, so a process that ends over it
// leaves either name whole.
func (r *Relay) carryOver(ctx context.Context) error {
	for _, sub := range r.Subscriptions {
		if sub.RenamedFrom == "" {
			continue
		}
		if err := r.carryOverOne(ctx, sub.RenamedFrom, sub.Subscriber.Name()); err != nil {
			return err
		}
	}
	return nil
}

func (r *Relay) carryOverOne(ctx context.Context, before, name string) error {
	var renamed bool
	err := postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		if err := r.fence.HoldTx(ctx, tx); err != nil {
			return err
		}
		had, err := store.HasSubscriber(ctx, tx, r.Slot, before)
		if err != nil || !had { // carried over before, or never there
			return err
		}
		has, err := store.HasSubscriber(ctx, tx, r.Slot, name)
		if err != nil {
			return err
		}
		if has {
			return &wal.SetupError{
				Problem: fmt.Sprintf("subscriber %q is to take over from %q, and both are known to the slot: which position and which debt are meant?", name, before),
				Fix: fmt.Sprintf("take renamed_from out of the configuration, and %[1]q goes on as itself while what %[2]q is owed stays; or start once with neither of them and forget one: "+
					"walpost subscribers forget %[1]s lets %[1]q carry on where %[2]q was", name, before)}
		}
		renamed = true
		if err := r.owed.Rename(ctx, tx, before, name); err != nil {
			return err
		}
		if err := replay.Rename(ctx, tx, r.Slot, before, name); err != nil {
			return err
		}
		if err := store.RenameInHand(ctx, tx, r.Slot, before, name); err != nil {
			return err
		}
		facts := map[string]any{"subscriber": name, "renamed_from": before}
		if err := store.NoteByRelay(ctx, tx, r.Slot, r.holder(), "rename", facts, "renamed_from in the configuration"); err != nil && ctx.Err() == nil {
			r.metrics.notes.Inc()
			r.Log.Error("cannot note the new name in walpost.audit; it is carried over all the same", "facts", facts, "err", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("carry over from subscriber %q to %q: %w", before, name, err)
	}
	if renamed {
		r.Log.Info("subscriber has another name; position, debt, replays and inbox are carried over", "subscriber", name, "renamed_from", before)
	}
	return nil
}
