// Package postgres is how walpost talks to Postgres: it reads connection strings, opens pools, pins the
// session settings that decide how a row looks as text, and tells by SQLSTATE what an error means.
// It must never put a piece of a password into an error, and it knows no table of anybody.
// Who migrates the tables is package migrations; who holds the replication connection is package wal.
package postgres

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connectTimeout is used where the connection string has no connect_timeout: the default of the
// operating system lets a start hang for minutes on a host that swallows packets.
const connectTimeout = 10 * time.Second

// pingTimeout is how long a connection that has been idle may take to show that it lives.
const pingTimeout = 3 * time.Second

// Open parses dsn (a postgres:// URL, key=value pairs, or "" for the PG* environment variables), opens
// a pool whose sessions carry application as application_name, and connects once, so that a wrong
// password or a server that is away is known now. Behind a pooler no statement is prepared by name, so that
// one in transaction mode will do. No error contains a piece of the password.
//
// The caller closes the pool. A pool is safe for concurrent use.
func Open(ctx context.Context, dsn, application string) (*pgxpool.Pool, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"] = application
	if config.PingTimeout == 0 { // a connection whose other end is gone without a word is found before it is used
		config.PingTimeout = pingTimeout
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, Mask(fmt.Errorf("open pool on %s: %w", target(&config.ConnConfig.Config), err), dsn)
	}
	pooled, err := throughPooler(ctx, pool)
	if err != nil {
		pool.Close()
		return nil, ConnectError(err, dsn)
	}
	if pooled && config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		pool.Close()
		// Statements prepared by name belong to a session of the server, which the pooler gives to others.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		if pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
			return nil, Mask(fmt.Errorf("open pool on %s: %w", target(&config.ConnConfig.Config), err), dsn)
		}
	}
	return pool, nil
}

// throughPooler reports whether a pooler stands before the server: it gives out keys for cancelling of its
// own, so the process id in ours is not that of the session that answers.
func throughPooler(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	var pid uint32
	err = conn.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid != conn.Conn().PgConn().PID(), err
}

// ConnConfig parses dsn for a single connection. Its errors contain no piece of the password.
func ConnConfig(dsn string) (*pgx.ConnConfig, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	return config.ConnConfig, nil
}

// ReplicationParams returns the startup parameters that a replication session is pinned to, whatever
// the server, the database, the role or the connection string say. The first group decides how column
// values look as text in the stream, so that the same row has the same bytes in every session;
// client_min_messages lets the warning through with which Postgres 18 skips a missing publication, and
// wal_sender_timeout frees the slot soon after the network was cut; the keepalives do it for a session that does
// not stream yet, in about the same time.
// (PostgreSQL manual, "Streaming Replication Protocol" and "Client Connection Defaults")
func ReplicationParams() map[string]string {
	params := map[string]string{
		"client_min_messages": "warning",
		"wal_sender_timeout":  "10s",
		"statement_timeout":   "0",

		"tcp_keepalives_idle":     "5",
		"tcp_keepalives_interval": "2",
		"tcp_keepalives_count":    "3",
	}
	for _, pin := range pins {
		params[pin.name] = pin.value
	}
	return params
}

// ReplicationConfig parses dsn for a logical replication connection pinned to ReplicationParams. The
// caller may still set application_name. A pooler in front of Postgres cannot carry such a connection.
// Its errors contain no piece of the password.
func ReplicationConfig(dsn string) (*pgconn.Config, error) {
	parsed, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	config := &parsed.ConnConfig.Config
	params := ReplicationParams()
	params["replication"] = "database"
	for name := range config.RuntimeParams {
		for pinned := range params {
			// Setting names ignore case; "timezone" beside "TimeZone" would leave it to map order who wins.
			if strings.EqualFold(name, pinned) {
				delete(config.RuntimeParams, name)
			}
		}
	}
	for name, value := range params {
		config.RuntimeParams[name] = value
	}
	return config, nil
}

// parse reads a connection string of any form, with the pool_* options of pgxpool.
func parse(dsn string) (*pgxpool.Config, error) {
	if err := unambiguous(dsn); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, parseError(err)
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	return config, nil
}

// target names what a configuration connects to, for people.
func target(config *pgconn.Config) string {
	where := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	if strings.HasPrefix(config.Host, "/") {
		where = config.Host + ":" + strconv.Itoa(int(config.Port))
	}
	return fmt.Sprintf("postgres at %s, database %q, user %q", where, config.Database, config.User)
}
