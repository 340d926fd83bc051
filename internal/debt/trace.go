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
