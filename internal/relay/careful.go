package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// uncleanLimit is after how many unclean ends in a row, without anything confirmed in between, the relay
// starts carefully.
const uncleanLimit = 3

// suspect is a delivery that was in hand when the process ended.
type suspect struct {
	Subscriber string `json:"subscriber"`
	Source     string `json:"source"`
	EventID    string `json:"event_id"`
}

func (s *suspect) is(subscriber string, ev *event.Event) bool {
	return s != nil && s.Subscriber == subscriber && s.Source == ev.Source && s.EventID == ev.ID
}

// countStart notes that a process begins to use the slot. A clean stop, and every position that is
// confirmed, takes the count back.
func (r *Relay) countStart(ctx context.Context) (unclean int, found *suspect, err error) {
	var text []byte
	err = r.Pool.QueryRow(ctx, `
		UPDATE walpost.slots SET unclean_starts = unclean_starts + 1 WHERE slot = $1
		RETURNING unclean_starts - 1, suspect`, r.Slot).Scan(&unclean, &text)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil, nil
	case err != nil:
		return 0, nil, fmt.Errorf("count the start: %w", err)
	case text == nil || unclean < uncleanLimit:
		return unclean, nil, nil
	}
	found = new(suspect)
	if err := json.Unmarshal(text, found); err != nil {
		return unclean, nil, fmt.Errorf("read the event that was in hand: %w", err)
	}
	return unclean, found, nil
}

// guard lets one event at a time through and writes down which one, so that the event that ends the
// process is known afterwards.
type guard struct {
	pool *pgxpool.Pool
	slot string
	mu   sync.Mutex // held while an event is in hand
}

// carefully makes a subscriber go through the guard. It takes no batches then.
type carefully struct {
	subscriber.Subscriber
	guard *guard
}

// Handle writes the event down, then hands it over.
func (c carefully) Handle(ctx context.Context, d subscriber.Delivery) error {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	text, err := json.Marshal(suspect{c.Name(), d.Source, d.ID})
	if err != nil {
		return fmt.Errorf("write down the event in hand: %w", err)
	}
	if _, err := c.guard.pool.Exec(ctx, `UPDATE walpost.slots SET suspect = $2 WHERE slot = $1`, c.guard.slot, text); err != nil {
		return fmt.Errorf("write down the event in hand: %w", err)
	}
	return c.Subscriber.Handle(ctx, d)
}

// endClean notes that the process ended as it was told to.
func (r *Relay) endClean(ctx context.Context) {
	_, err := r.Pool.Exec(ctx, `UPDATE walpost.slots SET unclean_starts = 0, suspect = NULL WHERE slot = $1`, r.Slot)
	if err != nil {
		r.Log.Warn("cannot note that this was a clean stop", "err", err)
	}
}
