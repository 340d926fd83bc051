// Package admin is what operators may see and change: status, owed deliveries, subscribers, replays, single events.
// It never calls a subscriber: a change is a row, which the relay finds. Package ops serves it over HTTP, package cli at
// the command line.
package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

// Service shows what is owed and changes it, for the ops API and for the commands. It works on the database alone,
// whether a relay runs or not; a running relay finds a change within two seconds. It is safe for concurrent use.
type Service struct {
	pool       *postgres.Pool
	slot       string
	sources    []*outbox.Source
	configured []string
	// takes is what the configuration sends to a subscriber; nil is everything.
	takes func(subscriber, source, eventType string) bool
}

// New returns the service for a slot. sources are where events are found and marked, configured the
// subscribers that the configuration names.
func New(pool *postgres.Pool, slot string, sources []*outbox.Source, configured []string) *Service {
	return &Service{pool: pool, slot: slot, sources: sources, configured: configured}
}

// Pause makes a subscriber owe everything from now on, and Resume lets it be paid and go on. Both may be
// repeated.
func (a *Service) Pause(ctx context.Context, subscriber, who, why string) error {
	return a.debt().Pause(ctx, subscriber, who, why)
}

// Resume is the end of Pause.
func (a *Service) Resume(ctx context.Context, subscriber, who, why string) error {
	return a.debt().Resume(ctx, subscriber, who, why)
}

// recently is how long ago a relay must have written a position for no one to be sure that it has ended.
const recently = time.Minute

// Forgettable returns an error while a subscriber must not be forgotten: the configuration names it, or a
// relay that has it may be running. Relays write at their start which subscribers have left.
func (a *Service) Forgettable(ctx context.Context, name string) error {
	if slices.Contains(a.configured, name) {
		return debt.Refused(fmt.Sprintf("forget subscriber %q: it is in the configuration: take it out, restart the relay, and forget it then", name))
	}
	status, err := a.Status(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(status.Subscribers, func(s Subscriber) bool { return s.Name == name })
	if at < 0 || status.Subscribers[at].State == Gone {
		return nil // of the first, the debt knows whether there is anything of it
	}
	ago := status.At.Sub(status.Subscribers[at].LastSeen).Round(time.Second)
	switch {
	case status.Slot.Active:
		return debt.Refused(fmt.Sprintf("forget subscriber %q: the relay that runs has it: restart that relay without it, and forget it then", name))
	case ago < recently:
		return debt.Refused(fmt.Sprintf("forget subscriber %q: a relay had it %s ago and may come back: wait a minute, or start a relay without it", name, ago))
	}
	return nil
}

// Forget removes everything about a subscriber, unless it is not Forgettable.
func (a *Service) Forget(ctx context.Context, name, who, why string) error {
	if err := a.Forgettable(ctx, name); err != nil {
		return err
	}
	store, err := a.debtWithTables(ctx)
	if err != nil {
		return err
	}
	if err := store.Forget(ctx, name, who, why); err != nil {
		return err
	}
	return a.replays().CancelAll(ctx, name)
}

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

func (a *Service) debt() *debt.Store { return debt.NewStore(a.pool, a.slot) }

// debtWithTables is for what reads or marks outbox rows.
func (a *Service) debtWithTables(ctx context.Context) (*debt.Store, error) {
	tables, err := a.tables(ctx)
	if err != nil {
		return nil, err
	}
	store := a.debt()
	store.Use(tables)
	return store, nil
}

// tables looks the sources' tables up, each time, because they may have been changed.
func (a *Service) tables(ctx context.Context) ([]*outbox.Table, error) {
	sources, _, _, err := a.knownSources(ctx)
	if err != nil {
		return nil, err
	}
	var tables []*outbox.Table
	for _, source := range sources {
		if source.Messages != "" {
			continue
		}
		table, err := source.Inspect(ctx, a.pool)
		if err != nil {
			return nil, err
		}
		tables = append(tables, table)
	}
	return tables, nil
}
