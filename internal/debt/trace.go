package debt

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
)

// Note is a row of walpost.audit: what a person has changed, and why.
type Note struct {
	At     time.Time       `json:"at"`
	Who    string          `json:"who"`
	Action string          `json:"action"`
	What   json.RawMessage `json:"what"`
	Why    string          `json:"why,omitempty"`
}

// Notes returns what was done to an event by its id, oldest first. What was done to it as one of all that a
// filter chose does not name it, and neither does a list of more than 1,000.
func (s *Store) Notes(ctx context.Context, eventID string) ([]Note, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT at, who, action, what, why FROM walpost.audit
		WHERE slot = $1 AND (what->>'event' = $2 OR what->'events' ? $2) ORDER BY id`, s.slot, eventID)
	if err != nil {
		return nil, fmt.Errorf("read audit of event %q: %w", eventID, err)
	}
	notes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Note, error) {
		var n Note
		err := row.Scan(&n.At, &n.Who, &n.Action, &n.What, &n.Why)
		n.At = n.At.UTC()
		return n, err
	})
	if err != nil {
		return nil, fmt.Errorf("read audit of event %q: %w", eventID, err)
	}
	return notes, nil
}

// Effect is what a subscriber has done of an event.
type Effect struct {
	Subscriber string
	Event      event.Identity
}

// Effects tells when the effects of the events with an id were committed, for subscribers that record that in
// walpost.inbox.
func (s *Store) Effects(ctx context.Context, eventID string) (map[Effect]time.Time, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT subscriber, source, event_id, occurrence, done_at FROM walpost.inbox
		WHERE slot = $1 AND subscriber IN (SELECT name FROM walpost.subscribers WHERE slot = $1) AND event_id = $2`, s.slot, eventID)
	if err != nil {
		return nil, fmt.Errorf("read inbox for event %q: %w", eventID, err)
	}
	effects := make(map[Effect]time.Time)
	var effect Effect
	var at time.Time
	of := &effect.Event
	if _, err := pgx.ForEachRow(rows, []any{&effect.Subscriber, &of.Source, &of.ID, &of.Occurrence, &at}, func() error {
		effects[effect] = at.UTC()
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read inbox for event %q: %w", eventID, err)
	}
	return effects, nil
}
