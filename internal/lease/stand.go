package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// lockKey is the advisory lock of a slot, the argument $1.
const lockKey = `pg_catalog.hashtextextended('walpost/' || $1, 0)`

// stand tries to get the lock until it has it, and then makes sure that nothing of the old holder goes on.
func (l *Lease) stand(ctx context.Context, conn *pgx.Conn) error {
	var said string
	var told time.Time     // when it was last said that the leader's sessions are ended
	var free time.Duration // since when nobody is seen to hold the lock; 0 while somebody does
	for {
		found, err := l.look(ctx, conn)
		if err != nil {
			return err
		}
		if found.pid == 0 {
			if free == 0 {
				free = bootTime()
			}
			taken, err := l.takeFree(ctx, conn, free)
			if taken || err != nil {
				return err
			}
			continue
		}
		free = 0
		wait := heartbeat
		switch {
		case found.idle >= stale:
			if time.Since(told) >= tellEvery { // a server that is stuck takes its time
				told = time.Now()
				l.Log.Warn("who holds the lease does not answer any more; ending its sessions", "holder", l.nameOf(found), "pid", found.pid, "silent", found.idle)
			}
			// All of them, and not only this one: it may be frozen in a first repair, before it is recorded as leader.
			if err := l.end(ctx, conn, `application_name = $1`, found.application); err != nil {
				return err
			}
			if err := l.takeFrom(ctx, conn); err == nil || !errors.Is(err, errStillHeld) {
				return err
			}
			continue
		case found.idle > stale/2:
			wait = hurry
		}
		if found.application == l.Application() {
			l.set(false, 0, l.nameOf(found)+" still holds the lease")
		} else {
			if found.application != said {
				said = found.application
				l.Log.Info("another relay leads; standing by", "slot", l.Slot, "holder", said)
			}
			l.set(false, 0, "another relay leads: "+found.application)
		}
		if err := l.listen(ctx, conn, wait); err != nil {
			return err
		}
	}
}

// tellEvery keeps a server that does not end sessions from filling the log.
const tellEvery = 10 * time.Second

// nameOf is who is found, for people.
func (l *Lease) nameOf(found holding) string {
	if found.application == l.Application() {
		return "a lost session of this relay"
	}
	return found.application
}

// takeFree takes a lock that nobody holds. Its last holder may have lost only the session, and may act until
// its lease has ended by its own clock; so until that is over the lock is left to it, and if it comes back
// nothing has happened.
func (l *Lease) takeFree(ctx context.Context, conn *pgx.Conn, free time.Duration) (taken bool, err error) {
	before, err := l.recorded(ctx, conn)
	if err != nil {
		return false, err
	}
	if l.mayAct(before) && bootTime()-free < term {
		l.set(false, 0, "the last leader may still act, or come back: "+before)
		return false, l.listen(ctx, conn, hurry/2)
	}
	got, err := l.try(ctx, conn)
	if err != nil || !got {
		return false, err
	}
	return true, l.takeOver(ctx, conn)
}

// holding is what a standby sees of the leader's session.
type holding struct {
	pid         int32 // 0 when nobody holds the lock
	application string
	idle        time.Duration // since its last heartbeat, by the server's clock; 0 where the server hides it
}

// look asks who holds the lock, and when that session last asked something. Of a role that it is not a
// member of the server shows no times: then only an end of the session frees the lock.
func (l *Lease) look(ctx context.Context, conn *pgx.Conn) (holding, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var h holding
	var seconds float64
	err := conn.QueryRow(ctx, `
		SELECT l.pid, coalesce(a.application_name, ''), coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - a.state_change), 0)::float8
		FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
		AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
		AND (l.classid::bigint << 32 | l.objid::bigint) = `+lockKey, l.Slot).Scan(&h.pid, &h.application, &seconds)
	if errors.Is(err, pgx.ErrNoRows) {
		return holding{}, nil
	}
	if err != nil {
		return holding{}, fmt.Errorf("look who leads slot %q: %w", l.Slot, err)
	}
	h.idle = time.Duration(seconds * float64(time.Second))
	return h, nil
}

func (l *Lease) try(ctx context.Context, conn *pgx.Conn) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var got bool
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_lock(`+lockKey+`)`, l.Slot).Scan(&got); err != nil {
		return false, fmt.Errorf("take the lock of slot %q: %w", l.Slot, err)
	}
	return got, nil
}

var errStillHeld = errors.New("the lock is still held")

// takeFrom takes the lock of a session that is being ended. Its lease has ended by its own clock before.
func (l *Lease) takeFrom(ctx context.Context, conn *pgx.Conn) error {
	for range 20 {
		got, err := l.try(ctx, conn)
		if err != nil {
			return err
		}
		if got {
			return l.takeOver(ctx, conn)
		}
		if err := l.listen(ctx, conn, hurry/4); err != nil {
			return err
		}
	}
	return errStillHeld
}

// takeOver is called with the lock, when the last holder does not act any more. All of its sessions are ended:
// a frozen one may hold row locks, and its walsender the slot.
func (l *Lease) takeOver(ctx context.Context, conn *pgx.Conn) error {
	before, err := l.recorded(ctx, conn)
	if err != nil || before == "" || before == l.holder {
		return err
	}
	return l.end(ctx, conn, `application_name = $1`, application(l.Slot, before))
}

// mayAct reports whether a holder that has lost its lock may not have heard of it yet.
func (l *Lease) mayAct(before string) bool {
	return before != "" && before != l.holder && !isDead(before)
}

// recorded is the holder in walpost.leader; "" is nobody, or one that has left.
func (l *Lease) recorded(ctx context.Context, conn *pgx.Conn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var holder string
	err := conn.QueryRow(ctx, `SELECT holder FROM walpost.leader WHERE slot = $1`, l.Slot).Scan(&holder)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("look who led slot %q: %w", l.Slot, err)
	}
	return holder, nil
}

// end ends sessions of walpost. The same role suffices for that.
// (PostgreSQL manual, "Server Signaling Functions")
func (l *Lease) end(ctx context.Context, conn *pgx.Conn, which string, arg any) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var n int64
	err := conn.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE pg_catalog.pg_terminate_backend(pid)) FROM pg_catalog.pg_stat_activity
		WHERE `+which+` AND application_name LIKE 'walpost/%' AND pid <> pg_catalog.pg_backend_pid()`, arg).Scan(&n)
	if err != nil {
		return fmt.Errorf("end sessions of the last leader: %w (all replicas need the same role, or pg_signal_backend)", err)
	}
	if n > 0 {
		l.Log.Warn("ended sessions of the last leader", "slot", l.Slot, "sessions", n)
	}
	return nil
}
