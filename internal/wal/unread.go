package wal

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Unread is a slot that no session reads.
type Unread struct {
	Name          string `json:"name"`
	RetainedBytes int64  `json:"retained_bytes"` // WAL that the server keeps for it
}

// FindUnread returns those of the named logical slots of this database that no one reads and that are not lost.
func FindUnread(ctx context.Context, q Querier, names []string) ([]Unread, error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := q.Query(ctx, `
		SELECT s.slot_name::text, coalesce(pg_catalog.pg_wal_lsn_diff(w.lsn, s.restart_lsn), 0)::bigint
		FROM pg_catalog.pg_replication_slots s, (SELECT CASE WHEN pg_catalog.pg_is_in_recovery()
		         THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END AS lsn) w
		WHERE s.slot_name::text = ANY ($1) AND NOT s.active AND s.plugin = 'pgoutput'
		  AND s.database = pg_catalog.current_database() AND coalesce(s.wal_status, '') <> 'lost'
		ORDER BY 1`, names)
	if err != nil {
		return nil, fmt.Errorf("look for slots that no one reads: %w", err)
	}
	unread, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Unread])
	if err != nil {
		return nil, fmt.Errorf("look for slots that no one reads: %w", err)
	}
	return unread, nil
}
