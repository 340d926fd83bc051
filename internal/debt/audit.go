package debt

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Channel is what the relay can LISTEN on to hear at once of what people change; the payload is the slot.
const Channel = "walpost"

// audit writes down what a person changes in the transaction that changes it, and returns the number of
// the row. At its commit the relay hears of it.
func (s *Store) audit(ctx context.Context, tx pgx.Tx, who, action string, facts map[string]any, why string) (id int64, err error) {
	what, err := json.Marshal(facts)
	if err != nil {
		return 0, fmt.Errorf("write the audit: %w", err)
	}
	err = tx.QueryRow(ctx, `
		WITH told AS (SELECT pg_notify($6, $1))
		INSERT INTO walpost.audit (slot, who, action, what, why)
		SELECT $1, $2, $3, $4::text::jsonb, $5 FROM told RETURNING id`,
		s.slot, text(who), action, string(what), text(why), Channel).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("write the audit: %w", err)
	}
	return id, nil
}
