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
// the row.
func (s *Store) audit(ctx context.Context, tx pgx.Tx, who, action string, facts map[string]any, why string) (id int64, err error) {
	return Audit(ctx, tx, s.slot, who, action, facts, why)
}

// Audit writes down what a person changes at a slot, or the relay by itself, in the transaction that changes it, and returns the
// number of the row in walpost.audit. At its commit the relay hears of it.
func Audit(ctx context.Context, tx pgx.Tx, slot, who, action string, facts map[string]any, why string) (id int64, err error) {
	what, err := json.Marshal(facts)
	if err != nil {
		return 0, fmt.Errorf("write the audit: %w", err)
	}
	if err := tell(ctx, tx, slot); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, `
		INSERT INTO walpost.audit (slot, who, action, what, why) VALUES ($1, $2, $3, $4::text::jsonb, $5) RETURNING id`,
		slot, text(who), action, string(what), text(why)).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("write the audit: %w", err)
	}
	return id, nil
}

// auditMore adds deliveries to what is written down already, and returns its new number: a relay looks for
// the highest one.
func (s *Store) auditMore(ctx context.Context, tx pgx.Tx, note int64, deliveries int) (id int64, err error) {
	if err := tell(ctx, tx, s.slot); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, `
		UPDATE walpost.audit SET id = DEFAULT,
		    what = what || jsonb_build_object('deliveries', coalesce((what->>'deliveries')::bigint, 0) + $2::bigint)
		WHERE id = $1 RETURNING id`, note, deliveries).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("write the audit: %w", err)
	}
	return id, nil
}

// tell lets a relay that listens know, at the commit, that something was changed. Until then nobody else
// writes into the audit of this slot: its numbers must become visible in their order, because a relay takes
// the highest for the last.
func tell(ctx context.Context, tx pgx.Tx, slot string) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('walpost audit ' || $2, 0)), pg_notify($1, $2)`, Channel, slot)
	if err != nil {
		return fmt.Errorf("tell the relay of a change: %w", err)
	}
	return nil
}
