package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/wal"
)

// exam is one examination. It belongs to one goroutine.
type exam struct {
	Options
	pool *postgres.Pool // of one session, which a pooler may carry
	tx   pgx.Tx         // of the check that is being made; read-only, and rolled back after it

	version   int    // server_version_num
	database  string // current_database()
	role      string // of the relay's SQL
	streaming string // role of the replication connection
	recovery  bool
	pooled    bool // a pooler carries the SQL
}

// limit is how long a check may take. The server gives up before the client does, so that one slow check
// costs only itself and not the connection.
const limit = 10 * time.Second

var limits = postgres.Limits{Statement: limit, Lock: 2 * time.Second, Idle: limit}

func examine(ctx context.Context, o Options, checks []check) Report {
	report := Report{At: o.Now().UTC(), Server: postgres.Redact(o.DatabaseURL)}
	e := &exam{Options: o}
	report.Findings = []Finding{e.connect(ctx)}
	if e.pool != nil {
		defer closeSoon(e.pool)
	}
	for _, c := range checks {
		if c.dear && o.Cheap {
			continue
		}
		for _, f := range e.make(ctx, c) {
			f.Check = c.id
			report.Findings = append(report.Findings, f)
		}
	}
	return report
}

// connect opens the connection and learns what all checks need.
func (e *exam) connect(ctx context.Context) Finding {
	f, err := e.open(ctx)
	if err != nil {
		if e.pool != nil {
			closeSoon(e.pool)
			e.pool = nil
		}
		f = problem(postgres.Mask(err, e.DatabaseURL).Error(), "nothing works without the database, and no other check can be made",
			&Mend{Do: "start the server, or correct database_url (WALPOST_DATABASE_URL)"})
	}
	f.Check = connection
	return f
}

func (e *exam) open(ctx context.Context) (Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Second)
	defer cancel()
	var err error
	if e.pool, err = postgres.OpenOne(ctx, e.DatabaseURL, application); err != nil {
		return Finding{}, err
	}
	replication, err := postgres.ConnConfig(e.ReplicationURL)
	if err != nil {
		return Finding{}, err
	}
	e.streaming = replication.User
	err = e.pool.QueryRow(ctx, `
		SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_database()::text,
		       current_user::text, pg_catalog.pg_is_in_recovery()`).
		Scan(&e.version, &e.database, &e.role, &e.recovery)
	if err != nil {
		return Finding{}, fmt.Errorf("ask the server who it is: %w", err)
	}
	if e.pooled, err = e.pool.Pooled(ctx); err != nil {
		return Finding{}, fmt.Errorf("ask the server who it is: %w", err)
	}
	if e.pooled {
		return ok("connected, through a pooler"), nil
	}
	return ok("connected"), nil
}

// application is the application_name of the doctor's sessions.
const application = "walpost/doctor"

// closeSoon closes a pool, and does not wait for a server that does not answer.
func closeSoon(pool *postgres.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// make makes one check in a transaction of its own.
func (e *exam) make(ctx context.Context, c check) []Finding {
	if e.pool == nil {
		return []Finding{unknown("not examined", "there is no connection to the database")}
	}
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Second)
	defer cancel()
	var findings []Finding
	err := postgres.InReadOnly(ctx, e.pool, limits, func(tx pgx.Tx) (err error) {
		e.tx = tx
		findings, err = c.look(ctx, e)
		return err
	})
	switch {
	case err != nil:
		return []Finding{unknown("could not be examined", postgres.Mask(err, e.DatabaseURL, e.ReplicationURL, e.StandbyURL).Error())}
	case len(findings) == 0:
		return []Finding{ok(c.fine)}
	}
	return findings
}

// texts returns the one text column of a query.
func (e *exam) texts(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := e.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// slot is what the server says about the relay's slot, nil when there is none.
func (e *exam) slot(ctx context.Context) (*wal.Slot, error) { return wal.FindSlot(ctx, e.tx, e.Slot) }

// record is what walpost.slots says about the slot; nil where it says nothing, or there is no such table.
type record struct {
	state       string // creating, ready
	ours        bool
	system      wal.System
	confirmed   string
	fingerprint string
}

func (e *exam) record(ctx context.Context) (*record, error) {
	var there bool
	if err := e.tx.QueryRow(ctx, `SELECT pg_catalog.to_regclass('walpost.slots') IS NOT NULL`).Scan(&there); err != nil || !there {
		return nil, err
	}
	var r record
	err := e.tx.QueryRow(ctx, `
		SELECT state, ours, system_id, timeline, confirmed::text, fingerprint FROM walpost.slots WHERE slot = $1`, e.Slot).
		Scan(&r.state, &r.ours, &r.system.ID, &r.system.Timeline, &r.confirmed, &r.fingerprint)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what is recorded of slot %q: %w", e.Slot, err)
	}
	return &r, nil
}

// tables are the sources' tables that can be understood; the check source-table tells of the others.
func (e *exam) tables(ctx context.Context) ([]*outbox.Table, error) {
	var tables []*outbox.Table
	for _, source := range e.Sources {
		if source.Table == "" {
			continue
		}
		table, err := source.Inspect(ctx, e.tx)
		switch {
		case err == nil:
			tables = append(tables, table)
		case postgres.Code(err) != "" || postgres.Unavailable(err) || ctx.Err() != nil:
			return nil, err
		}
	}
	return tables, nil
}

// dropSlot makes the slot anew: what is unpublished in the tables is sent first then, so nothing is lost.
func (e *exam) dropSlot(before ...string) *Mend {
	return &Mend{
		As:  "the relay's role, while no relay runs",
		SQL: append(before, "SELECT pg_drop_replication_slot("+literal(e.Slot)+")"),
		Do:  "start the relay: it makes the slot anew and sends every unpublished row of the tables first",
	}
}

// fromSetup turns an error that names its own mend into a finding.
func fromSetup(err error, why string) (Finding, bool) {
	var setup *wal.SetupError
	if !errors.As(err, &setup) {
		return Finding{}, false
	}
	return problem(setup.Problem, why, &Mend{Do: setup.Mend}), true
}

func quote(names ...string) string { return pgx.Identifier(names).Sanitize() }

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func relation(table *outbox.Table) string { return table.Source.Schema + "." + table.Source.Table }

func quoted(table *outbox.Table) string { return quote(table.Source.Schema, table.Source.Table) }

// size writes bytes for people.
func size(bytes int64) string {
	for _, unit := range []struct {
		name string
		of   int64
	}{{"TB", 1 << 40}, {"GB", 1 << 30}, {"MB", 1 << 20}, {"kB", 1 << 10}} {
		if bytes >= unit.of {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/float64(unit.of)), ".0") + " " + unit.name
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}

func list(names []string) string {
	slices.Sort(names)
	return strings.Join(names, ", ")
}
