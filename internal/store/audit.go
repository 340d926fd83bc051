package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
)

// Channel is what the relay can LISTEN on to hear at once of what people change; the payload is the slot.
const Channel = "walpost"

// noteLimit is how long a note of the relay waits for a lock.
const noteLimit = 2 * time.Second

// NoteByRelay writes down what the relay does by itself, in the transaction that does it. A note that fails takes
// nothing back: the caller logs the error and goes on. (A person's change without its note is refused: Audit.)
func NoteByRelay(ctx context.Context, tx pgx.Tx, slot, who, action string, facts map[string]any, why string) error {
	return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		if err := limitLocks(ctx, savepoint, noteLimit); err != nil {
			return err
		}
		if _, err := Audit(ctx, savepoint, slot, who, action, facts, why); err != nil {
			return err
		}
		return limitLocks(ctx, savepoint, 0)
	})
}

// limitLocks bounds how long a statement of the transaction waits for a lock; 0 is for ever.
func limitLocks(ctx context.Context, tx pgx.Tx, limit time.Duration) error {
	_, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('lock_timeout', $1, true)`, strconv.FormatInt(limit.Milliseconds(), 10))
	if err != nil {
		return fmt.Errorf("limit the wait for locks: %w", err)
	}
	return nil
}

// Audit writes down what a person changes at a slot, in the transaction that changes it, and returns the
// number of the row. Announce it after the commit. Without the note there is no change.
//
// The turn that it takes makes the numbers of a slot visible in their order: a relay takes the highest for the last.
func Audit(ctx context.Context, tx pgx.Tx, slot, who, action string, facts map[string]any, why string) (id int64, err error) {
	what, err := json.Marshal(facts)
	if err != nil {
		return 0, fmt.Errorf("write the audit: %w", err)
	}
	if err := AwaitTurn(ctx, tx, slot, TurnAudit); err != nil {
		return 0, err
	}
	var last int64 // before this one
	err = tx.QueryRow(ctx, `
		INSERT INTO walpost.audit AS a (slot, who, action, what, why) VALUES ($1, $2, $3, $4::text::jsonb, $5)
		RETURNING a.id, (SELECT coalesce(max(id), 0) FROM walpost.audit WHERE slot = $1)`,
		slot, Storable(who), action, string(what), Storable(why)).Scan(&id, &last)
	return id, explainAudit(err, id, last)
}

// explainAudit says what to do where the numbers of the audit do not grow: a relay takes the highest for the last
// change, so it would never see this one.
func explainAudit(err error, id, last int64) error {
	const behind = "its sequence stands behind the table, as after a copy or a restore of the rows alone; set it: " +
		"SELECT setval(pg_get_serial_sequence('walpost.audit', 'id'), (SELECT max(id) FROM walpost.audit))"
	switch {
	case postgres.Code(err) == "23505": // unique_violation
		return fmt.Errorf("write the audit: %w: %s", err, behind)
	case err != nil:
		return fmt.Errorf("write the audit: %w", err)
	case id <= last:
		return fmt.Errorf("write the audit: note %d would come before note %d: %s", id, last, behind)
	}
	return nil
}

// AuditMore adds deliveries to what is written down already, and returns its new number: a relay takes the highest one
// for the last.
func AuditMore(ctx context.Context, tx pgx.Tx, slot string, note int64, deliveries int) (id int64, err error) {
	if err := AwaitTurn(ctx, tx, slot, TurnAudit); err != nil {
		return 0, err
	}
	var last int64
	err = tx.QueryRow(ctx, `
		UPDATE walpost.audit a SET id = DEFAULT,
		    what = what || jsonb_build_object('deliveries', coalesce((what->>'deliveries')::bigint, 0) + $2::bigint)
		WHERE id = $1 RETURNING a.id, (SELECT coalesce(max(id), 0) FROM walpost.audit WHERE slot = a.slot)`, note, deliveries).Scan(&id, &last)
	return id, explainAudit(err, id, last)
}

// announceLimit bounds the wait for the one lock that all transactions with a notification take at their commit.
const announceLimit = time.Second

// Announce lets a relay that listens hear at once of what was committed. A notification is no part of the change: any
// role that can connect can fill the server's queue of them, and then each transaction that has one fails at its commit.
// A relay that hears nothing looks every two seconds. (PostgreSQL manual, "NOTIFY")
func Announce(ctx context.Context, pool *postgres.Pool, slot string) {
	ctx, cancel := context.WithTimeout(ctx, announceLimit)
	defer cancel()
	_, _ = pool.Exec(ctx, `SELECT pg_catalog.pg_notify($1, $2)`, Channel, slot)
}

// Note is a row of walpost.audit: what a person has changed, and why.
type Note struct {
	At     time.Time       `json:"at"`
	Who    string          `json:"who"`
	Action string          `json:"action"`
	What   json.RawMessage `json:"what"`
	Why    string          `json:"why,omitempty"`
}

// Chosen is a delivery that a change has chosen, as the member "chosen" of its note has it.
type Chosen struct {
	Subscriber string `json:"subscriber"`
	Source     string `json:"source"`
	Event      string `json:"event"`
	Occurrence string `json:"occurrence"`
}

// Notes returns what was done to an event, oldest first. The notes of a discard name every delivery.
func Notes(ctx context.Context, q Querier, slot, eventID string) ([]Note, error) {
	rows, err := q.Query(ctx, `
		SELECT at, who, action, what, why FROM walpost.audit
		WHERE slot = $1 AND (what->>'event' = $2 OR what->'events' ? $2
		    OR what->'chosen' @> pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('event', $2::text))) ORDER BY id`, slot, eventID)
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

// PlacedNote is a note with its number.
type PlacedNote struct {
	ID int64 `json:"id"`
	Note
}

// ListNotes returns notes of a slot, the newest first: of these actions (none is all), with numbers below before (0 is
// all), at most limit.
func ListNotes(ctx context.Context, q Querier, slot string, actions []string, before int64, limit int) ([]PlacedNote, error) {
	rows, err := q.Query(ctx, `
		SELECT id, at, who, action, what, why FROM walpost.audit
		WHERE slot = $1 AND (cardinality($2::text[]) = 0 OR action = ANY ($2)) AND ($3 = 0 OR id < $3) ORDER BY id DESC LIMIT $4`,
		slot, append([]string{}, actions...), before, limit)
	if err != nil {
		return nil, fmt.Errorf("read the audit of slot %q: %w", slot, err)
	}
	notes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (PlacedNote, error) {
		var n PlacedNote
		err := row.Scan(&n.ID, &n.At, &n.Who, &n.Action, &n.What, &n.Why)
		n.At = n.At.UTC()
		return n, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the audit of slot %q: %w", slot, err)
	}
	return notes, nil
}

// LastChangeSQL is the number of the last change by people at a slot; slot is an expression.
func LastChangeSQL(slot string) string {
	return `(SELECT coalesce(max(n.id), 0) FROM walpost.audit n WHERE n.slot = ` + slot + `)`
}

// Storable makes a string that Postgres can store out of one that came from anywhere.
func Storable(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
}
