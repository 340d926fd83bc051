package wal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/advice"
	"github.com/backendstart/walpost/internal/event"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Slot is what the server says about a replication slot. Columns that its version does not have, and
// values that are NULL, are zero.
// (PostgreSQL manual, "pg_replication_slots")
type Slot struct {
	Name             string
	Plugin, Database string
	Active           bool
	ActivePID        int
	Temporary        bool
	Confirmed        event.LSN
	WALStatus        string // reserved, extended, unreserved, lost
	Invalidation     string // the reason, from 17 on
	LagBytes         int64  // from Confirmed to the end of WAL; negative never reaches a metric
	RetainedBytes    int64  // from the slot's restart_lsn to the end of WAL
	SafeBytes        *int64 // may still be written before the slot is lost; nil without a limit
	CatalogAge       int64  // transactions since the oldest whose dead catalogue rows the slot keeps from vacuum
	SpilledBytes     int64  // written to the server's disk to decode large transactions, ever
	// HeldBackBy is synchronized_standby_slots while the sender waits for a standby named there to have what it is
	// about to send; from 17 on, and only to roles that may see the sender's session.
	// (PostgreSQL manual, "synchronized_standby_slots")
	HeldBackBy string
	// End is where the server writes its WAL, Activity what it shows of the sender at work: the slot's statistics
	// of decoding, and what its session waits for.
	End      event.LSN
	Activity string
	here     string // the database of the query

	conflicting bool // recovery has made it useless; from 16 on
}

// Lost reports whether the server has given up keeping WAL for the slot.
func (s Slot) Lost() bool { return s.WALStatus == "lost" || s.Invalidation != "" }

// LostReason says in words why the slot is lost. Before Postgres 16 the server does not say; there, on a primary, WAL
// was removed.
// (PostgreSQL manual, "pg_replication_slots": invalidation_reason, from 17 on; conflicting, from 16 on)
func (s Slot) LostReason() string {
	switch s.Invalidation {
	case "rows_removed":
		return "the server has removed rows that it needed (rows_removed): a standby without hot_standby_feedback"
	case "wal_level_insufficient":
		return "the primary's wal_level is no longer logical (wal_level_insufficient)"
	case "idle_timeout":
		return "no relay read it for as long as idle_replication_slot_timeout allows (idle_timeout)"
	case "", "wal_removed":
		if s.conflicting {
			return "recovery on this standby removed what it needed (conflicting)"
		}
		return "the server has removed WAL that it needed: it kept more than max_slot_wal_keep_size (wal_removed)"
	}
	return "the server gives the reason " + s.Invalidation
}

// FindSlot looks a slot up, in one query so that its figures fit together. It returns nil when there is
// none of that name. The row comes as JSON because its columns differ between versions.
func FindSlot(ctx context.Context, q Querier, name string) (*Slot, error) {
	var row []byte
	var end string
	s := Slot{Name: name}
	err := q.QueryRow(ctx, `
		SELECT to_jsonb(s), coalesce(pg_catalog.pg_wal_lsn_diff(w.lsn, s.confirmed_flush_lsn), 0)::bigint,
		       coalesce(pg_catalog.pg_wal_lsn_diff(w.lsn, s.restart_lsn), 0)::bigint,
		       coalesce(pg_catalog.age(s.catalog_xmin), 0)::bigint, coalesce(d.spill_bytes, 0), pg_catalog.current_database(),
		       coalesce((SELECT pg_catalog.current_setting('synchronized_standby_slots', true) FROM pg_catalog.pg_stat_activity a
		                 WHERE a.pid = s.active_pid AND a.wait_event = 'WaitForStandbyConfirmation'), ''),
		       w.lsn::text, pg_catalog.concat(d::text, ' ', (SELECT pg_catalog.concat(a.wait_event_type, '/', a.wait_event)
		                 FROM pg_catalog.pg_stat_activity a WHERE a.pid = s.active_pid))
		FROM pg_catalog.pg_replication_slots s LEFT JOIN pg_catalog.pg_stat_replication_slots d USING (slot_name), (SELECT CASE WHEN pg_catalog.pg_is_in_recovery()
		         THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END AS lsn) w
		WHERE s.slot_name = $1`, name).Scan(&row, &s.LagBytes, &s.RetainedBytes, &s.CatalogAge, &s.SpilledBytes, &s.here, &s.HeldBackBy, &end, &s.Activity)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up slot %q: %w", name, err)
	}
	if s.End, err = event.ParseLSN(end); err != nil {
		return nil, fmt.Errorf("look up slot %q: %w", name, err)
	}
	var columns struct {
		Plugin             string  `json:"plugin"`
		Database           string  `json:"database"`
		Active             bool    `json:"active"`
		ActivePID          int     `json:"active_pid"`
		Temporary          bool    `json:"temporary"`
		ConfirmedFlushLSN  *string `json:"confirmed_flush_lsn"`
		WALStatus          string  `json:"wal_status"`
		SafeWALSize        *int64  `json:"safe_wal_size"`
		InvalidationReason string  `json:"invalidation_reason"`
		Conflicting        bool    `json:"conflicting"`
	}
	if err := json.Unmarshal(row, &columns); err != nil {
		return nil, fmt.Errorf("look up slot %q: %w", name, err)
	}
	s.Plugin, s.Database, s.Active, s.ActivePID, s.Temporary = columns.Plugin, columns.Database, columns.Active, columns.ActivePID, columns.Temporary
	s.WALStatus, s.Invalidation, s.SafeBytes, s.conflicting = columns.WALStatus, columns.InvalidationReason, columns.SafeWALSize, columns.Conflicting
	if columns.ConfirmedFlushLSN != nil {
		if s.Confirmed, err = event.ParseLSN(*columns.ConfirmedFlushLSN); err != nil {
			return nil, fmt.Errorf("look up slot %q: %w", name, err)
		}
	}
	return &s, nil
}

