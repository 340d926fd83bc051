package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Code returns the SQLSTATE of the server's error in err, or "" if there is none.
// (PostgreSQL manual, appendix "PostgreSQL Error Codes")
func Code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// Unavailable reports whether err means that Postgres cannot serve at the moment and that the same call
// may succeed later without anyone changing the request: no connection, a connection that broke, a
// server that starts, stops, has no free session or is a standby, or no answer before a deadline.
// A cancelled context is the caller's own doing and no such error.
func Unavailable(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if code := Code(err); code != "" {
		switch code {
		case "57P01", // admin_shutdown
			"57P02", // crash_shutdown
			"57P03", // cannot_connect_now: starting up, shutting down
			"57P05", // idle_session_timeout
			"53300", // too_many_connections
			"25006", // read_only_sql_transaction: connected to what is, or has become, a standby
			"25P03": // idle_in_transaction_session_timeout
			return true
		}
		return strings.HasPrefix(code, "08") // connection exception
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}
