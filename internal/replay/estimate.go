package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// An Estimate is what a replay would do, as far as can be told before.
type Estimate struct {
	Sources []SourceEstimate `json:"sources"`
	// Rows is how many are chosen, over all sources.
	Rows int64 `json:"rows"`
	// Sent is how many of them would be sent: neither owed nor unwanted.
	Sent int64 `json:"sent"`
	// NoTable are sources of logical messages: nothing of them is kept that could be sent again.
	NoTable []string `json:"no_table,omitempty"`
	// Notes are sentences about what the replay cannot reach.
	Notes []string `json:"notes,omitempty"`
}

// SourceEstimate is the part of an estimate that belongs to one source.
type SourceEstimate struct {
	Source string `json:"source"`
	Rows   int64  `json:"rows"`
	// Owed rows are left out: they are waiting or dead for the subscriber.
	Owed int64 `json:"owed"`
	// Unwanted rows are left out: the configuration does not send their types to the subscriber.
	Unwanted int64 `json:"unwanted"`
	// InInbox rows are sent, and the subscriber's inbox skips their effects, unless the request says again.
	InInbox int64 `json:"in_inbox"`
	// From is when the oldest row of the table was, whatever is chosen; zero where nothing tells.
	From time.Time `json:"from,omitzero"`
}

// Estimate counts what a request chooses. takes says what the configuration sends to the subscriber, by
// source and type; nil is everything. It reads all that is chosen, which can take a while.
func (s *Store) Estimate(ctx context.Context, request Request, takes func(source, eventType string) bool) (Estimate, error) {
	var estimate Estimate
	if err := request.Check(); err != nil {
		return estimate, err
	}
	tables, err := s.chosenTables(request)
	if err != nil {
		return estimate, err
	}
	if request.Source == "" {
		estimate.NoTable = s.messages
	}
	err = postgres.InSnapshot(ctx, s.pool, "", func(tx pgx.Tx) error {
		if err := s.checkSubscriber(ctx, tx, request.Subscriber); err != nil {
			return err
		}
		for _, table := range tables {
			part, err := s.estimateSource(ctx, tx, table, request, takes, &estimate)
			if err != nil {
				return err
			}
			estimate.Sources = append(estimate.Sources, part)
			estimate.Rows += part.Rows
			estimate.Sent += part.Rows - part.Owed - part.Unwanted
		}
		return nil
	})
	if err != nil {
		return Estimate{}, fmt.Errorf("estimate the replay to %q: %w", request.Subscriber, err)
	}
	for _, source := range estimate.NoTable {
		estimate.Notes = append(estimate.Notes, fmt.Sprintf("Source %s has no table, so nothing of it can be sent again.", source))
	}
	return estimate, nil
}

func (s *Store) estimateSource(ctx context.Context, tx pgx.Tx, table *outbox.Table, request Request, takes func(source, eventType string) bool, whole *Estimate) (SourceEstimate, error) {
	part := SourceEstimate{Source: table.Source.Name}
	counts, err := table.Count(ctx, tx, request.Choice(), s.slot, request.Subscriber, debt.OwedToSQL, store.EffectDoneSQL)
	if err != nil {
		return part, err
	}
	for _, c := range counts {
		part.Rows += c.Rows
		part.Owed += c.Owed
		if takes != nil && !takes(part.Source, c.Type) {
			part.Unwanted += c.Rows - c.Owed
			continue
		}
		part.InInbox += c.Done
	}
	var timeless int64
	if part.From, timeless, err = table.Reach(ctx, tx); err != nil {
		return part, err
	}
	byTime := !request.Since.IsZero() || !request.Until.IsZero()
	switch {
	case !request.Since.IsZero() && part.From.IsZero():
		whole.Notes = append(whole.Notes, fmt.Sprintf("Source %s has no rows with a time.", part.Source))
	case !request.Since.IsZero() && request.Since.Before(part.From):
		kept := "what was before is not in the table any more, or never was"
		if table.Source.Retention > 0 {
			kept = fmt.Sprintf("retention deletes what was published %s ago; what was before cannot be sent again", hours(table.Source.Retention))
		}
		whole.Notes = append(whole.Notes, fmt.Sprintf("Source %s has rows from %s on: %s.", part.Source, part.From.Format(time.RFC3339), kept))
	}
	if byTime && timeless > 0 {
		whole.Notes = append(whole.Notes, fmt.Sprintf("Source %s has %s without a time, which no choice by time finds.", part.Source, printable.Count(timeless, "row")))
	}
	return part, nil
}

func hours(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return d.String()
}
