package debt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
)

// ErrFenced means that another relay has taken over the slot: nothing may be written under the old term.
var ErrFenced = errors.New("another relay has taken over the slot")

// ErrChanged means that the database is not the one that was led: another server, another timeline, or an
// earlier state of the same. What is in memory says nothing about it.
var ErrChanged = errors.New("the database is not the one that the relay has led")

// Fence is the leadership over a slot. A transaction that holds it is part of that leadership: the next
// leader waits for its end, and after that none of the old one can begin. So a statement that a killed
// process left behind on the server cannot come after what its successor has read. Nor can anything that
// was learned on one server be written to another one to which the connections lead after a failover, or
// to a database that was restored from a backup.
//
// It is safe for concurrent use.
type Fence struct {
	slot string

	mu    sync.Mutex
	term  int64     // guarded by mu
	where string    // system identifier and timeline; guarded by mu
	known event.LSN // the recorded LSN is at least this; guarded by mu
}

// NewFence returns the fence of a slot, without a leadership yet.
func NewFence(slot string) *Fence { return &Fence{slot: slot} }

// Term is the number of the leadership, 0 before Lead.
func (f *Fence) Term() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.term
}

// whereSQL is the server and its timeline. The control file shows the old timeline right after a
// promotion, the name of the WAL file that is written does not. Any role may call both.
// (PostgreSQL manual, "Control Data Functions" and "Backup Control Functions")
const whereSQL = `(SELECT system_identifier::text FROM pg_catalog.pg_control_system()) || '/' ||
	pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)`

// Lead begins a leadership. The caller must have the lock of the slot (wal.Conn.Lock): nobody else is making,
// repairing or reading it. It waits for the transactions that hold the last leadership.
func (f *Fence) Lead(ctx context.Context, pool *pgxpool.Pool, holder string) error {
	var term int64
	var where, known string
	err := postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			INSERT INTO walpost.leader AS l (slot, holder, term) VALUES ($1, $2, 1)
			ON CONFLICT (slot) DO UPDATE SET holder = excluded.holder, term = l.term + 1
			RETURNING term`, f.slot, holder).Scan(&term)
		if err != nil {
			return err
		}
		// In a statement of its own: that one sees what was there when it began to wait.
		return tx.QueryRow(ctx, `
			SELECT `+whereSQL+`, coalesce((SELECT confirmed::text FROM walpost.slots WHERE slot = $1), '0/0')`,
			f.slot).Scan(&where, &known)
	})
	if err != nil {
		return fmt.Errorf("take the lead of slot %q: %w", f.slot, err)
	}
	confirmed, err := event.ParseLSN(known)
	if err != nil {
		return fmt.Errorf("take the lead of slot %q: %w", f.slot, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.term, f.where, f.known = term, where, confirmed
	return nil
}

// Recorded tells what was committed to walpost.slots: a database that knows less has gone back.
func (f *Fence) Recorded(confirmed event.LSN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = max(f.known, confirmed)
}

// Restart tells that the record in walpost.slots was written anew, and from where the slot begins: this may be
// lower than what was known, and is no sign that the database has gone back.
func (f *Fence) Restart(confirmed event.LSN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = confirmed
}

// Check returns ErrFenced if somebody else has led since Lead, and ErrChanged if this is another database.
// It writes nothing.
func (f *Fence) Check(ctx context.Context, pool *pgxpool.Pool) error {
	return f.check(ctx, pool, `SELECT term, %s FROM walpost.leader WHERE slot = $1`)
}

// Hold makes the transaction part of the leadership, or returns ErrFenced or ErrChanged.
func (f *Fence) Hold(ctx context.Context, tx pgx.Tx) error {
	return f.check(ctx, tx, `SELECT term, %s FROM walpost.leader WHERE slot = $1 FOR SHARE`)
}

func (f *Fence) check(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string) error {
	f.mu.Lock()
	ours := Fence{term: f.term, where: f.where, known: f.known}
	f.mu.Unlock()
	var term int64
	var where string
	var behind bool
	facts := whereSQL + `, coalesce((SELECT confirmed FROM walpost.slots WHERE slot = $1), '0/0') < $2::text::pg_lsn`
	err := db.QueryRow(ctx, strings.Replace(sql, "%s", facts, 1), f.slot, ours.known.String()).Scan(&term, &where, &behind)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: nobody leads slot %q there", ErrChanged, f.slot)
	case err != nil:
		return fmt.Errorf("look who leads slot %q: %w", f.slot, err)
	case where != ours.where:
		return fmt.Errorf("%w: it was server/timeline %s, now it is %s", ErrChanged, ours.where, where)
	case behind:
		return fmt.Errorf("%w: %v was recorded as confirmed of slot %q, now it knows less", ErrChanged, ours.known, f.slot)
	case term != ours.term:
		return fmt.Errorf("%w (our term was %d, now it is %d)", ErrFenced, ours.term, term)
	}
	return nil
}
