package replay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// What follows is for the leader alone.

// Open returns the replays that are not over, in the order in which they were asked for.
func (s *Store) Open(ctx context.Context) ([]Replay, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT `+columns+` FROM walpost.replays r WHERE slot = $1 AND state IN ('waiting', 'running') ORDER BY id`, s.slot)
	if err != nil {
		return nil, fmt.Errorf("look up open replays: %w", err)
	}
	replays, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("look up open replays: %w", err)
	}
	return replays, nil
}

// Position is the first free position before all that the stream still brings to the subscriber. A replayed
// event stands there if it becomes a dead letter. (docs/postgres.md §1)
func (s *Store) Position(ctx context.Context, subscriber string) (event.Position, error) {
	return debt.FreePosition(ctx, s.pool, s.slot, subscriber)
}

// Page is a piece of a source's rows.
type Page struct {
	Rows []outbox.PlacedRow
	// End is the end of the WAL when the rows were read: all of them committed before. 0 says that every
	// one is marked, so that every subscriber that wants it has it.
	End event.LSN
}

// Bounds of a page: what a replay has in memory, in addition to one event that may be larger.
const (
	pageRows  = 1000
	pageBytes = 4 << 20
)

// Next reads the rows of a table that come after what is dealt with. A page without rows is the end.
func (s *Store) Next(ctx context.Context, table *outbox.Table, r *Replay) (Page, error) {
	var page Page
	after := r.At
	if r.AtSource != table.Source.Name {
		after = nil
	}
	last := r.Last(table.Source.Name)
	if last == nil {
		return page, nil
	}
	err := postgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		var err error
		page = Page{}
		if page.Rows, err = table.Page(ctx, tx, r.Choice(), after, last, pageRows, pageBytes); err != nil {
			return err
		}
		marked := true
		for _, row := range page.Rows {
			marked = marked && row.Published
		}
		if marked {
			return nil
		}
		// What is written and not flushed is visible, too, where commits are asynchronous.
		page.End, err = store.WALEnd(ctx, tx)
		return err
	})
	return page, err
}

// Save writes how far a replay is, and its state, in a transaction of the leadership. It returns ErrOver if
// a person has cancelled it; what was sent until then is written all the same.
func (s *Store) Save(ctx context.Context, fence *store.Fence, r *Replay) error {
	named, err := encode(r.Named)
	if err != nil {
		return err
	}
	if r.Named == nil {
		named = "[]"
	}
	var at *string
	if r.At != nil {
		text, err := encode(r.At)
		if err != nil {
			return err
		}
		at = &text
	}
	var state State
	err = postgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := fence.HoldTx(ctx, tx); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			UPDATE walpost.replays SET
			    state = CASE WHEN state IN ('waiting', 'running') THEN $3 ELSE state END,
			    problem = CASE WHEN state IN ('waiting', 'running') THEN $4 ELSE '' END,
			    started_at = coalesce(started_at, now()),
			    ended_at = CASE WHEN $3 IN ('done', 'cancelled') THEN coalesce(ended_at, now()) ELSE ended_at END,
			    at_source = $5, at_row = $6::text::jsonb, delivered = $7, dead = $8, owed = $9, unwanted = $10, invalid = $11,
			    named = $12::text::jsonb, updated_at = now()
			WHERE slot = $1 AND id = $2 RETURNING state`,
			s.slot, r.ID, string(r.State), r.Problem, r.AtSource, at, r.Delivered, r.Dead, r.Owed, r.Unwanted, r.Invalid, named).Scan(&state)
	})
	if err != nil {
		return fmt.Errorf("write how far replay %d is: %w", r.ID, err)
	}
	if r.State.Open() && !state.Open() {
		return ErrOver
	}
	return nil
}
