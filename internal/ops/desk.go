package ops

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

// Desk is where people see what is owed and change it: the routes below /v1 and the command line both come
// here. It works on the database alone, whether a relay runs or not; what it changes, a running relay
// finds within two seconds. It is safe for concurrent use.
type Desk struct {
	pool       *postgres.Pool
	slot       string
	sources    []*outbox.Source
	configured []string
	// takes is what the configuration sends to a subscriber; nil is everything.
	takes func(subscriber, source, eventType string) bool
}

// NewDesk returns the desk of a slot. sources are where events are found and marked, configured the
// subscribers that the configuration names.
func NewDesk(pool *postgres.Pool, slot string, sources []*outbox.Source, configured []string) *Desk {
	return &Desk{pool: pool, slot: slot, sources: sources, configured: configured}
}

// Pause makes a subscriber owe everything from now on, and Resume lets it be paid and go on. Both may be
// repeated.
func (d *Desk) Pause(ctx context.Context, subscriber, who, why string) error {
	return d.debt().Pause(ctx, subscriber, who, why)
}

// Resume is the end of Pause.
func (d *Desk) Resume(ctx context.Context, subscriber, who, why string) error {
	return d.debt().Resume(ctx, subscriber, who, why)
}

// recently is how long ago a relay must have written a position for nobody to be sure that it has ended.
const recently = time.Minute

// Forgettable returns an error while a subscriber must not be forgotten: the configuration names it, or a
// relay that has it may be running. Relays write at their start which subscribers have left.
func (d *Desk) Forgettable(ctx context.Context, name string) error {
	if slices.Contains(d.configured, name) {
		return debt.Refused(fmt.Sprintf("forget subscriber %q: it is in the configuration: take it out, restart the relay, and forget it then", name))
	}
	status, err := d.Status(ctx)
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
func (d *Desk) Forget(ctx context.Context, name, who, why string) error {
	if err := d.Forgettable(ctx, name); err != nil {
		return err
	}
	store, err := d.debtWithTables(ctx)
	if err != nil {
		return err
	}
	if err := store.Forget(ctx, name, who, why); err != nil {
		return err
	}
	return d.replays().CancelAll(ctx, name)
}

// Owed lists deliveries in the order in which they are sent, without payloads. more tells that the
// filter's limit has cut some off.
func (d *Desk) Owed(ctx context.Context, filter debt.Filter) (deliveries []Delivery, more bool, err error) {
	limit := filter.Limit
	if limit > 0 {
		filter.Limit++
	}
	rows, err := d.debt().List(ctx, filter)
	if err != nil {
		return nil, false, err
	}
	if more = limit > 0 && len(rows) > limit; more {
		rows = rows[:limit]
	}
	return deliveriesOf(rows), more, nil
}

// ErrNotOwed means that an event is owed to nobody.
var ErrNotOwed = errors.New("is owed to nobody")

// Show returns everything about an event that is owed, one delivery for each subscriber and source.
func (d *Desk) Show(ctx context.Context, eventID string) ([]Delivery, error) {
	store, err := d.debtWithTables(ctx)
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
func (d *Desk) Fitting(ctx context.Context, filter debt.Filter) ([]debt.Count, time.Time, error) {
	return d.debt().Fitting(ctx, filter)
}

// Added is what became of events that were added.
type Added struct {
	// Deliveries is how many were added, or made dead. What was owed already is not among them.
	Deliveries int `json:"deliveries"`
	// Missing are ids that no outbox table has.
	Missing []string `json:"missing,omitempty"`
}

// Add makes events of the outbox tables owed to a subscriber. As dead ones it also ends those that wait.
func (d *Desk) Add(ctx context.Context, subscriber string, eventIDs []string, state lane.State, who, why string) (Added, error) {
	store, err := d.debtWithTables(ctx)
	if err != nil {
		return Added{}, err
	}
	n, missing, err := store.Add(ctx, subscriber, eventIDs, state, who, why)
	return Added{n, missing}, err
}

func (d *Desk) debt() *debt.Store { return debt.NewStore(d.pool, d.slot) }

// debtWithTables is for what reads or marks outbox rows.
func (d *Desk) debtWithTables(ctx context.Context) (*debt.Store, error) {
	tables, err := d.tables(ctx)
	if err != nil {
		return nil, err
	}
	store := d.debt()
	store.Use(tables)
	return store, nil
}

// tables looks the sources' tables up, each time, because they may have been changed.
func (d *Desk) tables(ctx context.Context) ([]*outbox.Table, error) {
	var tables []*outbox.Table
	for _, source := range d.sources {
		if source.Messages != "" {
			continue
		}
		table, err := source.Inspect(ctx, d.pool)
		if err != nil {
			return nil, err
		}
		tables = append(tables, table)
	}
	return tables, nil
}
