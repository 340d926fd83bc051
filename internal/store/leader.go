package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrOvertaken means that another relay has changed the row of walpost.leader since it was read.
var ErrOvertaken = errors.New("another relay was faster")

// nextTerm is the term of the next leadership. By the clock of the server it also grows where the database was
// restored from a backup; and it stays below 2^53, so that a double holds it.
const nextTerm = `greatest(l.term + 1, (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint)`

// remember keeps the keys that a leadership had before, so that a session that takes one that was freed can be named.
const remember = `(pg_catalog.array_remove(ARRAY[l.key, l.reader_key], NULL) || l.former_keys)[1:8]`

// Leader is who leads a slot, or led it last, and whether its session lives.
type Leader struct {
	Holder string // "" if there is none, or it has left
	Term   int64  // 0 before the first leadership
	Key    Key    // of the session that shows that it lives; 0 without a lease
	// The session of that key, if a session of the recorded role has it.
	PID         int // 0 for none
	Application string
	Silent      time.Duration // since it last asked something, by the server's clock; 0 where the server hides it
}

// FindLeader returns who leads a slot. A session of another role than the one recorded does not count, whatever
// advisory lock it has. Of a role that ours is not a member of the server shows no times: then only the end of the
// session shows that a leader is gone.
//
// A relay that asks for the lead says so: the comment with which its statement begins is how StandsBy finds it.
func FindLeader(ctx context.Context, q Querier, slot string, asks bool) (Leader, error) {
	var l Leader
	var seconds float64
	begin := ""
	if asks {
		begin = standingBy
	}
	err := q.QueryRow(ctx, begin+`
		SELECT l.holder, l.term, coalesce(l.key, 0), coalesce(s.pid, 0), coalesce(s.application_name, ''), coalesce(s.silent, 0)
		FROM walpost.leader l LEFT JOIN LATERAL (
			SELECT a.pid, a.application_name, extract(epoch FROM pg_catalog.clock_timestamp() - a.state_change)::float8 AS silent
			FROM `+holdsKey+` = l.key AND k.granted AND a.usename::text = l.role
		) s ON true WHERE l.slot = $1`, slot).
		Scan(&l.Holder, &l.Term, &l.Key, &l.PID, &l.Application, &seconds)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Leader{}, fmt.Errorf("look who leads slot %q: %w", slot, err)
	}
	l.Silent = time.Duration(seconds * float64(time.Second))
	return l, nil
}

// standingBy begins what a standby asks every second.
const standingBy = `/* walpost stands by */`

// StandsBy reports whether another relay of the slot stands by: a session of our role, with the application_name of a
// relay of this slot that begins with prefix and is not ours, that looked after the leader a moment ago.
func StandsBy(ctx context.Context, q Querier, prefix, ours string) (bool, error) {
	var yes bool
	err := q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
			WHERE datname = pg_catalog.current_database() AND usename = session_user
			AND pg_catalog.starts_with(application_name, $1) AND application_name <> $2
			AND pg_catalog.starts_with(query, $3) AND state_change > pg_catalog.clock_timestamp() - interval '5 s')`,
		prefix, ours, standingBy).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("look who stands by: %w", err)
	}
	return yes, nil
}

// Elect makes holder the leader of a slot, if nothing has changed since seen was read, and reports whether it did. The
// session of conn then has the key that is recorded. A new holder gets a new term. The one that is recorded already
// comes back after the loss of its session: its leadership goes on under the same term.
//
// address is where the ops API of holder answers, "" for nowhere that others reach.
func Elect(ctx context.Context, conn *pgx.Conn, slot, holder, address string, seen Leader) (Key, error) {
	if seen.Term == 0 {
		_, err := conn.Exec(ctx, `INSERT INTO walpost.leader (slot, holder, term) VALUES ($1, '', 0) ON CONFLICT DO NOTHING`, slot)
		if err != nil {
			return 0, fmt.Errorf("take the lead of slot %q: %w", slot, err)
		}
	}
	key := NewKey()
	var locked bool
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_lock($1)`, key).Scan(&locked); err != nil || !locked {
		return 0, fmt.Errorf("take the lead of slot %q: lock %d: %w", slot, key, errors.Join(err, ErrOvertaken))
	}
	tag, err := conn.Exec(ctx, `
		UPDATE walpost.leader l SET holder = $2, key = $3, role = session_user, address = $6, former_keys = `+remember+`,
		    term = CASE WHEN l.holder = $2 THEN l.term ELSE `+nextTerm+` END
		WHERE l.slot = $1 AND l.term = $4 AND coalesce(l.key, 0) = $5`, slot, holder, key, seen.Term, seen.Key, address)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrOvertaken
	}
	if err != nil {
		_, _ = conn.Exec(ctx, `SELECT pg_catalog.pg_advisory_unlock($1)`, key)
		return 0, fmt.Errorf("take the lead of slot %q: %w", slot, err)
	}
	return key, nil
}

