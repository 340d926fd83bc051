package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

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
// A transaction holds it by a share lock on a row of walpost.fence, which the next leader updates. Each connection has
// a row of its own: where two transactions share the lock of one row, Postgres makes a multixact for nearly every
// transaction, which is 170 million a day at 2,000 events a second.
// (PostgreSQL manual, "Multixacts and Wraparound")
//
// It is safe for concurrent use.
type Fence struct {
	slot string

	mu    sync.Mutex
	term  int64     // guarded by mu
	where string    // system identifier and timeline; guarded by mu
	known event.LSN // the recorded LSN is at least this; guarded by mu
	// The database has at least so many records; guarded by mu. The recorded LSN alone would not do: while a debt holds
	// it, it stands, and is the same in an earlier state.
	records int64
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

// fenceRows is how many rows of walpost.fence a slot has. With more connections some share a row, which costs a
// multixact now and then and nothing else.
const fenceRows = 128

// connections counts the connections of this process that have written under a leadership.
var connections atomic.Int64

// fenceRow is the row that a connection locks.
func fenceRow(tx pgx.Tx) int {
	const name = "walpost.fence"
	data := postgres.SessionData(tx)
	n, ok := data[name].(int)
	if !ok {
		n = int(connections.Add(1) % fenceRows)
		data[name] = n
	}
	return n
}

// Lead begins a leadership of holder, whose session with the key reader was claimed as the one that makes and reads
// the slot (ClaimReader): no one else does. With a lease, holder must have been elected; without, it takes the lead. It
// waits for the transactions that hold the last leadership. If another relay has taken over meanwhile it returns
// ErrOvertaken.
func (f *Fence) Lead(ctx context.Context, pool *postgres.Pool, holder string, reader Key, elected bool) error {
	var term, records int64
	var where, known string
	err := postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO walpost.leader (slot, holder, term) VALUES ($1, '', 0) ON CONFLICT DO NOTHING`, f.slot)
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `
			UPDATE walpost.leader l SET holder = $2, term = `+nextTerm+`,
			    key = CASE WHEN $4 THEN l.key END, role = CASE WHEN $4 THEN l.role END
			WHERE l.slot = $1 AND coalesce(l.reader_key, 0) = $3 AND (l.holder = $2 OR NOT $4)
			RETURNING l.term`, f.slot, holder, reader, elected).Scan(&term)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrOvertaken
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO walpost.fence (slot, n, term) SELECT $1, n, $2 FROM pg_catalog.generate_series(0, $3 - 1) n
			ON CONFLICT (slot, n) DO UPDATE SET term = excluded.term`, f.slot, term, fenceRows)
		if err != nil {
			return err
		}
		// In a statement of its own: that one sees what was there when it began to wait.
		return tx.QueryRow(ctx, `
			SELECT `+whereSQL+`, `+confirmedOf+`::text, `+recordsOf,
			f.slot).Scan(&where, &known, &records)
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
	f.term, f.where, f.known, f.records = term, where, confirmed, records
	return nil
}

// Recorded tells what was committed to walpost.slots: a database that knows less has gone back.
func (f *Fence) Recorded(confirmed event.LSN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = max(f.known, confirmed)
	f.records++
}

// Records grows with every call of Recorded.
func (f *Fence) Records() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.records
}

// Restart tells that the record in walpost.slots was written again, and from where the slot begins: this may be
// lower than what was known, and is no sign that the database has gone back.
func (f *Fence) Restart(confirmed event.LSN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = confirmed
}

// Check returns ErrFenced if someone else has led since Lead, and ErrChanged if this is another database.
// It writes nothing.
func (f *Fence) Check(ctx context.Context, pool *postgres.Pool) error {
	return f.check(ctx, pool, `SELECT term, %s FROM walpost.leader WHERE slot = $1`, f.slot)
}

// HoldTx makes the transaction part of the leadership, or returns ErrFenced or ErrChanged.
func (f *Fence) HoldTx(ctx context.Context, tx pgx.Tx) error {
	return f.check(ctx, tx, `SELECT term, %s FROM walpost.fence WHERE slot = $1 AND n = $4 FOR SHARE`, f.slot, fenceRow(tx))
}

// QueueHold queues what makes the transaction part of the leadership with a term, in a batch: result gets the
// term that is now, or an error. A database without a leadership has term 0.
func QueueHold(batch *pgx.Batch, tx pgx.Tx, slot string, result func(term int64, err error) error) {
	// What waited for another transaction reads the row as that one left it.
	// (PostgreSQL manual, "Read Committed Isolation Level")
	const sql = `SELECT term FROM walpost.fence WHERE slot = $1 AND n = $2 FOR SHARE`
	batch.Queue(sql, slot, fenceRow(tx)).QueryRow(func(row pgx.Row) error {
		var term int64
		err := row.Scan(&term)
		if errors.Is(err, pgx.ErrNoRows) {
			term, err = 0, nil
		}
		return result(term, err)
	})
}

func (f *Fence) check(ctx context.Context, db Querier, sql, slot string, row ...any) error {
	f.mu.Lock()
	ours := Fence{term: f.term, where: f.where, known: f.known, records: f.records}
	f.mu.Unlock()
	var term int64
	var where string
	var behind, fewer bool
	facts := whereSQL + `, ` + confirmedOf + ` < $2::text::pg_lsn, ` + recordsOf + ` < $3::bigint`
	args := append([]any{slot, ours.known.String(), ours.records}, row...)
	err := db.QueryRow(ctx, strings.Replace(sql, "%s", facts, 1), args...).Scan(&term, &where, &behind, &fewer)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: no one leads slot %q there", ErrChanged, f.slot)
	case err != nil:
		return fmt.Errorf("look who leads slot %q: %w", f.slot, err)
	case where != ours.where:
		return fmt.Errorf("%w: it was server/timeline %s, now it is %s", ErrChanged, ours.where, where)
	case behind:
		return fmt.Errorf("%w: %v was recorded as confirmed of slot %q, now it knows less", ErrChanged, ours.known, f.slot)
	case fewer:
		return fmt.Errorf("%w: %d records were made for slot %q, now it knows fewer", ErrChanged, ours.records, f.slot)
	case term != ours.term:
		return fmt.Errorf("%w (our term was %d, now it is %d)", ErrFenced, ours.term, term)
	}
	return nil
}
