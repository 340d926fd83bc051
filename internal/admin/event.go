package admin

import (
	"cmp"
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
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/store"
)

// Event is everything that is known of an event: what is stored, and after AddRemembered what a running relay knows.
type Event struct {
	ID string `json:"event"`
	// Rows are the outbox rows with this id, of each source that has one. Two of one source are two events, unless
	// their occurrences are the same.
	Rows       []EventRow   `json:"rows"`
	Deliveries []Standing   `json:"deliveries"`
	Audit      []store.Note `json:"audit"`
	// Relay is nil where none was asked, or none has answered.
	Relay *Remembered `json:"relay,omitempty"`
}

// EventRow is an outbox row as it stands.
type EventRow struct {
	Source string `json:"source"`
	// Event is the id, in a list of many events.
	Event string `json:"event,omitempty"`
	// Occurrence tells the event from others that had its id; see event.Identity.
	Occurrence string `json:"occurrence"`
	Row        string `json:"row"` // its primary key
	Type       string `json:"type"`
	Key        string `json:"key"`
	Aggregate  string `json:"aggregate,omitempty"`
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
	Invalid  string          `json:"invalid,omitempty"` // why it can be delivered to no one
	Payload  json.RawMessage `json:"payload,omitempty"`
	Headers  json.RawMessage `json:"headers,omitempty"`
}

// States of a Standing.
const (
	// Finished: nothing of it is left to do. It was delivered, or the subscriber began after it.
	Finished = "finished"
	// GivenUp: a person has discarded it.
	GivenUp = "discarded"
	// PublishedBefore: its published column was set when the row was written, so it is no event.
	PublishedBefore = "published before"
	Open            = "open"     // the relay has it in hand
	Waiting         = "waiting"  // owed, and sent again by itself
	Dead            = "dead"     // owed, and waits for a person
	Unwanted        = "unwanted" // the subscriber's filter, or the subscriber itself, does not take its type
	// Unknown: the row is not marked, nothing is owed, and no relay was there to say more.
	Unknown = "unknown"
)

// Standing is how far one subscriber is with an event.
type Standing struct {
	Subscriber string `json:"subscriber"`
	Source     string `json:"source"`
	Occurrence string `json:"occurrence"`
	State      string `json:"state"`
	// EffectAt is when the subscriber's effect was committed, where it records that in walpost.inbox.
	EffectAt time.Time `json:"effect_at,omitzero"`
	// Owed is the delivery as it is recorded, in the states waiting and dead.
	Owed *Delivery `json:"owed,omitempty"`

	secured string // position up to which everything of the subscriber is finished or owed
	wants   string // what it wanted, as it is recorded
}

// ErrNoEvent means that nothing knows an event.
var ErrNoEvent = errors.New("is not known")

// Known returns an error where neither the database nor, after AddRemembered, a relay knows the event.
func (e Event) Known() error {
	if len(e.Rows)+len(e.Audit)+len(e.Deliveries) > 0 {
		return nil
	}
	return fmt.Errorf("event %q %w: no outbox table has it, nothing of it is owed, and the audit does not name it. "+
		"Retention deletes published rows, so an old event may have been delivered long ago; else look at id and slot", e.ID, ErrNoEvent)
}

// Event looks up what is stored of an event. One that is nowhere has no error, but is not Known.
func (a *Service) Event(ctx context.Context, id string) (Event, error) {
	e := Event{ID: id, Rows: []EventRow{}, Deliveries: []Standing{}, Audit: []store.Note{}}
	if !utf8.ValidString(id) || strings.Contains(id, "\x00") {
		return e, nil // Postgres would not take it
	}
	owing, err := a.debtWithTables(ctx)
	if err != nil {
		return e, err
	}
	// Positions first, then what is owed: then what lies before a position and is not owed is finished.
	subscribers, err := owing.Subscribers(ctx)
	if err != nil {
		return e, err
	}
	rows, err := owing.Show(ctx, id)
	if err != nil {
		return e, err
	}
	paid, err := owing.List(ctx, debt.Filter{Events: []string{id}, State: lane.StatePaid})
	if err != nil {
		return e, err
	}
	effects, err := store.EffectsOf(ctx, a.pool, a.slot, id)
	if err != nil {
		return e, err
	}
	if e.Audit, err = store.Notes(ctx, a.pool, a.slot, id); err != nil {
		return e, err
	}
	if e.Rows, err = a.rowsOf(ctx, id); err != nil {
		return e, err
	}
	owed := deliveriesOf(rows)
	for _, of := range e.identities(owed, paid) {
		for _, s := range subscribers {
			standing := Standing{Subscriber: s.Name, Source: of.Source, Occurrence: of.Occurrence, State: Unknown,
				EffectAt: effects[store.Effect{Subscriber: s.Name, Event: of}], secured: s.Secured.String(), wants: s.Wants}
			a.findState(&standing, e, owed, paid)
			if s.GoneAt.IsZero() || standing.Owed != nil {
				e.Deliveries = append(e.Deliveries, standing)
			}
		}
	}
	return e, nil
}

