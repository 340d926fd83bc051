package debt

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
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

// Effects tells by subscriber when its effect of an event was committed, for subscribers that record that
// in walpost.inbox.
func (s *Store) Effects(ctx context.Context, eventID string) (map[string]time.Time, error) {
	rows, err := s.pool.Query(ctx, `SELECT subscriber, done_at FROM walpost.inbox WHERE slot = $1 AND event_id = $2`, s.slot, eventID)
	if err != nil {
		return nil, fmt.Errorf("read inbox for event %q: %w", eventID, err)
	}
	effects := make(map[string]time.Time)
	var subscriber string
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&subscriber, &at}, func() error {
		effects[subscriber] = at.UTC()
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read inbox for event %q: %w", eventID, err)
	}
	return effects, nil
}
