package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

// Event is everything that is known of an event: what is stored, and after Tell what a running relay knows.
type Event struct {
	ID string `json:"event"`
	// Rows are the outbox rows with this id, of each source that has one.
	Rows       []EventRow  `json:"rows"`
	Deliveries []Standing  `json:"deliveries"`
	Audit      []debt.Note `json:"audit"`
	// Relay is nil where none was asked, or none has answered.
	Relay *Remembered `json:"relay,omitempty"`
}

// EventRow is an outbox row as it stands.
type EventRow struct {
	Source    string `json:"source"`
	Row       string `json:"row"` // its primary key
	Type      string `json:"type"`
	Key       string `json:"key"`
	Aggregate string `json:"aggregate,omitempty"`
	// CreatedAt and PublishedAt are the texts of the table's columns.
	CreatedAt string `json:"created_at,omitempty"`
	// CommittedAt is when the transaction committed that wrote the row; zero where the server does not know
	// it, and for a published row: only the update that published it is known then.
	CommittedAt time.Time `json:"committed_at,omitzero"`
	// Published is nil where the table has no published column.
	Published   *bool  `json:"published,omitempty"`
	PublishedAt string `json:"published_at,omitempty"`
	// Attempts are the failed ones over all subscribers, written when the row was published.
	Attempts int             `json:"attempts"`
	Invalid  string          `json:"invalid,omitempty"` // why it can be delivered to nobody
	Payload  json.RawMessage `json:"payload,omitempty"`
	Headers  json.RawMessage `json:"headers,omitempty"`
}

// States of a Standing.
const (
	// Finished: nothing of it is left to do. It was delivered or discarded, or the subscriber did not want it,
	// or it began after it.
	Finished = "finished"
	Open     = "open"     // the relay has it in hand
	Waiting  = "waiting"  // owed, and sent again by itself
	Dead     = "dead"     // owed, and waits for a person
	Unwanted = "unwanted" // the configuration keeps it from this subscriber
	// Unknown: the row is not marked, nothing is owed, and no relay was there to say more.
	Unknown = "unknown"
)

// Standing is how far one subscriber is with an event.
type Standing struct {
	Subscriber string `json:"subscriber"`
	Source     string `json:"source"`
	State      string `json:"state"`
	// EffectAt is when the subscriber's effect was committed, where it records that in walpost.inbox.
	EffectAt time.Time `json:"effect_at,omitzero"`
	// Owed is the delivery as it is recorded, in the states waiting and dead.
	Owed *Delivery `json:"owed,omitempty"`

	secured string // position up to which everything of the subscriber is finished or owed
}

// ErrNoEvent means that nothing knows an event.
var ErrNoEvent = errors.New("is not known")

// Known returns an error where neither the database nor, after Tell, a relay knows the event.
func (e Event) Known() error {
	if len(e.Rows)+len(e.Audit)+len(e.Deliveries) > 0 {
		return nil
	}
	return fmt.Errorf("event %q %w: no outbox table has it, nothing of it is owed, and the audit does not name it. "+
		"Retention deletes published rows, so an old event may have been delivered long ago; else look at id and slot", e.ID, ErrNoEvent)
}

// Event looks up what is stored of an event. One that is nowhere has no error, but is not Known.
func (d *Desk) Event(ctx context.Context, id string) (Event, error) {
	e := Event{ID: id, Rows: []EventRow{}, Deliveries: []Standing{}, Audit: []debt.Note{}}
	if !utf8.ValidString(id) || strings.Contains(id, "\x00") {
		return e, nil // Postgres would not take it
	}
	store, err := d.debtWithTables(ctx)
	if err != nil {
		return e, err
	}
	// Positions first, then what is owed: then what lies before a position and is not owed is finished.
	subscribers, err := store.Subscribers(ctx)
	if err != nil {
		return e, err
	}
	rows, err := store.Show(ctx, id)
	if err != nil {
		return e, err
	}
	paid, err := store.List(ctx, debt.Filter{Events: []string{id}, State: lane.StatePaid})
	if err != nil {
		return e, err
	}
	effects, err := store.Effects(ctx, id)
	if err != nil {
		return e, err
	}
	if e.Audit, err = store.Notes(ctx, id); err != nil {
		return e, err
	}
	if e.Rows, err = d.rowsOf(ctx, id); err != nil {
		return e, err
	}
	owed := deliveriesOf(rows)
	for _, source := range e.sources(owed, paid) {
		for _, s := range subscribers {
			standing := Standing{Subscriber: s.Name, Source: source, State: Unknown, EffectAt: effects[s.Name], secured: s.Secured.String()}
			d.stand(&standing, e, owed, paid)
			if s.Gone.IsZero() || standing.Owed != nil {
				e.Deliveries = append(e.Deliveries, standing)
			}
		}
	}
	return e, nil
}

