package slot

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// Writer is a transaction that may have written rows which are neither visible nor, perhaps, in the stream.
type Writer struct {
	XID uint32
	Who string // pid and query, or the name of a prepared transaction
}

// writersSQL lists the transactions with an id that hold ROW EXCLUSIVE on one of the tables $1 or their partitions: no
// other can have written a row. A prepared transaction keeps its locks, its id among them, without a session; one that
// is prepared later keeps its id as well. (PostgreSQL manual, "pg_locks")
const writersSQL = `
	SELECT (pg_catalog.array_agg(x.transactionid ORDER BY pg_catalog.age(x.transactionid) DESC))[1]::text::bigint,
	       coalesce(pg_catalog.min(CASE WHEN a.pid IS NOT NULL THEN ` + postgres.SessionSQL + ` END),
	                pg_catalog.min(CASE WHEN p.gid IS NOT NULL THEN pg_catalog.format('prepared transaction %L of role %s, since %s', p.gid, p.owner, p.prepared) END), 'unknown')
	FROM pg_catalog.pg_locks x
	LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = x.pid
	LEFT JOIN pg_catalog.pg_prepared_xacts p ON x.pid IS NULL AND p.transaction = x.transactionid
	WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
	  AND coalesce(x.pid, 0) <> pg_catalog.pg_backend_pid()
	  AND x.virtualtransaction IN (
		SELECT l.virtualtransaction FROM pg_catalog.pg_locks l
		WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
		  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
		  AND l.relation IN (SELECT t FROM pg_catalog.unnest($1::oid[]) t
			UNION SELECT p.relid FROM pg_catalog.unnest($1::oid[]) t, pg_catalog.pg_partition_tree(t) p))
	GROUP BY x.virtualtransaction ORDER BY pg_catalog.max(pg_catalog.age(x.transactionid)) DESC`

// FindWriters returns the transactions that have written to the tables, perhaps, and have not ended. What was written
// before and is not by one of them is visible in every later snapshot.
func FindWriters(ctx context.Context, q store.Querier, tables []*outbox.Table) ([]Writer, error) {
	var oids []uint32
	for _, table := range tables {
		oids = append(oids, table.OID)
	}
	rows, err := q.Query(ctx, writersSQL, oids)
	if err != nil {
		return nil, fmt.Errorf("find transactions that write to the sources' tables: %w", err)
	}
	writers, err := pgx.CollectRows(rows, scanWriter)
	if err != nil {
		return nil, fmt.Errorf("find transactions that write to the sources' tables: %w", err)
	}
	return writers, nil
}

func scanWriter(row pgx.CollectableRow) (w Writer, err error) {
	var xid int64
	err = row.Scan(&xid, &w.Who)
	w.XID = uint32(xid)
	return w, err
}

// OldestTransaction names the oldest transaction of the server that has an id: making a slot waits for all of them. Where
// the session of another role is hidden, its pid and role are not. (PostgreSQL manual, "pg_stat_activity")
func OldestTransaction(ctx context.Context, q store.Querier) (who string, err error) {
	err = q.QueryRow(ctx, `
		SELECT who FROM (
			SELECT pg_catalog.format('pid %s of role %I%s', pid, usename, ', since ' || xact_start) AS who, pg_catalog.age(backend_xid) AS age
			FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
			UNION ALL
			SELECT pg_catalog.format('prepared transaction %L of role %I, since %s', gid, owner, prepared), pg_catalog.age(transaction)
			FROM pg_catalog.pg_prepared_xacts) w ORDER BY age DESC LIMIT 1`).Scan(&who)
	return who, err
}

// StillWriting returns those of the transactions that have not ended, with what they do now.
func StillWriting(ctx context.Context, pool *postgres.Pool, writers []Writer) (running []Writer, err error) {
	if len(writers) == 0 {
		return nil, nil
	}
	xids := make([]uint32, len(writers))
	for i, w := range writers {
		xids[i] = w.XID
	}
	err = postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		still, err := postgres.StillRunning(ctx, tx, xids)
		running = nil
		for _, w := range writers {
			if still[w.XID] {
				running = append(running, w)
			}
		}
		return err
	})
	return running, err
}