// GiveUp lets the next leader begin at once: the leadership of holder under key is over. Forget it, too, when nothing
// of it is under way any more; else the holder can still come back under the same term if no other has led meanwhile.
func GiveUp(ctx context.Context, conn *pgx.Conn, slot, holder string, key Key, forget bool) error {
	_, err := conn.Exec(ctx, `
		UPDATE walpost.leader l SET holder = CASE WHEN $4 THEN '' ELSE l.holder END, key = NULL, former_keys = `+remember+`
		WHERE l.slot = $1 AND l.holder = $2 AND l.key = $3`, slot, holder, key, forget)
	if err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_catalog.pg_advisory_unlock($1)`, key)
	}
	return err
}

// Reader is the session that makes or reads a slot.
type Reader struct {
	Holder string // who leads the slot
	Key    Key
	PID    int // 0 if no session of the recorded role has the key
}

// FindReader returns the session that is recorded as that which makes or reads a slot.
func FindReader(ctx context.Context, q Querier, slot string) (Reader, error) {
	var r Reader
	err := q.QueryRow(ctx, `
		SELECT l.holder, coalesce(l.reader_key, 0), coalesce(s.pid, 0)
		FROM walpost.leader l LEFT JOIN LATERAL (
			SELECT a.pid FROM `+holdsKey+` = l.reader_key AND k.granted AND a.usename::text = l.reader_role
		) s ON true WHERE l.slot = $1`, slot).Scan(&r.Holder, &r.Key, &r.PID)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Reader{}, fmt.Errorf("look which session has slot %q: %w", slot, err)
	}
	return r, nil
}

// ClaimReader records the session that holds key as the one that makes or reads the slot, or returns ErrOvertaken if
// another one was recorded since seen was read, if the leader is no longer holder ("" for any), or if no session of
// the database has the key: it has ended, or leads to another server.
func ClaimReader(ctx context.Context, tx pgx.Tx, slot, holder string, seen, key Key) error {
	_, err := tx.Exec(ctx, `INSERT INTO walpost.leader (slot, holder, term) VALUES ($1, '', 0) ON CONFLICT DO NOTHING`, slot)
	if err != nil {
		return fmt.Errorf("claim slot %q: %w", slot, err)
	}
	tag, err := tx.Exec(ctx, `
		UPDATE walpost.leader l SET reader_key = $3, reader_role = s.role, former_keys = `+remember+`
		FROM (SELECT a.usename::text AS role FROM `+holdsKey+` = $3 AND k.granted) s
		WHERE l.slot = $1 AND coalesce(l.reader_key, 0) = $2 AND ($4 = '' OR l.holder = $4)`, slot, seen, key, holder)
	if err != nil {
		return fmt.Errorf("claim slot %q: %w", slot, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("claim slot %q: %w", slot, ErrOvertaken)
	}
	return nil
}

// LastLeader returns holder and term of the last leadership; term 0 before the first.
func LastLeader(ctx context.Context, q Querier, slot string) (holder string, term int64, err error) {
	err = q.QueryRow(ctx, `SELECT holder, term FROM walpost.leader WHERE slot = $1`, slot).Scan(&holder, &term)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", 0, fmt.Errorf("look who led slot %q: %w", slot, err)
	}
	return holder, term, nil
}

// LeaderAddress returns who leads a slot now and where the ops API of that relay answers; "" where no one leads, or where
// it is not known.
func LeaderAddress(ctx context.Context, q Querier, slot string) (holder, address string, err error) {
	err = q.QueryRow(ctx, `SELECT holder, address FROM walpost.leader WHERE slot = $1 AND holder <> ''`, slot).Scan(&holder, &address)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", "", fmt.Errorf("look where the leader of slot %q answers: %w", slot, err)
	}
	return holder, address, nil
}

// Stranger is a session of a role that is none of the relay's, and holds or awaits an advisory lock that the relay uses
// or has used. It stops nothing.
type Stranger struct {
	PID     int    `json:"pid"`
	Role    string `json:"role"`
	Granted bool   `json:"granted"` // it has the lock; else it waits for it
}

func (s Stranger) String() string {
	does := "waits for"
	if s.Granted {
		does = "holds"
	}
	return fmt.Sprintf("pid %d of role %q %s an advisory lock of this slot", s.PID, s.Role, does)
}

// FindStrangers returns the sessions of other roles that hold or await a key of the slot: a recorded one, a former
// one, or one that is made of the slot's name, which is what others would guess.
func FindStrangers(ctx context.Context, q Querier, slot string) ([]Stranger, error) {
	rows, err := q.Query(ctx, `
		SELECT DISTINCT a.pid, a.usename::text, k.granted
		FROM (VALUES ($1)) one (slot) LEFT JOIN walpost.leader l ON l.slot = one.slot, `+holdsKey+` = ANY (
			ARRAY[l.key, l.reader_key, pg_catalog.hashtextextended('walpost/' || one.slot, 0),
			      pg_catalog.hashtextextended('walpost/' || one.slot || '/session', 0)]
			|| coalesce(l.former_keys, '{}'))
		AND a.usename <> session_user AND a.usename <> current_user
		AND a.usename::text IS DISTINCT FROM l.role AND a.usename::text IS DISTINCT FROM l.reader_role
		ORDER BY a.pid LIMIT 10`, slot)
	if err != nil {
		return nil, fmt.Errorf("look for strangers at the locks of slot %q: %w", slot, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Stranger])
	if err != nil {
		return nil, fmt.Errorf("look for strangers at the locks of slot %q: %w", slot, err)
	}
	return found, nil
}

// EndRelaySession ends a session if it is one of a relay, and returns its application_name.
func EndRelaySession(ctx context.Context, q Querier, pid int) (application string, ended bool, err error) {
	err = q.QueryRow(ctx, `
		SELECT application_name, application_name LIKE 'walpost/%' AND pg_catalog.pg_terminate_backend(pid)
		FROM pg_catalog.pg_stat_activity WHERE pid = $1`, pid).Scan(&application, &ended)
	if err != nil {
		return "", false, fmt.Errorf("end the session with pid %d: %w", pid, err)
	}
	return application, ended, nil
}
