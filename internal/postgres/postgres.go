// Package postgres is how walpost talks to Postgres: it reads connection strings, opens pools, pins the
// session settings that decide how a row looks as text, and tells by SQLSTATE what an error means.
// It must never put a piece of a password into an error, and it knows no table of anyone.
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

	"github.com/backendstart/walpost/internal/safefile"
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
// The caller closes the pool.
func Open(ctx context.Context, dsn, application string) (*Pool, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	return open(ctx, config, dsn, application)
}

// OpenOne is Open with a single session, whatever the connection string says.
func OpenOne(ctx context.Context, dsn, application string) (*Pool, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, 1
	return open(ctx, config, dsn, application)
}

func open(ctx context.Context, config *pgxpool.Config, dsn, application string) (*Pool, error) {
	setParam(&config.ConnConfig.Config, "application_name", application)
	// Before anything is asked: a database in another encoding, or a role, would choose another one. Poolers know
	// this parameter, too.
	setParam(&config.ConnConfig.Config, "client_encoding", "UTF8")
	if config.PingTimeout == 0 { // a connection whose other end is gone without a word is found before it is used
		config.PingTimeout = pingTimeout
	}
	if config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // of the others, the one that asks nothing before
	}
	config.BeforeConnect = func(_ context.Context, connecting *pgx.ConnConfig) error {
		// A password is rotated while the program runs: files are read at each connect, not once.
		if fresh, err := parse(dsn); err == nil {
			connecting.User, connecting.Password = fresh.ConnConfig.User, fresh.ConnConfig.Password
		}
		return nil
	}
	live := &sessions{all: make(map[*pgx.Conn]struct{})}
	config.AfterConnect, config.BeforeClose = live.add, live.remove
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, Mask(fmt.Errorf("open pool on %s: %w", target(&config.ConnConfig.Config), err), dsn)
	}
	p := &Pool{pool: pool, live: live}
	pooled, err := p.Pooled(ctx)
	if err != nil {
		p.Close()
		return nil, ConnectError(err, dsn)
	}
	if pooled && config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		p.Close()
		// Statements prepared by name belong to a session of the server, which the pooler gives to others.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
			return nil, Mask(fmt.Errorf("open pool on %s: %w", target(&config.ConnConfig.Config), err), dsn)
		}
	}
	return p, nil
}

// ConnConfig parses dsn, to learn where it leads or for a test's connection. Its errors contain no piece of the
// password.
func ConnConfig(dsn string) (*pgx.ConnConfig, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	return config.ConnConfig, nil
}

// DirectConfig parses dsn for a session of our own, for what no transaction of a Pool can hold. All pins are startup
// parameters, and connecting fails (ErrNotPinned) unless the server says that they hold; a pooler that passes none on
// will not do. Statements there qualify functions and operators nevertheless. other are pins with another value than
// usual. Its errors contain no piece of the password.
func DirectConfig(dsn, application string, other ...Pin) (*pgx.ConnConfig, error) {
	config, err := ConnConfig(dsn)
	if err != nil {
		return nil, err
	}
	setParam(&config.Config, "application_name", application)
	pinSession(&config.Config, other)
	return config, nil
}

// replicationPins are those of a replication session. client_min_messages lets the warning through with which
// Postgres 18 skips a missing publication, and wal_sender_timeout frees the slot soon after the network was cut; the
// keepalives do it for a session that does not stream yet, in about the same time.
// (PostgreSQL manual, "Streaming Replication Protocol" and "Client Connection Defaults")
var replicationPins = []Pin{
	{"client_min_messages", "warning"},
	{"wal_sender_timeout", "10s"},
	{"tcp_keepalives_idle", "5"},
	{"tcp_keepalives_interval", "2"},
	{"tcp_keepalives_count", "3"},
}

// ReplicationConfig is DirectConfig for a logical replication connection: a pooler in front of Postgres cannot carry
// one. The caller may still set application_name.
func ReplicationConfig(dsn string) (*pgconn.Config, error) {
	parsed, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	config := &parsed.ConnConfig.Config
	setParam(config, "replication", "database")
	pinSession(config, replicationPins)
	return config, nil
}

// parse reads a connection string of any form, with the pool_* options of pgxpool. One that stands in a file
// (safefile.Live) says again who connects, and with which password; where to stays as it was at the start.
func parse(dsn string) (*pgxpool.Config, error) {
	config, err := parseText(safefile.AtStart(dsn))
	if err != nil || !safefile.IsLive(dsn) {
		return config, err
	}
	fresh, err := parseText(safefile.Latest(dsn))
	if err != nil {
		return nil, err
	}
	config.ConnConfig.User, config.ConnConfig.Password = fresh.ConnConfig.User, fresh.ConnConfig.Password
	return config, nil
}

func parseText(dsn string) (*pgxpool.Config, error) {
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