// sources are those with a row or a delivery of the event.
func (e *Event) sources(owed []Delivery, paid []debt.Row) []string {
	var names []string
	for _, row := range e.Rows {
		names = append(names, row.Source)
	}
	for _, o := range owed {
		names = append(names, o.Source)
	}
	for _, p := range paid {
		names = append(names, p.Event.Source)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// stand finds the state of a subscriber from the database alone.
func (d *Desk) stand(s *Standing, e Event, owed []Delivery, paid []debt.Row) {
	var row *EventRow
	for i := range e.Rows {
		if e.Rows[i].Source == s.Source {
			row = &e.Rows[i]
		}
	}
	position := ""
	for i := range owed {
		switch o := &owed[i]; {
		case o.Source != s.Source:
		case o.Subscriber == s.Subscriber:
			s.Owed, s.State = o, string(o.State)
			return
		default:
			position = o.Position
		}
	}
	for _, p := range paid {
		switch {
		case p.Event.Source != s.Source:
		case p.Subscriber == s.Subscriber:
			s.State = Finished
			return
		default:
			position = p.Event.Position.String()
		}
	}
	switch {
	case row != nil && d.takes != nil && !d.takes(s.Subscriber, s.Source, row.Type):
		s.State = Unwanted
	case row != nil && row.Published != nil && *row.Published, // which happens when everybody has finished
		!s.EffectAt.IsZero(), position != "" && position <= s.secured:
		s.State = Finished
	}
}

func (d *Desk) rowsOf(ctx context.Context, id string) ([]EventRow, error) {
	rows := []EventRow{}
	for _, source := range d.sources {
		if source.Messages != "" {
			continue // has no table
		}
		table, err := source.Inspect(ctx, d.pool)
		if err != nil {
			return nil, err
		}
		var stored []outbox.Stored
		err = postgres.InTx(ctx, d.pool, func(tx pgx.Tx) (err error) {
			stored, err = table.Look(ctx, tx, id)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, s := range stored {
			row := EventRow{
				Source: s.Source, Row: s.Row, Type: s.Type, Key: s.Key, CreatedAt: s.OccurredAt, CommittedAt: s.CommittedAt,
				PublishedAt: s.PublishedAt, Attempts: s.Attempts, Invalid: s.Invalid, Payload: jsonOf(s.Payload), Headers: jsonOf(s.Headers),
			}
			if s.AggregateType+s.AggregateID != "" {
				row.Aggregate = s.AggregateType + "/" + s.AggregateID
			}
			if s.Marks {
				row.Published = &s.Published
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// Tell adds what the slot's running relay knows, asked after the database.
func (e *Event) Tell(known Remembered) {
	e.Relay = &known
	attempt := make(map[[2]string]lane.Outcome) // the last one
	position := make(map[string]string)
	for _, a := range known.Attempts {
		attempt[[2]string{a.Source, a.Subscriber}] = a.Outcome
		position[a.Source] = a.Position
		if !slices.ContainsFunc(e.Deliveries, func(s Standing) bool { return s.Source == a.Source && s.Subscriber == a.Subscriber }) {
			// It came without a table, or its row is gone.
			e.Deliveries = append(e.Deliveries, Standing{Subscriber: a.Subscriber, Source: a.Source, State: Unknown})
		}
	}
	for _, name := range known.Open {
		if !slices.ContainsFunc(e.Deliveries, func(s Standing) bool { return s.Subscriber == name }) {
			e.Deliveries = append(e.Deliveries, Standing{Subscriber: name, State: Open}) // not tried yet
		}
	}
	for i := range e.Deliveries {
		s := &e.Deliveries[i]
		at := position[s.Source]
		switch {
		case s.State != Unknown:
		case slices.Contains(known.Open, s.Subscriber):
			s.State = Open
		case attempt[[2]string{s.Source, s.Subscriber}] == lane.Delivered, at != "" && at <= s.secured:
			s.State = Finished
		}
	}
}
