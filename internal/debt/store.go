// Package debt keeps what is owed in the table walpost.owed: deliveries that left the stream's hands and
// are sent again later or wait for a person. It is the only room that knows this table's columns. Lanes
// reach it through lane.Ower.
package debt

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/postgres"
)

// maxError is how many bytes of an error are kept with a delivery.
const maxError = 4096

// Store is the debt of one slot. It is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	slot string
}

// NewStore returns the debt of a slot.
func NewStore(pool *pgxpool.Pool, slot string) *Store { return &Store{pool: pool, slot: slot} }

// Dead records a dead letter with a copy of its event. It returns nil when that is committed and flushed.
func (s *Store) Dead(ctx context.Context, subscriber string, letter lane.Owed) error {
	ev := letter.Event
	err := postgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO walpost.owed (slot, subscriber, source, event_id, state, epoch, commit_lsn, ordinal,
			    event_type, key, row_id, xid, committed_at, attempts, first_failure, last_failure, error,
			    version, aggregate_type, aggregate_id, topic, revision, occurred_at, payload, headers)
			VALUES ($1, $2, $3, $4, 'dead', $5, $6::text::pg_lsn, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
			    $17, $18, $19, $20, $21, $22, $23, $24)
			ON CONFLICT (slot, subscriber, source, event_id) DO UPDATE
			SET state = 'dead', attempts = excluded.attempts, first_failure = excluded.first_failure,
			    last_failure = excluded.last_failure, error = excluded.error, next_attempt = NULL`,
			s.slot, subscriber, ev.Source, ev.ID, ev.Position.Epoch, ev.Position.Commit.String(), ev.Position.Ordinal,
			text(ev.Type), text(ev.Key), ev.Row, int64(ev.XID), ev.CommittedAt, letter.Attempts,
			letter.FirstFailure, letter.LastFailure, reason(letter.Err),
			text(ev.Version), text(ev.AggregateType), text(ev.AggregateID), text(ev.Topic), text(ev.Revision),
			text(ev.OccurredAt), raw(ev.Payload), raw(ev.Headers))
		return err
	})
	if err != nil {
		return fmt.Errorf("record event %q of %q as dead: %w", ev.ID, subscriber, err)
	}
	return nil
}

// Count is a number of owed deliveries.
type Count struct {
	Subscriber, State string
	Number            int64
}

// Counts tells how much each subscriber is owed, by state.
func (s *Store) Counts(ctx context.Context) ([]Count, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT subscriber, state, count(*) FROM walpost.owed WHERE slot = $1 AND state <> 'paid' GROUP BY 1, 2`, s.slot)
	if err != nil {
		return nil, fmt.Errorf("count owed deliveries: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Count])
	if err != nil {
		return nil, fmt.Errorf("count owed deliveries: %w", err)
	}
	return counts, nil
}

// reason is what is kept of an error: Postgres stores no NUL, and a receiver's answer can be long.
func reason(err string) string {
	s := text(err)
	if len(s) > maxError {
		s = strings.ToValidUTF8(s[:maxError], "")
	}
	return s
}

// text makes a string that Postgres can store out of one that came from anywhere.
func text(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "�")
}

// raw passes JSON text through; nil is NULL.
func raw(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}