// identities are those of the events with the id of which there is a row or a delivery.
func (e *Event) identities(owed []Delivery, paid []debt.Row) []event.Identity {
	var all []event.Identity
	for _, row := range e.Rows {
		all = append(all, event.Identity{Source: row.Source, ID: e.ID, Occurrence: row.Occurrence})
	}
	for _, o := range owed {
		all = append(all, event.Identity{Source: o.Source, ID: e.ID, Occurrence: o.Occurrence})
	}
	for _, p := range paid {
		all = append(all, p.Event.Identity())
	}
	slices.SortFunc(all, func(a, b event.Identity) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Occurrence, b.Occurrence))
	})
	return slices.Compact(all)
}

// of tells whether something is of the standing's event.
func (s *Standing) of(source, occurrence string) bool {
	return s.Source == source && s.Occurrence == occurrence
}

// findState finds the state of a subscriber from the database alone.
func (a *Service) findState(s *Standing, e Event, owed []Delivery, paid []debt.Row) {
	var row *EventRow
	for i := range e.Rows {
		if s.of(e.Rows[i].Source, e.Rows[i].Occurrence) {
			row = &e.Rows[i]
		}
	}
	position := ""
	for i := range owed {
		switch o := &owed[i]; {
		case !s.of(o.Source, o.Occurrence):
		case o.Subscriber == s.Subscriber:
			s.Owed, s.State = o, string(o.State)
			return
		default:
			position = o.Position
		}
	}
	if e.discarded(*s) {
		s.State = GivenUp
		return
	}
	for _, p := range paid {
		switch {
		case !s.of(p.Event.Source, p.Event.Occurrence):
		case p.Subscriber == s.Subscriber:
			s.State = Finished
			return
		default:
			position = p.Event.Position.String()
		}
	}
	switch {
	case !s.EffectAt.IsZero():
		s.State = Finished
	case row != nil && row.bornPublished():
		s.State = PublishedBefore
	case row != nil && !a.wanted(*s, row.Type):
		s.State = Unwanted
	case row != nil && row.Published != nil && *row.Published, // which happens when everyone has finished
		position != "" && position <= s.secured:
		s.State = Finished
	}
}

// wanted tells whether the subscriber takes a type, by the configuration and by what is recorded of it.
func (a *Service) wanted(s Standing, eventType string) bool {
	return (a.takes == nil || a.takes(s.Subscriber, s.Source, eventType)) && relay.Wanted(s.wants, s.Source, eventType)
}

// bornPublished tells whether the row was published when it was written: a mark of walpost is never older than its event.
func (r *EventRow) bornPublished() bool {
	published, created := strings.TrimSuffix(r.PublishedAt, "+00"), strings.TrimSuffix(r.CreatedAt, "+00")
	return published != "" && created != "" && published <= created
}

// discarded tells whether a person has given a delivery up.
func (e *Event) discarded(s Standing) bool {
	for _, note := range e.Audit {
		var what struct {
			Chosen []store.Chosen `json:"chosen"`
		}
		if note.Action == "discard" && json.Unmarshal(note.What, &what) == nil &&
			slices.Contains(what.Chosen, store.Chosen{Subscriber: s.Subscriber, Source: s.Source, Event: e.ID, Occurrence: s.Occurrence}) {
			return true
		}
	}
	return false
}

func (a *Service) rowsOf(ctx context.Context, id string) ([]EventRow, error) {
	rows := []EventRow{}
	tables, err := a.tables(ctx)
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		var stored []outbox.Stored
		err = postgres.InTx(ctx, a.pool, func(tx pgx.Tx) (err error) {
			stored, err = table.FindByID(ctx, tx, id)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, s := range stored {
			row := EventRow{
				Source: s.Source, Occurrence: s.Occurrence, Row: s.Row, Type: s.Type, Key: s.Key, CreatedAt: s.OccurredAt, CommittedAt: s.CommittedAt,
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

// AddRemembered adds what the slot's running relay knows, asked after the database.
func (e *Event) AddRemembered(known Remembered) {
	e.Relay = &known
	type delivery struct{ subscriber, source, occurrence string }
	attempt := make(map[delivery]lane.Outcome) // the last one
	position := make(map[delivery]string)      // without a subscriber
	inHand := make(map[delivery]bool)
	// What came without a table, or whose row is gone, is not among the deliveries yet.
	add := func(of delivery) {
		if !slices.ContainsFunc(e.Deliveries, func(s Standing) bool { return s.Subscriber == of.subscriber && s.of(of.source, of.occurrence) }) {
			e.Deliveries = append(e.Deliveries, Standing{Subscriber: of.subscriber, Source: of.source, Occurrence: of.occurrence, State: Unknown})
		}
	}
	for _, a := range known.Attempts {
		of := delivery{a.Subscriber, a.Source, a.Occurrence}
		attempt[of] = a.Outcome
		position[delivery{source: a.Source, occurrence: a.Occurrence}] = a.Position
		add(of)
	}
	for _, o := range known.InHand {
		of := delivery{o.Subscriber, o.Source, o.Occurrence}
		inHand[of] = true
		add(of)
	}
	for i := range e.Deliveries {
		s := &e.Deliveries[i]
		of := delivery{s.Subscriber, s.Source, s.Occurrence}
		at := position[delivery{source: s.Source, occurrence: s.Occurrence}]
		switch {
		case attempt[of] == lane.Delivered && (s.State == Unwanted || s.State == PublishedBefore): // by what was so then
			s.State = Finished
		case s.State != Unknown:
		case inHand[of]:
			s.State = Open
		case attempt[of] == lane.Delivered, at != "" && at <= s.secured:
			s.State = Finished
		}
	}
}
