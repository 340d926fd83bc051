package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
)

// SlotState is how far a slot has come.
type SlotState string

// The states of a slot.
const (
	SlotCreating SlotState = "creating" // it may exist, but no row was taken from it yet
	SlotReady    SlotState = "ready"
)

// SlotRecord is a row of walpost.slots: what the relay knows about its replication slot.
type SlotRecord struct {
	Name string
	// SystemID and Timeline name the server that the slot was read from.
	SystemID string
	Timeline int32
	Epoch    int32
	// Confirmed is recorded before it is sent: a replication slot beyond it was moved by another program.
	Confirmed   event.LSN
	Fingerprint Fingerprint
	KnownBy     map[string]KnownBy // by schema.table
	State       SlotState
	Ours        bool // the relay made the replication slot, and may drop it
}

// KnownBy are the columns, or paths, by which the events of a table are known: what was found by name when the first event
// was recorded stays what it was, although the table has got a column with a better name or another primary key since.
type KnownBy struct {
	ID   string   `json:"id,omitempty"`
	Time string   `json:"time,omitempty"`
	Key  []string `json:"key,omitempty"` // by which a row is found: the primary key
	// Columns are those of the other parts of an event that were found by name; "" is none.
	Columns map[string]string `json:"columns,omitempty"`
}

// KnownOf returns by which columns the events of a table are known; false where nothing is recorded, also of the slot.
func (r *SlotRecord) KnownOf(schema, table string) (by KnownBy, ok bool) {
	if r != nil {
		by, ok = r.KnownBy[RelationName(schema, table)]
	}
	return by, ok
}

// RelationName is the name of a table as a key of what is recorded of it.
func RelationName(schema, table string) string { return schema + "." + table }

// Fingerprint is what was published when the relay last compared it. Rows that were written while a table was not
// published are in the table and not in the stream, and no message tells of it. (docs/postgres.md §3)
type Fingerprint struct {
	Publication string            `json:"publication,omitempty"` // oid and xmin of its row in pg_publication
	Sources     []PublishedSource `json:"sources,omitempty"`
}

// PublishedSource is a source as a Fingerprint has it: a table, or messages of a prefix.
type PublishedSource struct {
	Name     string   `json:"name"`
	Schema   string   `json:"schema,omitempty"`
	Table    string   `json:"table,omitempty"`
	Messages string   `json:"messages,omitempty"`
	OID      uint32   `json:"oid,omitempty"`     // of the table
	Entries  []string `json:"entries,omitempty"` // oid and xmin of the catalogue rows by which it is published
	Leaves   []Leaf   `json:"leaves,omitempty"`  // of a partitioned table
	// Former is a source that has left the configuration: its rows are passed over.
	Former bool `json:"former,omitempty"`
	// SecondPass says that rows may be in the table and neither owed nor in the stream, because their transactions were
	// running when a repair read the table: a second pass over it is still to come.
	SecondPass bool `json:"second_pass,omitempty"`
}

// Leaf is a partition that holds rows, and by which catalogue rows it belongs to its table. It can have been taken off and
// attached again with rows that no stream has: then its OID is the same and Attached is not.
type Leaf struct {
	OID      uint32 `json:"oid"`
	Attached string `json:"attached"` // the xmin of its row in pg_inherits, and those of the partitions above it
}

// ReadSlotRecord returns what is recorded of a slot, nil if nothing is.
func ReadSlotRecord(ctx context.Context, q Querier, name string) (*SlotRecord, error) {
	slot := SlotRecord{Name: name}
	var confirmed string
	var fingerprint, knownBy []byte
	err := q.QueryRow(ctx, `
		SELECT system_id, timeline, epoch, confirmed::text, fingerprint, known_by, state, ours FROM walpost.slots WHERE slot = $1`, name).
		Scan(&slot.SystemID, &slot.Timeline, &slot.Epoch, &confirmed, &fingerprint, &knownBy, &slot.State, &slot.Ours)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		slot.Confirmed, err = event.ParseLSN(confirmed)
	}
	if err == nil {
		err = json.Unmarshal(fingerprint, &slot.Fingerprint)
	}
	if err == nil {
		err = json.Unmarshal(knownBy, &slot.KnownBy)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is recorded of slot %q: %w", name, err)
	}
	return &slot, nil
}

