package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
)

// renamer carries over what is recorded under names that subscribers and sources have no more.
type renamer struct{ *base }

// carryOver gives subscribers that were renamed what is recorded under their former names: state, position, debt,
// replays and inbox. It happens in one transaction, before anything is read of them, so a process that ends over it
// leaves either name whole.
func (r *renamer) carryOver(ctx context.Context) error {
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

func (r *renamer) carryOverOne(ctx context.Context, before, name string) error {
	var renamed bool
	err := r.inTerm(ctx, func(tx pgx.Tx) error {
		had, err := slot.CanTakeOver(ctx, tx, r.Slot, before, name)
		if err != nil || !had {
			return err
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

// carryOverSources gives sources that have another name now what is recorded under their former names: debt, inbox,
// replays, and what subscribers want. A source is known by its table, or its prefix. It happens in one transaction, before
// anything is read under the names.
func (r *renamer) carryOverSources(ctx context.Context, s *session) error {
	renamed := s.compare().Renamed
	if len(renamed) == 0 {
		return nil
	}
	print := s.record.Fingerprint
	print.Sources = append([]store.PublishedSource{}, print.Sources...)
	present := make(map[string]bool)
	for _, source := range s.record.Fingerprint.Sources {
		present[source.Name] = present[source.Name] || !source.Former
	}
	for i, source := range print.Sources {
		// Of a former one with the name of one that is present nothing is carried over.
		if name := renamed[source.Name]; name != "" && (!source.Former || !present[source.Name]) {
			print.Sources[i].Name = name
		}
	}
	err := r.inTerm(ctx, func(tx pgx.Tx) error {
		for _, rename := range []func(context.Context, pgx.Tx, string, map[string]string) error{
			debt.RenameSources, replay.RenameSources, store.RenameSourcesOfInbox, r.renameSourcesInWants, store.RenameSourcesInHand,
		} {
			if err := rename(ctx, tx, r.Slot, renamed); err != nil {
				return err
			}
		}
		if err := store.WriteFingerprint(ctx, tx, r.Slot, print); err != nil {
			return err
		}
		facts := map[string]any{"sources": renamed}
		if err := store.NoteByRelay(ctx, tx, r.Slot, r.holder(), "rename", facts, "a source has another name in the configuration"); err != nil && ctx.Err() == nil {
			r.metrics.notes.Inc()
			r.Log.Error("cannot note the new names in walpost.audit; they are carried over all the same", "facts", facts, "err", err)
		}
		return nil
	})
	if postgres.Code(err) == "23505" { // unique_violation
		return slot.SourcesCollide(renamed, err)
	}
	if err != nil {
		return fmt.Errorf("carry over sources %v: %w", renamed, err)
	}
	s.record.Fingerprint = print
	r.Log.Info("sources have other names; debt, inbox, replays and what subscribers want are carried over", "renamed", renamed)
	return nil
}

// renameSourcesInWants renames sources in the recorded filters of all subscribers.
func (r *renamer) renameSourcesInWants(ctx context.Context, tx pgx.Tx, slot string, renamed map[string]string) error {
	subscribers, err := store.Subscribers(ctx, tx, slot)
	if err != nil {
		return err
	}
	for _, sub := range subscribers {
		wanted, err := parseWants([]byte(sub.Wants))
		if err != nil {
			continue // it counts as everything, and is said when it is read
		}
		if err := store.WriteWants(ctx, tx, slot, sub.Name, wanted.renamed(renamed).encode()); err != nil {
			return err
		}
	}
	return nil
}
