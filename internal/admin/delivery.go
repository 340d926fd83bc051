package admin

import (
	"encoding/json"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/lane"
)

// Delivery is an owed delivery as programs read it. Times are UTC.
type Delivery struct {
	Subscriber string     `json:"subscriber"`
	State      lane.State `json:"state"`
	Source     string     `json:"source"`
	Event      string     `json:"event"`
	Occurrence string     `json:"occurrence"` // tells it from other events that had the id; see event.Identity
	Type       string     `json:"type"`
	Key        string     `json:"key"`
	Position   string     `json:"position"`
	// CommittedAt is zero where the server did not know it.
	CommittedAt time.Time `json:"committed_at,omitzero"`
	RecordedAt  time.Time `json:"recorded_at"`
	// Attempts are those that failed.
	Attempts     int       `json:"attempts"`
	FirstFailure time.Time `json:"first_failure,omitzero"`
	LastFailure  time.Time `json:"last_failure,omitzero"`
	NextAttempt  time.Time `json:"next_attempt,omitzero"`
	Error        string    `json:"error,omitempty"`
	// Invalid says why the event can be delivered to no one.
	Invalid string `json:"invalid,omitempty"`
	// Copied tells that the event is kept with the delivery; else its outbox row is all there is.
	Copied bool `json:"copied"`

	// These are known to Service.Show alone.
	Aggregate string          `json:"aggregate,omitempty"`
	Payload   json.RawMessage `json:"payload,omitempty"`
	Headers   json.RawMessage `json:"headers,omitempty"`
}

// Since is when the event committed, or else when the delivery was recorded.
func (d Delivery) Since() time.Time {
	if d.CommittedAt.IsZero() {
		return d.RecordedAt
	}
	return d.CommittedAt
}

func deliveriesOf(rows []debt.Row) []Delivery {
	deliveries := make([]Delivery, len(rows)) // an empty list is [] in JSON
	for i, row := range rows {
		e := row.Event
		deliveries[i] = Delivery{
			Subscriber: row.Subscriber, State: row.State, Source: e.Source, Event: e.ID, Occurrence: e.Occurrence, Type: e.Type, Key: e.Key,
			Position: e.Position.String(), CommittedAt: e.CommittedAt, RecordedAt: row.RecordedAt,
			Attempts: row.Attempts, FirstFailure: row.FirstFailure, LastFailure: row.LastFailure, NextAttempt: row.NextAttempt,
			Error: row.Err, Invalid: e.Invalid, Copied: row.Copied,
			Payload: jsonOf(e.Payload), Headers: jsonOf(e.Headers),
		}
		if e.AggregateType+e.AggregateID != "" {
			deliveries[i].Aggregate = e.AggregateType + "/" + e.AggregateID
		}
	}
	return deliveries
}

// jsonOf passes JSON through, so that no number becomes another one; any other text becomes a string.
func jsonOf(body []byte) json.RawMessage {
	if len(body) == 0 {
		return nil
	}
	if json.Valid(body) {
		return body
	}
	quoted, _ := json.Marshal(string(body)) // a string can always be written
	return quoted
}