// Check says what is wrong with a slot that we are about to read.
func (s Slot) Check() error {
	switch {
	case s.Plugin == "":
		return &SetupError{
			Problem: fmt.Sprintf("slot %q is a physical slot", s.Name),
			Fix:     "choose another name with --slot (WALPOST_SLOT)"}
	case s.Plugin != "pgoutput":
		return &SetupError{
			Problem: fmt.Sprintf("slot %q is used by plugin %q", s.Name, s.Plugin),
			Fix:     "choose another name with --slot (WALPOST_SLOT)"}
	case s.Database != s.here:
		return &SetupError{
			Problem: fmt.Sprintf("slot %q belongs to database %q, this is %q: slot names are unique per server", s.Name, s.Database, s.here),
			Fix:     "choose another name with --slot (WALPOST_SLOT)"}
	case s.Temporary:
		return &SetupError{
			Problem: fmt.Sprintf("slot %q is temporary and belongs to another session", s.Name),
			Fix:     "choose another name with --slot (WALPOST_SLOT), or end that session"}
	}
	return nil
}

// ErrStandby means that the server is a standby. In a failover it becomes the primary, or the address leads
// to another server, a moment later.
var ErrStandby = errors.New("this server is a standby: connect to the primary, or promote it")

// Preflight checks what must hold before a slot can be made; it creates nothing.
func Preflight(ctx context.Context, q Querier, slotExists bool) error {
	var level string
	var recovering, replication bool
	var used, limit int
	var names []string
	err := q.QueryRow(ctx, `
		SELECT pg_catalog.current_setting('wal_level'), pg_catalog.pg_is_in_recovery(),
		       (SELECT rolreplication OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user),
		       (SELECT count(*) FROM pg_catalog.pg_replication_slots),
		       pg_catalog.current_setting('max_replication_slots')::int,
		       ARRAY(SELECT slot_name::text FROM pg_catalog.pg_replication_slots ORDER BY 1)`).
		Scan(&level, &recovering, &replication, &used, &limit, &names)
	switch {
	case err != nil:
		return fmt.Errorf("check the server: %w", err)
	case recovering:
		return ErrStandby
	case level != "logical":
		return &SetupError{
			Problem: fmt.Sprintf("wal_level is %q, not \"logical\"", level),
			Fix:     advice.SetForServer("wal_level", "logical").String() + ", then restart the server"}
	case !slotExists && used >= limit:
		return &SetupError{
			Problem: fmt.Sprintf("all %d replication slots of the server are in use: %v", limit, names),
			Fix:     "drop one that no one needs, or raise max_replication_slots and restart the server"}
	}
	return nil
}

// End is the end of the WAL that is flushed: everything committed durably before the call lies below it.
func End(ctx context.Context, q Querier) (event.LSN, error) {
	var text string
	if err := q.QueryRow(ctx, `SELECT pg_catalog.pg_current_wal_flush_lsn()::text`).Scan(&text); err != nil {
		return 0, fmt.Errorf("look up the end of the WAL: %w", err)
	}
	return event.ParseLSN(text)
}

// DefaultBudget is how much WAL debt may hold where no one says it: half of what the server keeps for a
// slot at most, else 10 GiB.
func DefaultBudget(ctx context.Context, q Querier) (int64, error) {
	var megabytes int64
	err := q.QueryRow(ctx, `SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'`).Scan(&megabytes)
	if err != nil {
		return 0, fmt.Errorf("read max_slot_wal_keep_size: %w", err)
	}
	if megabytes < 0 {
		return 10 << 30, nil
	}
	return megabytes << 20 / 2, nil
}
