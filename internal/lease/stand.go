package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/store"
)

// stand stands by until this process is elected, and returns the key that its session has then. It lets nothing of an
// old leadership go on.
func (l *Lease) stand(ctx context.Context, conn *pgx.Conn) (store.Key, error) {
	var said string
	var told time.Time     // when it was last said that the leader's sessions are ended
	var free time.Duration // since when no session is seen that has the key of the last leader; 0 while one does
	var key store.Key      // of the last leader
	for {
		asks := l.mayAsk(ctx)
		seen, err := l.readLeader(ctx, conn, asks == nil)
		if err != nil {
			return 0, err
		}
		if seen.PID != 0 || seen.Key != key {
			key, free = seen.Key, 0
		}
		if seen.PID == 0 && free == 0 {
			free = bootTime()
		}
		wait := heartbeat
		switch {
		case asks != nil:
			l.set(false, 0, asks.Error())
		case seen.Holder == l.holder: // only the session was lost
			if won, err := l.elect(ctx, conn, seen); won != 0 || err != nil {
				return won, err
			}
			continue
		case seen.PID == 0 && l.mayAct(seen) && bootTime()-free < leaseTime:
			// It may have lost only the session, and may act until its lease has ended by its own clock; so until that
			// is over the lead is left to it, and if it comes back nothing has happened.
			l.set(false, 0, "the last leader may still act, or come back: "+seen.Holder)
			wait = hurry / 2
		case seen.PID == 0, seen.Silent >= stale:
			if seen.PID != 0 && time.Since(told) >= tellEvery { // a server that is stuck takes its time
				told = time.Now()
				l.Log.Warn("who holds the lease does not answer any more; ending its sessions", "holder", seen.Holder, "pid", seen.PID, "silent", seen.Silent)
			}
			// A frozen one may hold row locks, and its walsender the slot.
			if err := l.endSessions(ctx, conn, seen); err != nil {
				return 0, err
			}
			if won, err := l.elect(ctx, conn, seen); won != 0 || err != nil {
				return won, err
			}
			continue
		default:
			if seen.Application != said {
				said = seen.Application
				l.Log.Info("another relay leads; standing by", "slot", l.Slot, "holder", said)
			}
			l.set(false, 0, "another relay leads: "+seen.Application)
			if seen.Silent > stale/2 {
				wait = hurry
			}
		}
		if err := l.pause(ctx, conn, wait, nil); err != nil {
			return 0, err
		}
	}
}

// tellEvery keeps a server that does not end sessions from filling the log.
const tellEvery = 10 * time.Second

func (l *Lease) readLeader(ctx context.Context, conn *pgx.Conn, asks bool) (store.Leader, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	return store.FindLeader(ctx, conn, l.Slot, asks)
}

// elect returns 0 if another relay was faster.
func (l *Lease) elect(ctx context.Context, conn *pgx.Conn, seen store.Leader) (store.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	l.steppedDown(true)
	key, err := store.Elect(ctx, conn, l.Slot, l.holder, l.Address, seen)
	if errors.Is(err, store.ErrOvertaken) {
		return 0, nil
	}
	return key, err
}

// mayAct reports whether a leader whose session is gone may not have heard of it yet.
func (l *Lease) mayAct(seen store.Leader) bool {
	return seen.Key != 0 && seen.Holder != "" && seen.Holder != l.holder && !isDead(seen.Holder)
}

// endSessions ends all sessions of the last leader. Any role can call its own session what it likes, so only those
// count that may be ended: of the same role, or all with pg_signal_backend. That of the leader itself must go.
// (PostgreSQL manual, "Server Signaling Functions")
func (l *Lease) endSessions(ctx context.Context, conn *pgx.Conn, seen store.Leader) error {
	if seen.Holder == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var n int64
	err := conn.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE pg_catalog.pg_terminate_backend(pid)) FROM pg_catalog.pg_stat_activity
		WHERE pid = $1 OR application_name = $2 AND pid <> pg_catalog.pg_backend_pid()
		AND (pg_catalog.pg_has_role(usesysid, 'USAGE') OR pg_catalog.pg_has_role('pg_signal_backend', 'USAGE')
		     AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = usesysid AND r.rolsuper))`,
		seen.PID, application(l.Slot, seen.Holder)).Scan(&n)
	if err != nil {
		return fmt.Errorf("end sessions of the last leader: %w (all replicas need the same role, or pg_signal_backend)", err)
	}
	if n > 0 {
		l.Log.Warn("ended sessions of the last leader", "slot", l.Slot, "sessions", n)
	}
	return nil
}
