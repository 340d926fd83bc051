package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/lane"
)

// Owed lists deliveries in the order in which they are sent, without payloads. more tells that the
// filter's limit has cut some off.
func (a *Service) Owed(ctx context.Context, filter debt.Filter) (deliveries []Delivery, more bool, err error) {
	limit := filter.Limit
	if limit > 0 {
		filter.Limit++
	}
	rows, err := a.debt().List(ctx, filter)
	if err != nil {
		return nil, false, err
	}
	if more = limit > 0 && len(rows) > limit; more {
		rows = rows[:limit]
	}
	return deliveriesOf(rows), more, nil
}

// ErrNotOwed means that an event is owed to no one.
var ErrNotOwed = errors.New("is owed to no one")

// Show returns everything about an event that is owed, one delivery for each subscriber and source.
func (a *Service) Show(ctx context.Context, eventID string) ([]Delivery, error) {
	store, err := a.debtWithTables(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := store.Show(ctx, eventID)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("event %q %w: it was delivered, discarded or marked, or it does not exist", eventID, ErrNotOwed)
	}
	return deliveriesOf(rows), nil
}

// Fitting counts what a filter chooses, and returns when that was by the server's clock.
func (a *Service) Fitting(ctx context.Context, filter debt.Filter) ([]debt.Count, time.Time, error) {
	return a.debt().Fitting(ctx, filter)
}

// Added is what became of events that were added.
type Added struct {
	// Deliveries is how many were added, or made dead. What was owed already is not among them.
	Deliveries int `json:"deliveries"`
	// Missing are ids that no outbox table has.
	Missing []string `json:"missing,omitempty"`
}

// Add makes events of the outbox tables owed to a subscriber. As dead ones it also ends those that wait.
func (a *Service) Add(ctx context.Context, subscriber string, eventIDs []string, state lane.State, who, why string) (Added, error) {
	if err := a.refuseStrangers(ctx); err != nil {
		return Added{}, err
	}
	store, err := a.debtWithTables(ctx)
	if err != nil {
		return Added{}, err
	}
	n, missing, err := store.Add(ctx, subscriber, eventIDs, state, who, why)
	return Added{n, missing}, err
}
