package store

import (
	"context"
	"fmt"

	"github.com/backendstart/walpost/internal/event"
)

// endOfWAL is the end of what was ever written to the WAL. On a standby no one can say it, so nothing lies beyond it.
const endOfWAL = `CASE WHEN pg_catalog.pg_is_in_recovery() THEN 'FFFFFFFF/FFFFFFFF' ELSE pg_catalog.pg_current_wal_insert_lsn() END`

// DoubtPosition is why the positions of a subscriber, row s of walpost.subscribers, cannot be true at its slot, row k of
// walpost.slots: NULL if they can. Positions of zero claim nothing, and those of one that has left for good are not used.
const DoubtPosition = `CASE
	WHEN s.gone_at IS NOT NULL AND s.wants = '[]' THEN NULL
	WHEN (s.secured_epoch, s.secured_commit, s.secured_ordinal, s.finished_epoch, s.finished_commit, s.finished_ordinal) = (0, '0/0', 0, 0, '0/0', 0) THEN NULL
	WHEN s.system_id <> k.system_id THEN
		pg_catalog.format('its position is of server %L, and the slot is read from server %L', s.system_id, k.system_id)
	WHEN s.secured_epoch <> k.epoch THEN
		pg_catalog.format('its position is of epoch %s, and the slot is in epoch %s', s.secured_epoch, k.epoch)
	WHEN greatest(s.secured_commit, s.finished_commit) > ` + endOfWAL + ` THEN
		pg_catalog.format('its position %s lies beyond %s, the end of the WAL', greatest(s.secured_commit, s.finished_commit), ` + endOfWAL + `)
	WHEN (s.finished_epoch, s.finished_commit, s.finished_ordinal) > (s.secured_epoch, s.secured_commit, s.secured_ordinal) THEN
		'more of it is said to be finished than finished or owed'
	END`

// DoubtConfirmed is why what is recorded as confirmed of a slot, row k of walpost.slots, cannot be true: NULL if it can.
const DoubtConfirmed = `CASE WHEN k.confirmed > ` + endOfWAL + ` THEN
	pg_catalog.format('%s is recorded as confirmed of slot "%s", beyond %s, the end of the WAL', k.confirmed, k.slot, ` + endOfWAL + `) END`

// WALEnd is the end of what was ever written to the WAL, flushed or not: what earlier statements of the transaction
// have seen committed lies below it.
func WALEnd(ctx context.Context, q Querier) (event.LSN, error) {
	var text string
	if err := q.QueryRow(ctx, `SELECT pg_catalog.pg_current_wal_insert_lsn()::text`).Scan(&text); err != nil {
		return 0, fmt.Errorf("look up the end of the WAL: %w", err)
	}
	return event.ParseLSN(text)
}
