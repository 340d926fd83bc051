package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// former are the tables that were sources.
func (s *session) former() []dispatch.Former {
	var former []dispatch.Former
	for _, source := range s.fingerprint.Sources {
		if source.Former && source.Table != "" {
			former = append(former, dispatch.Former{Source: source.Name, Schema: source.Schema, Table: source.Table, OID: source.OID})
		}
	}
	return former
}

// carryOverSources gives sources that have another name now what is recorded under their former names: debt, inbox,
// replays, and what subscribers want. A source is known by its table, or its prefix. It happens in one transaction, before
// anything is read under the names.
func (r *Relay) carryOverSources(ctx context.Context, s *session) error {
	renamed := s.compare().Renamed
	if len(renamed) == 0 {
		return nil
	}
	print := s.record.Fingerprint
	print.Sources = append([]store.PublishedSource{}, print.Sources...)
	for i, source := range print.Sources {
		if name := renamed[source.Name]; name != "" && !source.Former {
			print.Sources[i].Name = name
		}
	}
	err := postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		if err := r.fence.HoldTx(ctx, tx); err != nil {
			return err
		}
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
		return &wal.SetupError{Err: err,
			Problem: fmt.Sprintf("sources are to take over what is recorded under former names (%v), and a new name has records of the same events already", renamed),
			Fix:     "give the source a name that was not used before"}
	}
	if err != nil {
		return fmt.Errorf("carry over sources %v: %w", renamed, err)
	}
	s.record.Fingerprint = print
	r.Log.Info("sources have other names; debt, inbox, replays and what subscribers want are carried over", "renamed", renamed)
	return nil
}

// renameSourcesInWants renames sources in the recorded filters of all subscribers.
func (r *Relay) renameSourcesInWants(ctx context.Context, tx pgx.Tx, slot string, renamed map[string]string) error {
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

// renamed is what is wanted, with other names of sources.
func (w wants) renamed(names map[string]string) wants {
	next := make(wants, len(w))
	for i, p := range w {
		next[i] = part{Until: p.Until, Any: make([]event.Filter, len(p.Any))}
		for j, filter := range p.Any {
			filter.Sources = append([]string{}, filter.Sources...)
			for k, source := range filter.Sources {
				if name := names[source]; name != "" {
					filter.Sources[k] = name
				}
			}
			next[i].Any[j] = filter
		}
	}
	return next
}
