package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool is the one door through which statements go to Postgres, except for those of the few sessions of our own
// (DirectConfig). A pooler may give us another session for each transaction, with what a database, a role or another
// client has set there. So every statement runs in a transaction whose first words are the pins, and there is no
// method that runs one outside.
//
// A Pool is safe for concurrent use.
type Pool struct {
	pool *pgxpool.Pool
	live *sessions
}

// sessions are those of a pool, in use or not.
type sessions struct {
	mu  sync.Mutex
	all map[*pgx.Conn]struct{} // guarded by mu
}

func (s *sessions) add(_ context.Context, conn *pgx.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[conn] = struct{}{}
	return nil
}

func (s *sessions) remove(conn *pgx.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, conn)
}

// cut lets whatever waits for an answer fail as it does on a broken network.
func (s *sessions) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.all {
		_ = conn.PgConn().Conn().SetDeadline(time.Now())
	}
}

// Modes of a transaction, all of them words that a server's defaults for transactions would otherwise choose.
const (
	readWrite = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE"
	readOnly  = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY NOT DEFERRABLE"
	snapshot  = "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE NOT DEFERRABLE"
)

// Close ends all sessions. It waits until they are given back.
func (p *Pool) Close() { p.pool.Close() }

// Reset closes all sessions. What is under way on them fails as with a lost connection, so that nothing waits for an answer
// from a server that is gone without a word.
func (p *Pool) Reset() {
	p.pool.Reset()
	p.live.cut()
}

// Size is how many sessions there can be at a time.
func (p *Pool) Size() int { return int(p.pool.Config().MaxConns) }

// Pooled reports whether a pooler stands between us and the server: it gives out keys for cancelling of its own, so
// the process id in ours is not that of the session that answers.
func (p *Pool) Pooled(ctx context.Context) (pooled bool, err error) {
	err = p.in(ctx, readOnly, ordinary, func(tx pgx.Tx) error {
		var pid uint32
		err := tx.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid)
		pooled = pid != tx.Conn().PgConn().PID()
		return err
	})
	return pooled, err
}

// InTx runs fn in a transaction (read committed) whose session settings are pinned: values as text look as they do in
// the stream, search_path is empty (so fn names schemas), row level security is an error and not a silent filter, and
// the commit waits for the flush. It commits when fn returns nil and rolls back otherwise. Beginning and pinning take
// one round trip. A statement that takes minutes is taken for one that hangs.
func InTx(ctx context.Context, pool *Pool, fn func(pgx.Tx) error) error {
	return pool.in(ctx, readWrite, ordinary, fn)
}

// SessionData is for what belongs to the session of a transaction of InTx as long as that lasts.
func SessionData(tx pgx.Tx) map[string]any { return tx.Conn().PgConn().CustomData() }

// InLongTx is InTx without a limit of time, for what takes as long as there are rows: a repair, or a change that
// a person asks for and waits for.
func InLongTx(ctx context.Context, pool *Pool, fn func(pgx.Tx) error) error {
	return pool.in(ctx, readWrite, unlimited, fn)
}

// LetIdle lets a transaction wait for its client as long as that takes, and makes the server notice within seconds that
// the network to the client is cut: without that it would wait for the keepalives of TCP, two hours.
func LetIdle(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_catalog.set_config(name, value, true) FROM (VALUES ('idle_in_transaction_session_timeout', '0'),
		('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3')) s (name, value)`)
	if err != nil {
		return fmt.Errorf("let a transaction be idle: %w", err)
	}
	return nil
}

// InReadOnly runs fn in a pinned transaction in which the server refuses every change, with limits of the caller's, and
// rolls it back: fn may leave a failed statement behind. It works on a standby.
func InReadOnly(ctx context.Context, pool *Pool, limits Limits, fn func(pgx.Tx) error) error {
	var failed error
	err := pool.in(ctx, readOnly, limits, func(tx pgx.Tx) error {
		failed = fn(tx)
		return tx.Rollback(context.WithoutCancel(ctx))
	})
	if failed != nil || errors.Is(err, pgx.ErrTxClosed) { // it is over, as it should be
		return failed
	}
	return err
}

// InSnapshot is InLongTx under REPEATABLE READ: all of fn sees the database at one moment. exported is a snapshot that
// another session exported, for example with a new replication slot, or "" for one taken at fn's first query.
func InSnapshot(ctx context.Context, pool *Pool, exported string, fn func(pgx.Tx) error) error {
	begin := snapshot
	if exported != "" {
		begin += "; SET TRANSACTION SNAPSHOT '" + strings.ReplaceAll(exported, "'", "''") + "'"
	}
	return pool.in(ctx, begin, unlimited, fn)
}

func (p *Pool) in(ctx context.Context, begin string, limits Limits, fn func(pgx.Tx) error) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire session: %w", err)
	}
	defer conn.Release()
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: begin + "; " + noJIT + "; " + pinsSQL(limits, versionOf(conn))}, fn)
}

// rollBack ends what a failed transaction has left of itself. A session that has none costs nothing, and one on which
// it fails is not used again: the pool closes it.
func rollBack(ctx context.Context, conn *pgxpool.Conn) {
	if conn.Conn().PgConn().TxStatus() != 'I' {
		_, _ = conn.Exec(ctx, "ROLLBACK") // the error that counts is that of the statement
	}
}

func versionOf(conn *pgxpool.Conn) int { return majorVersion(conn.Conn().PgConn()) }
