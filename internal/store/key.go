package store

import (
	"crypto/rand"
	"encoding/binary"
)

// Key is the number of an advisory lock that a session holds for as long as it lives. It is random, so that no session can
// take it before; it proves nothing by itself, because any role can take any advisory lock: the session that has it
// counts only where walpost.leader names its key and its role. 0 is no key.
// (docs/postgres.md §8; PostgreSQL manual, "Advisory Locks")
type Key int64

// NewKey returns a key that no session has.
func NewKey() Key {
	var b [8]byte
	_, _ = rand.Read(b[:])                           // never fails
	return Key(binary.BigEndian.Uint64(b[:])>>1 | 1) // positive, and not 0
}

// holdsKey joins pg_locks k, pg_stat_activity a for the sessions of this database that hold or await the advisory lock
// of a bigint key.
const holdsKey = `
	pg_catalog.pg_locks k JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
	WHERE k.locktype = 'advisory' AND k.objsubid = 1
	AND k.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
	AND (k.classid::bigint << 32 | k.objid::bigint)`
