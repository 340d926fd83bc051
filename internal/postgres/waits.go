package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// LockWait is a statement of ours that waits for a lock.
type LockWait struct {
	PID   int
	Since time.Time // when the statement began
	Query string    // its first words
	By    string    // who holds the lock: pid, role, since when, and query
}

func (w LockWait) String() string {
	return fmt.Sprintf("pid %d waits for a lock since %s (%s); it is held by %s: end that session, or wait for it",
		w.PID, w.Since.UTC().Format(time.RFC3339), w.Query, w.By)
}

// SessionSQL is SQL that tells of a row a of pg_stat_activity whose session it is, and what it does since when. Of sessions
// of other roles the server shows more than pid and role only to superusers and members of pg_read_all_stats. (PostgreSQL
// manual, "pg_stat_activity")
const SessionSQL = `pg_catalog.format('pid %s of role %s%s', a.pid, a.usename, CASE WHEN a.state IS NULL
	THEN ' (what it does is shown only to superusers and members of pg_read_all_stats)'
	ELSE pg_catalog.format(', %s since %s: %s', a.state, coalesce(a.xact_start, a.state_change),
		pg_catalog.left(pg_catalog.regexp_replace(a.query, '\s+', ' ', 'g'), 200)) END)`

// lockWaitsSQL finds the sessions of the asking one's role and application_name that wait for a lock. A prepared transaction
// has no session, and pid 0. (PostgreSQL manual, "pg_blocking_pids")
const lockWaitsSQL = `
	SELECT w.pid, w.query_start, pg_catalog.left(pg_catalog.regexp_replace(w.query, '\s+', ' ', 'g'), 80),
	       coalesce((SELECT pg_catalog.string_agg(CASE WHEN p = 0 THEN 'a prepared transaction (pg_prepared_xacts)'
	           ELSE coalesce((SELECT ` + SessionSQL + ` FROM pg_catalog.pg_stat_activity a WHERE a.pid = p),
	                pg_catalog.format('pid %s', p)) END, '; ')
	           FROM (SELECT DISTINCT p FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) p LIMIT 5) blockers), 'no one any more')
	FROM pg_catalog.pg_stat_activity w
	WHERE w.wait_event_type = 'Lock' AND w.state = 'active' AND w.pid <> pg_catalog.pg_backend_pid()
	  AND w.usename = session_user AND w.application_name = pg_catalog.current_setting('application_name')
	  AND w.query_start < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1)
	ORDER BY w.query_start LIMIT 10`

// FindLockWaits returns the statements of sessions with the pool's application_name that have waited for a lock for so
// long, the oldest first. When all sessions of the pool are taken, it may be because they wait: then it asks on one of its
// own.
func (p *Pool) FindLockWaits(ctx context.Context, after time.Duration) ([]LockWait, error) {
	asking := p
	if stat := p.pool.Stat(); stat.AcquiredConns() >= stat.MaxConns() {
		config := p.pool.Config() // a copy
		config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, 1
		one, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, fmt.Errorf("look who waits for a lock: %w", err)
		}
		defer one.Close()
		asking = &Pool{pool: one, live: p.live}
	}
	rows, err := asking.Query(ctx, lockWaitsSQL, after.Seconds())
	if err != nil {
		return nil, fmt.Errorf("look who waits for a lock: %w", err)
	}
	waits, err := pgx.CollectRows(rows, pgx.RowToStructByPos[LockWait])
	if err != nil {
		return nil, fmt.Errorf("look who waits for a lock: %w", err)
	}
	return waits, nil
}

// lockInterval is how often WatchLockWaits looks, and how long a statement has waited by then.
const lockInterval = 2 * time.Second

// WatchLockWaits reports each statement that waits for a lock, once, until ctx ends. It is for work that people wait for.
func (p *Pool) WatchLockWaits(ctx context.Context, report func(LockWait)) {
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	told := make(map[LockWait]bool)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, 5*lockInterval)
		waits, err := p.FindLockWaits(limited, lockInterval)
		cancel()
		if err != nil {
			continue // what waits says so itself, in the end
		}
		for _, wait := range waits {
			if key := (LockWait{PID: wait.PID, Since: wait.Since}); !told[key] {
				told[key] = true
				report(wait)
			}
		}
	}
}