// ListSlotRecords returns what is recorded of all slots, by name.
func ListSlotRecords(ctx context.Context, q Querier) ([]SlotRecord, error) {
	rows, err := q.Query(ctx, `
		SELECT slot, system_id, timeline, epoch, confirmed::text, fingerprint, state, ours FROM walpost.slots ORDER BY slot`)
	if err != nil {
		return nil, fmt.Errorf("read what is recorded of slots: %w", err)
	}
	slots, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (slot SlotRecord, err error) {
		var confirmed string
		if err := row.Scan(&slot.Name, &slot.SystemID, &slot.Timeline, &slot.Epoch, &confirmed, &slot.Fingerprint, &slot.State, &slot.Ours); err != nil {
			return slot, err
		}
		slot.Confirmed, err = event.ParseLSN(confirmed)
		return slot, err
	})
	if err != nil {
		return nil, fmt.Errorf("read what is recorded of slots: %w", err)
	}
	return slots, nil
}

// WriteKnownBy records by which columns the events of tables are known, by schema.table. What is recorded of other tables
// stays.
func WriteKnownBy(ctx context.Context, tx pgx.Tx, slot string, known map[string]KnownBy) error {
	text, err := json.Marshal(known)
	if err == nil {
		_, err = tx.Exec(ctx, `UPDATE walpost.slots SET known_by = known_by || $2::text::jsonb WHERE slot = $1`, slot, string(text))
	}
	if err != nil {
		return fmt.Errorf("record by which columns the events of slot %q are known: %w", slot, err)
	}
	return nil
}

// MayReadSlots reports whether the schema walpost has the table of slots and the role may read it. Unlike HasSlots it asks
// the catalogue alone, and is no error for a role without rights.
func MayReadSlots(ctx context.Context, q Querier) (may bool, err error) {
	err = q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'walpost' AND c.relname = 'slots'
		  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT'))`).Scan(&may)
	return may, err
}

// HasSlots reports whether the schema walpost has the table of slots.
func HasSlots(ctx context.Context, q Querier) (there bool, err error) {
	err = q.QueryRow(ctx, `SELECT pg_catalog.to_regclass('walpost.slots') IS NOT NULL`).Scan(&there)
	return there, err
}

// WriteCreating records that this relay is making the slot, so that the next start recognizes a creation that broke off.
// It writes the server, the epoch and the fingerprint of slot.
func WriteCreating(ctx context.Context, tx pgx.Tx, slot SlotRecord) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO walpost.slots (slot, system_id, timeline, epoch, fingerprint, state)
		VALUES ($1, $2, $3, $4, $5::text::jsonb, 'creating')
		ON CONFLICT (slot) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline,
		    epoch = excluded.epoch, fingerprint = excluded.fingerprint, state = 'creating',
		    confirmed = '0/0', ours = true, updated_at = pg_catalog.now()`,
		slot.Name, slot.SystemID, slot.Timeline, slot.Epoch, slot.Fingerprint.encode())
	if err != nil {
		return fmt.Errorf("record that slot %q is being made: %w", slot.Name, err)
	}
	return nil
}

// WriteReady records the confirmed position of a slot and what is published. A slot without a record was made by someone
// else: it is recorded as not ours, and is never dropped.
func WriteReady(ctx context.Context, tx pgx.Tx, slot SlotRecord) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO walpost.slots (slot, system_id, timeline, epoch, fingerprint, confirmed, state, ours)
		VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::pg_lsn, 'ready', false)
		ON CONFLICT (slot) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline,
		    epoch = excluded.epoch, fingerprint = excluded.fingerprint, confirmed = excluded.confirmed,
		    state = 'ready', updated_at = pg_catalog.now()`,
		slot.Name, slot.SystemID, slot.Timeline, slot.Epoch, slot.Fingerprint.encode(), slot.Confirmed.String())
	if err != nil {
		return fmt.Errorf("record that slot %q is ready: %w", slot.Name, err)
	}
	return nil
}

// Equal reports whether two fingerprints are recorded in the same way.
func (f Fingerprint) Equal(other Fingerprint) bool { return f.encode() == other.encode() }

func (f Fingerprint) encode() string { return encode(f) }

