package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// New is an event that is about to be written.
type New struct {
	// ID is the identity that receivers dedupe on, a ULID; at most 64 bytes, unique in the table.
	ID string
	// Type names the fact, "lesson.completed".
	Type string
	// AggregateType and AggregateID say what the fact is about; "" is stored as NULL.
	AggregateType, AggregateID string
	// Key is what order is kept within; "" is stored as NULL.
	Key string
	// Payload is one JSON value.
	Payload json.RawMessage
	// Headers travel with the event: "correlation_id", "traceparent".
	Headers map[string]string
}

// Append writes ev to public.outbox within the caller's transaction: the event exists exactly if the
// transaction commits, and nothing has to be published afterwards, because the WAL does that.
//
// It inserts and never upserts: an INSERT … ON CONFLICT DO UPDATE that hits is an update, and the
// publication carries inserts only. A second event of the same id is therefore an error (23505), and
// like any other error it has aborted the transaction.
//
// Where order within the key matters, take a lock on the key before the call and keep it until the
// commit: the row draws its number here, and a repair of the stream reads rows in that order.
func Append(ctx context.Context, tx pgx.Tx, ev New) error {
	sql, args, err := ev.insert(1)
	if err == nil {
		_, err = tx.Exec(ctx, sql, args...)
	}
	if err != nil {
		return fmt.Errorf("append event %q to the outbox: %w", ev.ID, err)
	}
	return nil
}

// InsertFrom is Append for a statement that makes the change as well. The change stands in front, as a common table
// expression that returns one row if there was a change and else none; for that row the event is written. So the two
// cannot part, whatever a trigger makes of the row, and take no round trip more than the change alone:
//
//	insert, args, err := outbox.InsertFrom("paid", ev, orderID)
//	…
//	tag, err := tx.Exec(ctx, `
//		WITH paid AS (UPDATE orders SET status = 'paid' WHERE id = $1 AND status <> 'paid' RETURNING id)`+insert, args...)
//
// args are the values of the parameters that the text in front has, $1 and on. Those of the event come behind them,
// in the text and in what is returned. from is SQL and no data.
func InsertFrom(from string, ev New, args ...any) (sql string, all []any, err error) {
	sql, own, err := ev.insert(len(args) + 1)
	if err != nil {
		return "", nil, fmt.Errorf("write event %q: %w", ev.ID, err)
	}
	return sql + " FROM " + from, slices.Concat(args, own), nil
}

// insert returns the statement that writes ev, its parameters being numbered from first, and their values. It is a
// SELECT, so that FROM can follow. JSON goes as strings, not as bytes: with pgx's simple protocol (a pooler may ask
// for it) bytes become a bytea literal.
func (ev New) insert(first int) (sql string, args []any, err error) {
	if err := ev.check(); err != nil {
		return "", nil, err
	}
	headers := "{}"
	if len(ev.Headers) > 0 {
		text, err := json.Marshal(ev.Headers)
		if err != nil {
			return "", nil, fmt.Errorf("headers: %w", err)
		}
		headers = string(text)
	}
	n := first
	sql = fmt.Sprintf(`
		INSERT INTO public.outbox (event_id, event_type, aggregate_type, aggregate_id, partition_key, payload, headers)
		SELECT $%d::text, $%d::text, nullif($%d, ''), nullif($%d, ''), nullif($%d, ''), $%d::jsonb, $%d::jsonb`,
		n, n+1, n+2, n+3, n+4, n+5, n+6)
	return sql, []any{ev.ID, ev.Type, ev.AggregateType, ev.AggregateID, ev.Key, string(ev.Payload), headers}, nil
}

// check refuses what Postgres would take although it is no event, or although it would be stored altered.
func (ev New) check() error {
	if ev.ID == "" || ev.Type == "" {
		return errors.New("id and type must not be empty")
	}
	for name, value := range ev.Headers {
		// encoding/json would replace the bad bytes without a word.
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fmt.Errorf("header %q is no valid UTF-8", name)
		}
	}
	return nil
}
