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
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

// checker makes the checks of one report. It belongs to one goroutine.
type checker struct {
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

func runChecks(ctx context.Context, o Options, checks []check) Report {
	report := Report{At: o.Now().UTC(), Server: postgres.Redact(o.DatabaseURL)}
	c := &checker{Options: o}
	report.Findings = []Finding{c.connect(ctx)}
	if c.pool == nil { // the one problem; what it keeps from being checked is everything
		return report
	}
	defer closeSoon(c.pool)
	for _, check := range checks {
		if check.costly && o.Cheap {
			continue
		}
		for _, f := range c.run(ctx, check) {
			f.Check = check.id
			report.Findings = append(report.Findings, f)
		}
	}
	return report
}

// connect opens the connection and learns what all checks need.
func (c *checker) connect(ctx context.Context) Finding {
	f, err := c.open(ctx)
	if err != nil {
		if c.pool != nil {
			closeSoon(c.pool)
			c.pool = nil
		}
		f = problem(postgres.Mask(err, c.DatabaseURL).Error(), "nothing works without the database, and no other check can be made",
			&Fix{Do: "start the server, or correct database_url (WALPOST_DATABASE_URL)"})
	}
	f.Check = connection
	return f
}

func (c *checker) open(ctx context.Context) (Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Second)
	defer cancel()
	var err error
	if c.pool, err = postgres.OpenOne(ctx, c.DatabaseURL, application); err != nil {
		return Finding{}, err
	}
	replication, err := postgres.ConnConfig(c.ReplicationURL)
	if err != nil {
		return Finding{}, err
	}
	c.streaming = replication.User
	err = c.pool.QueryRow(ctx, `
		SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_database()::text,
		       current_user::text, pg_catalog.pg_is_in_recovery()`).
		Scan(&c.version, &c.database, &c.role, &c.recovery)
	if err != nil {
		return Finding{}, fmt.Errorf("ask the server who it is: %w", err)
	}
	if c.pooled, err = c.pool.Pooled(ctx); err != nil {
		return Finding{}, fmt.Errorf("ask the server who it is: %w", err)
	}
	if c.pooled {
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

// run makes one check in a transaction of its own.
func (c *checker) run(ctx context.Context, check check) []Finding {
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Second)
	defer cancel()
	var findings []Finding
	err := postgres.InReadOnly(ctx, c.pool, limits, func(tx pgx.Tx) (err error) {
		c.tx = tx
		if check.needs != nil {
			missing, err := check.needs(ctx, c)
			if err != nil || missing != "" {
				findings = []Finding{skipped("nothing to check: " + missing)}
				return err
			}
		}
		findings, err = check.run(ctx, c)
		return err
	})
	switch {
	case err != nil:
		return []Finding{unknown("could not be checked", postgres.Mask(err, c.DatabaseURL, c.ReplicationURL, c.StandbyURL).Error())}
	case len(findings) == 0:
		return []Finding{ok(check.fine)}
	}
	return findings
}

// texts returns the one text column of a query.
func (c *checker) texts(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := c.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// slotOfName is what the server says about the slot of the configured name, ours or not; nil when there is none.
func (c *checker) slotOfName(ctx context.Context) (*wal.Slot, error) {
	return wal.FindSlot(ctx, c.tx, c.Slot)
}

// slot is the slot that a relay would read, nil when there is none. A slot of another database, a physical one or one
// of another plugin is no slot of this configuration, whatever its name: the check slot reports it, and no other check
// judges it.
func (c *checker) slot(ctx context.Context) (*wal.Slot, error) {
	slot, err := c.slotOfName(ctx)
	if err != nil || slot == nil || slot.Check() != nil {
		return nil, err
	}
	return slot, nil
}

// record is what walpost has recorded of the slot; nil where it has recorded nothing, or there is no such table.
func (c *checker) record(ctx context.Context) (*store.SlotRecord, error) {
	there, err := store.HasSlots(ctx, c.tx)
	if err != nil || !there {
		return nil, err
	}
	return store.ReadSlotRecord(ctx, c.tx, c.Slot)
}

// knownSources are the sources that have a table, with the columns by which their events have been known so far.
func (c *checker) knownSources(ctx context.Context) ([]*outbox.Source, error) {
	var record *store.SlotRecord
	may, err := store.MayReadSlots(ctx, c.tx)
	if err == nil && may {
		record, err = store.ReadSlotRecord(ctx, c.tx, c.Slot)
	}
	if err != nil {
		return nil, err
	}
	var sources []*outbox.Source
	for _, source := range c.Sources {
		if source.Table == "" {
			continue
		}
		if by, ok := record.KnownOf(source.Schema, source.Table); ok {
			source = source.KnownAs(outbox.KnownBy(by))
		}
		sources = append(sources, source)
	}
	return sources, nil
}

// tables are the sources' tables that can be understood; the check source-table reports the others.
func (c *checker) tables(ctx context.Context) ([]*outbox.Table, error) {
	tables, _, err := c.understand(ctx)
	return tables, err
}

// errNotUnderstood keeps a check from being made that needs all tables: of a table that is not understood it is not
// known what it is.
var errNotUnderstood = errors.New("a source's table is not understood: see the check source-table")

// allTables are the tables of all sources; one that is not understood is an error.
func (c *checker) allTables(ctx context.Context) ([]*outbox.Table, error) {
	tables, all, err := c.understand(ctx)
	if err == nil && !all {
		err = errNotUnderstood
	}
	return tables, err
}

func (c *checker) understand(ctx context.Context) (tables []*outbox.Table, all bool, err error) {
	all = true
	sources, err := c.knownSources(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, source := range sources {
		table, err := source.Inspect(ctx, c.tx)
		switch {
		case err == nil:
			tables = append(tables, table)
		case postgres.Code(err) != "" || postgres.Unavailable(err) || ctx.Err() != nil:
			return nil, false, err
		default:
			all = false
		}
	}
	return tables, all, nil
}

// fromSetup turns an error that names its own fix into a finding.
func fromSetup(err error, why string) (Finding, bool) {
	var setup *wal.SetupError
	if !errors.As(err, &setup) {
		return Finding{}, false
	}
	return problem(setup.Problem, why, &Fix{Do: setup.Fix}), true
}

func identifier(table *outbox.Table) pgx.Identifier {
	return pgx.Identifier{table.Source.Schema, table.Source.Table}
}
func relation(table *outbox.Table) string { return table.Source.Schema + "." + table.Source.Table }

func list(names []string) string {
	slices.Sort(names)
	return strings.Join(names, ", ")
}
