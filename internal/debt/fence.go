package debt

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrFenced means that another relay has taken over the slot: nothing may be written under the old term.
var ErrFenced = errors.New("another relay has taken over the slot")

// Fence is the leadership over a slot. A transaction that holds it is part of that leadership: the next
// leader waits for its end, and after that none of the old one can begin. So a statement that a killed
// process left behind on the server cannot come after what its successor has read.
type Fence struct {
	slot string
	term atomic.Int64
}

// NewFence returns the fence of a slot, without a leadership yet.
func NewFence(slot string) *Fence { return &Fence{slot: slot} }

// Term is the number of the leadership, 0 before Lead.
func (f *Fence) Term() int64 { return f.term.Load() }

// Lead begins a leadership. The caller must have the slot: nobody else can be streaming it.
func (f *Fence) Lead(ctx context.Context, pool *pgxpool.Pool, holder string) error {
	var term int64
	err := pool.QueryRow(ctx, `
		INSERT INTO walpost.leader AS l (slot, holder, term) VALUES ($1, $2, 1)
		ON CONFLICT (slot) DO UPDATE SET holder = excluded.holder, term = l.term + 1
		RETURNING term`, f.slot, holder).Scan(&term)
	if err != nil {
		return fmt.Errorf("take the lead of slot %q: %w", f.slot, err)
	}
	f.term.Store(term)
	return nil
}

// Check returns ErrFenced if somebody else has led since Lead. It writes nothing.
func (f *Fence) Check(ctx context.Context, pool *pgxpool.Pool) error {
	var term int64
	err := pool.QueryRow(ctx, `SELECT coalesce(max(term), 0) FROM walpost.leader WHERE slot = $1`, f.slot).Scan(&term)
	if err != nil {
		return fmt.Errorf("look who leads slot %q: %w", f.slot, err)
	}
	if ours := f.term.Load(); term != ours {
		return fmt.Errorf("%w (our term was %d, now it is %d)", ErrFenced, ours, term)
	}
	return nil
}

// Hold makes the transaction part of the leadership, or returns ErrFenced.
func (f *Fence) Hold(ctx context.Context, tx pgx.Tx) error {
	var held bool
	err := tx.QueryRow(ctx, `SELECT true FROM walpost.leader WHERE slot = $1 AND term = $2 FOR SHARE`, f.slot, f.term.Load()).Scan(&held)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w (our term was %d)", ErrFenced, f.term.Load())
	case err != nil:
		return fmt.Errorf("hold the lead of slot %q: %w", f.slot, err)
	}
	return nil
}
