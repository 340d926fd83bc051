package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// insert is a SELECT, so that a condition can follow. It has strings for JSON, not bytes: with pgx's simple
// protocol (a pooler may ask for it) bytes become a bytea literal.
const insert = `
	INSERT INTO public.outbox (event_id, event_type, aggregate_type, aggregate_id, partition_key, payload, headers)
	SELECT $1::text, $2::text, nullif($3, ''), nullif($4, ''), nullif($5, ''), $6::jsonb, $7::jsonb`

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
	args, err := ev.args()
	if err == nil {
		_, err = tx.Exec(ctx, insert, args...)
	}
	return ev.appended(err)
}

// QueueIf is Append for a batch that is a transaction, or a part of one. The event is written if condition,
// which is SQL and no data, holds when the server gets there: so it can depend on what a statement before it
// has changed without a round trip in between. In the condition $1 is the id of the event; its own
// parameters, of which args are the values, begin with $8.
//
// What Postgres has to say against the event is an error of the batch.
func QueueIf(batch *pgx.Batch, ev New, condition string, args ...any) error {
	own, err := ev.args()
	if err != nil {
		return ev.appended(err)
	}
	batch.Queue(insert+" WHERE "+condition, append(own, args...)...).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		return ev.appended(err)
	}
	return nil
}

// appended says of an error, if there is one, what it was about.
func (ev New) appended(err error) error {
	if err != nil {
		return fmt.Errorf("append event %q to the outbox: %w", ev.ID, err)
	}
	return nil
}

// args are the values of insert.
func (ev New) args() ([]any, error) {
	if err := ev.check(); err != nil {
		return nil, err
	}
	headers := "{}"
	if len(ev.Headers) > 0 {
		text, err := json.Marshal(ev.Headers)
		if err != nil {
			return nil, fmt.Errorf("headers: %w", err)
		}
		headers = string(text)
	}
	return []any{ev.ID, ev.Type, ev.AggregateType, ev.AggregateID, ev.Key, string(ev.Payload), headers}, nil
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
