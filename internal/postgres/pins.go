package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type pin struct{ name, value string }

// pins are the settings that decide how Postgres writes a value as text. The stream and the table must
// give the same bytes for the same row, so both kinds of session use them.
var pins = []pin{
	{"DateStyle", "ISO"},
	{"TimeZone", "UTC"},
	{"IntervalStyle", "postgres"},
	{"bytea_output", "hex"},
	{"extra_float_digits", "1"},
	{"lc_monetary", "C"},
	{"search_path", ""},
	{"client_encoding", "UTF8"},
}

// idle_in_transaction_session_timeout ends what a process that froze, or a host that vanished, has left
// open: it may hold the leadership.
//
// setPins is SET LOCAL and not a startup option, because poolers refuse startup options and share
// sessions between clients.
//
// row_security=off turns a policy that hides rows from the relay into an error (manual, "Row Security
// Policies"); synchronous_commit=on makes "durably owed" mean flushed, whatever the role's default.
var setPins = func() string {
	var sql strings.Builder
	for _, p := range append(pins[:len(pins):len(pins)], pin{"row_security", "off"}, pin{"synchronous_commit", "on"},
		pin{"idle_in_transaction_session_timeout", "10s"}) {
		sql.WriteString("; SET LOCAL " + p.name + " = '" + p.value + "'")
	}
	return sql.String()
}()

// InTx runs fn in a transaction whose session settings are pinned: values as text look as they do in
// the stream, search_path is empty (so fn names schemas), row level security is an error and not a
// silent filter, and the commit waits for the flush. It commits when fn returns nil and rolls back
// otherwise. Beginning and pinning take one round trip.
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE" + setPins}, fn)
}

// InSnapshot is InTx under REPEATABLE READ: all of fn sees the database at one moment. snapshot is one
// that another session exported, for example with a new replication slot, or "" for a snapshot taken
// at fn's first query.
func InSnapshot(ctx context.Context, pool *pgxpool.Pool, snapshot string, fn func(pgx.Tx) error) error {
	begin := "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE"
	if snapshot != "" {
		begin += "; SET TRANSACTION SNAPSHOT '" + strings.ReplaceAll(snapshot, "'", "''") + "'"
	}
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: begin + setPins}, fn)
}