// encode writes what has only strings, numbers and such as JSON.
func encode(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// WriteFingerprint records what is published.
func WriteFingerprint(ctx context.Context, tx pgx.Tx, slot string, now Fingerprint) error {
	_, err := tx.Exec(ctx, `UPDATE walpost.slots SET fingerprint = $2::text::jsonb, updated_at = pg_catalog.now() WHERE slot = $1`, slot, now.encode())
	if err != nil {
		return fmt.Errorf("record what is published for slot %q: %w", slot, err)
	}
	return nil
}

// RaiseConfirmed records a position; it never goes back. Once that is committed, the server may be told, and
// Fence.Recorded is to be.
func RaiseConfirmed(ctx context.Context, tx pgx.Tx, slot string, confirmed event.LSN) error {
	tag, err := tx.Exec(ctx, `
		UPDATE walpost.slots SET confirmed = greatest(confirmed, $2::text::pg_lsn), records = records + 1, updated_at = pg_catalog.now()
		WHERE slot = $1`, slot, confirmed.String())
	if err != nil {
		return fmt.Errorf("record %v as confirmed of slot %q: %w", confirmed, slot, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("record %v as confirmed of slot %q: its row in walpost.slots is gone; restart walpost", confirmed, slot)
	}
	return nil
}

// SlotEpoch is the epoch of a slot, 1 where nothing is recorded of it.
func SlotEpoch(ctx context.Context, q Querier, slot string) (epoch int32, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce((SELECT epoch FROM walpost.slots WHERE slot = $1), 1)`, slot).Scan(&epoch)
	if err != nil {
		return 0, fmt.Errorf("read the epoch of slot %q: %w", slot, err)
	}
	return epoch, nil
}

// PassedBySlot is a condition: the slot whose name is the first expression has the position behind it that the second
// expression gives as a row (epoch, commit LSN). The server never sends again what committed below the confirmed
// position. (docs/postgres.md §1)
func PassedBySlot(slot, position string) string {
	return `EXISTS (SELECT FROM walpost.slots k WHERE k.slot = ` + slot + ` AND ` + position + ` < (k.epoch, k.confirmed))`
}

// SlotIsKnown is a condition: something is recorded of the slot whose name is the expression.
func SlotIsKnown(slot string) string {
	return `EXISTS (SELECT FROM walpost.slots k WHERE k.slot = ` + slot + `)`
}

// confirmedOf is what is recorded as confirmed of the slot that is argument $1, as pg_lsn.
const confirmedOf = `coalesce((SELECT k.confirmed FROM walpost.slots k WHERE k.slot = $1), '0/0')`

// recordsOf is how often something was recorded for the slot that is argument $1.
const recordsOf = `coalesce((SELECT k.records FROM walpost.slots k WHERE k.slot = $1), 0)`

// FindDoubtConfirmed says why what is recorded as confirmed of a slot cannot be true, "" if it can.
func FindDoubtConfirmed(ctx context.Context, q Querier, slot string) (doubt string, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce(`+DoubtConfirmed+`, '') FROM walpost.slots k WHERE k.slot = $1`, slot).Scan(&doubt)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("read what is confirmed of slot %q: %w", slot, err)
	}
	return doubt, nil
}

// CountUncleanStart notes that a process begins to use a slot. It returns how many have done so before and not ended
// cleanly, and what the last of them had in hand, in JSON; nil for nothing.
func CountUncleanStart(ctx context.Context, tx pgx.Tx, slot string) (before int, inHand json.RawMessage, err error) {
	err = tx.QueryRow(ctx, `
		UPDATE walpost.slots SET unclean_starts = unclean_starts + 1 WHERE slot = $1
		RETURNING unclean_starts - 1, quarantined`, slot).Scan(&before, (*[]byte)(&inHand))
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("count a start with slot %q: %w", slot, err)
	}
	return before, inHand, nil
}

// WriteInHand notes the delivery that is in hand in safe mode, in JSON; nil is none.
func WriteInHand(ctx context.Context, tx pgx.Tx, slot string, inHand json.RawMessage) error {
	var text *string
	if inHand != nil {
		text = new(string)
		*text = string(inHand)
	}
	if _, err := tx.Exec(ctx, `UPDATE walpost.slots SET quarantined = $2::jsonb WHERE slot = $1`, slot, text); err != nil {
		return fmt.Errorf("write down the event in hand at slot %q: %w", slot, err)
	}
	return nil
}

// RenameInHand gives the subscriber of the delivery in hand another name.
func RenameInHand(ctx context.Context, tx pgx.Tx, slot, before, now string) error {
	_, err := tx.Exec(ctx, `
		UPDATE walpost.slots SET quarantined = pg_catalog.jsonb_set(quarantined, '{subscriber}', pg_catalog.to_jsonb($3::text))
		WHERE slot = $1 AND quarantined->>'subscriber' = $2`, slot, before, now)
	if err != nil {
		return fmt.Errorf("rename the subscriber of the event in hand at slot %q: %w", slot, err)
	}
	return nil
}

// ForgetStarts notes that a process ended as it was told to, or has lived long enough for its end to say nothing.
func ForgetStarts(ctx context.Context, tx pgx.Tx, slot string) error {
	_, err := tx.Exec(ctx, `UPDATE walpost.slots SET unclean_starts = 0, quarantined = NULL WHERE slot = $1`, slot)
	if err != nil {
		return fmt.Errorf("forget the starts with slot %q: %w", slot, err)
	}
	return nil
}
