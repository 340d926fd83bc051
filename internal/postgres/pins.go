package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Pin is a setting that a server, a database, a role or a connection string may set otherwise, and that would
// change what we read, write or run. Values are spelled as the server shows them.
type Pin struct{ Name, Value string }

// pins hold in every transaction of a Pool and in every session of our own. (docs/postgres.md §9)
//
// The first group decides how Postgres writes a value as text: the stream and the table must give the same
// bytes for the same row.
var pins = []Pin{
	{"DateStyle", "ISO, MDY"},
	{"TimeZone", "UTC"},
	{"IntervalStyle", "postgres"},
	{"bytea_output", "hex"},
	{"extra_float_digits", "1"},
	{"lc_monetary", "C"},
	{"client_encoding", "UTF8"},

	// How our literals and conditions are read.
	{"standard_conforming_strings", "on"},
	{"array_nulls", "on"},
	{"transform_null_equals", "off"},

	// An empty search_path leaves pg_catalog: a function, operator or type that another role has made in public, with
	// a better match than ours, is not found. row_security=off makes an error of a policy that hides rows from the
	// relay, and synchronous_commit=on makes "durably owed" mean flushed.
	// (PostgreSQL manual, "Writing SECURITY DEFINER Functions Safely", "Row Security Policies")
	{"search_path", ""},
	{"row_security", "off"},
	{"synchronous_commit", "on"},

	// With 1,500 partitions a mark would compile 16,000 functions.
	{"jit", "off"},
}

// transactionTimeout is the first version that has the setting of that name; naming it to an older server is an error.
const transactionTimeout = 17

// Limits are the timeouts of the server in a transaction; zero is none. They replace those that a database or a role
// sets, which know nothing of what our statements are for.
type Limits struct {
	// Statement bounds each statement, and what it waits for.
	Statement time.Duration
	// Lock bounds each wait for a lock.
	Lock time.Duration
	// Idle bounds each pause between statements. It ends what a process that froze, or a host that vanished, has left
	// open: that may hold the leadership.
	Idle time.Duration
}

var (
	// ordinary is for statements of which none takes longer unless something hangs, and that must be seen.
	ordinary = Limits{Statement: 5 * time.Minute, Idle: 10 * time.Second}
	// unlimited is for what takes as long as there are rows.
	unlimited = Limits{}
)

func (l Limits) pins(version int) []Pin {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	found := []Pin{
		{"statement_timeout", ms(l.Statement)},
		{"lock_timeout", ms(l.Lock)},
		{"idle_in_transaction_session_timeout", ms(l.Idle)},
	}
	if version >= transactionTimeout {
		found = append(found, Pin{"transaction_timeout", "0"})
	}
	return found
}

// noJIT comes before the pins: with a low jit_above_cost, each of them would be compiled.
const noJIT = "SET LOCAL jit = off"

// pinsSQL is the statement that pins the transaction that has just begun: one, so that it can be prepared. It is safe
// under any search_path, since it names nothing that is looked up there.
func pinsSQL(limits Limits, version int) string {
	var sql strings.Builder
	separator := "SELECT "
	for _, list := range [][]Pin{limits.pins(version), pins} {
		for _, p := range list {
			sql.WriteString(separator + "pg_catalog.set_config('" + p.Name + "', '" + p.Value + "', true)")
			separator = ", "
		}
	}
	return sql.String()
}

// pinSession makes config one of a session of our own: with every pin as a startup parameter, whatever the connection
// string says, and refused unless the server says that they hold.
func pinSession(config *pgconn.Config, other []Pin) {
	session := append([]Pin{
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"idle_session_timeout", "0"},
	}, pins...)
	for _, p := range other {
		session = slices.DeleteFunc(session, func(usual Pin) bool { return usual.Name == p.Name })
	}
	session = append(session, other...)
	for _, p := range session {
		setParam(config, p.Name, p.Value)
	}
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error { return checkPins(ctx, conn, session) }
}

// setParam makes a startup parameter the only one of its name. Names ignore case; "timezone" next to "TimeZone" would
// leave it to the order of a map which one counts.
func setParam(config *pgconn.Config, name, value string) {
	for other := range config.RuntimeParams {
		if strings.EqualFold(other, name) {
			delete(config.RuntimeParams, other)
		}
	}
	config.RuntimeParams[name] = value
}

// ErrNotPinned means that a session of our own does not have the settings that it asked for.
var ErrNotPinned = errors.New("a direct connection to Postgres is needed")

// checkPins reads the pins back: a pooler can accept startup parameters and ignore them. It also switches off the one
// timeout that not every server has, and so is no startup parameter.
func checkPins(ctx context.Context, conn *pgconn.PgConn, session []Pin) error {
	if majorVersion(conn) >= transactionTimeout {
		if _, err := conn.Exec(ctx, "SET transaction_timeout = 0").ReadAll(); err != nil {
			return fmt.Errorf("pin transaction_timeout: %w", err)
		}
	}
	var sql strings.Builder
	separator := "SELECT "
	for _, p := range session {
		sql.WriteString(separator + "pg_catalog.current_setting('" + p.Name + "')")
		separator = ", "
	}
	results, err := conn.Exec(ctx, sql.String()).ReadAll()
	if err != nil {
		return fmt.Errorf("read the settings of the session back: %w", err)
	}
	for i, p := range session {
		if got := string(results[0].Rows[0][i]); got != p.Value && !strings.HasPrefix(p.Name, "tcp_") { // no TCP on a Unix socket
			return fmt.Errorf("%w: this one asked for %s = '%s', and it is '%s': a pooler, or what stands before the server, ignores startup parameters",
				ErrNotPinned, p.Name, p.Value, got)
		}
	}
	return nil
}

// majorVersion is the version of the server that the connection reports.
func majorVersion(conn *pgconn.PgConn) int {
	digits := conn.ParameterStatus("server_version")
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = digits[:i]
	}
	major, _ := strconv.Atoi(digits)
	return major
}
