package relay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

const (
	// gather is how long finished events are collected for one transaction.
	gather = 50 * time.Millisecond
	// quietBytes is how much WAL without events passes before a position is worth a write of its own: an
	// idle relay writes nothing.
	quietBytes = 16 << 20
	// lastRecord is how long a stop waits for the last write.
	lastRecord = 5 * time.Second
)

// recorder writes down what is finished before it is confirmed: it marks the rows and records the LSN in
// one transaction. It is on the path to the confirm and never on the path to the subscribers.
//
// Nothing above walpost.slots.confirmed is ever confirmed. So a slot that stands above it was moved by
// somebody else, and an unpublished row below the slot was lost and not merely unmarked.
type recorder struct {
	pool    *pgxpool.Pool
	slot    string
	tracker *ack.Tracker
	log     *slog.Logger
	metrics *recordMetrics

	recorded  event.LSN // owned by run
	ready     bool      // walpost.slots says ready; owned by run
	elsewhere sync.Once // said that somebody else marks rows

	mu     sync.Mutex
	tables map[string]*outbox.Table // by source; guarded by mu
	err    error                    // of the last write, nil when it worked; guarded by mu
}

func newRecorder(r *Relay, tracker *ack.Tracker, s *session) *recorder {
	rec := &recorder{
		pool: r.Pool, slot: r.Slot, tracker: tracker, log: r.Log,
		metrics:  newRecordMetrics(r.Registry),
		recorded: s.start(),
		ready:    s.created == nil,
	}
	rec.use(s.tables)
	return rec
}

// use sets the tables as they were last looked up.
func (r *recorder) use(tables []*outbox.Table) {
	bySource := make(map[string]*outbox.Table, len(tables))
	for _, table := range tables {
		bySource[table.Source.Name] = table
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tables = bySource
}

// current returns the tables as they were last looked up.
func (r *recorder) current() []*outbox.Table {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.tables))
}

// failing returns why nothing can be recorded, or nil.
func (r *recorder) failing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// run records until ctx ends, then once more.
func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case <-r.tracker.Moved():
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRecord)
			defer cancel()
			r.record(last, true)
			return
		}
		pause(ctx, gather)
		r.record(ctx, false)
	}
}

// record writes what has settled, again and again until it is written or ctx ends. Without a finished
// event there is no reason to write, unless much foreign WAL has passed or this is the end.
func (r *recorder) record(ctx context.Context, last bool) {
	settled := r.tracker.Take()
	if !settled.Finished {
		worth := r.recorded + 1
		if r.ready && !last {
			worth = r.recorded + quietBytes
		}
		if settled.Confirm < worth {
			return
		}
	}
	left := byTable(settled.Entries)
	backoff := lane.Backoff{Initial: gather, Max: 5 * time.Second}
	for failures := 1; ; failures++ {
		err := r.write(ctx, left, settled.Confirm)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		if err == nil {
			r.recorded, r.ready = settled.Confirm, true
			r.tracker.Recorded(settled)
			return
		}
		if ctx.Err() != nil {
			r.log.Error("stopped before everything finished was recorded; it comes again", "err", err)
			return
		}
		wait := backoff.Wait(failures)
		if failures == 1 || wait > time.Second {
			r.log.Warn("cannot record what is finished, will try again; nothing is confirmed meanwhile", "attempt", failures, "wait", wait, "err", err)
		}
		r.metrics.failures.Inc()
		pause(ctx, wait)
	}
}

// errNotVisible means that rows are in the stream and not in the table: with synchronous replication an
// event can come a moment before its row.
type errNotVisible struct{ rows int }

func (e errNotVisible) Error() string {
	return fmt.Sprintf("%d rows are not visible yet: their commits wait for a synchronous standby", e.rows)
}

// write marks the rows and records the position in one transaction. Rows that are not visible yet keep
// the position from being recorded; what was marked leaves left, so that a retry does not count it twice.
func (r *recorder) write(ctx context.Context, left map[string][]pendingMark, confirm event.LSN) error {
	r.mu.Lock()
	tables := r.tables
	r.mu.Unlock()
	var elsewhere, invisible int
	waiting := make(map[string][]pendingMark)
	err := postgres.InTx(ctx, r.pool, func(tx pgx.Tx) error {
		elsewhere, invisible = 0, 0
		for source, marks := range left {
			table := tables[source]
			if table == nil || !table.Marks() || len(marks) == 0 {
				continue
			}
			rows := make([]outbox.Marked, len(marks))
			for i, m := range marks {
				rows[i] = m.Marked
			}
			result, err := table.Mark(ctx, tx, r.slot, rows)
			if err != nil {
				return err
			}
			elsewhere += result.Elsewhere
			if waiting[source], err = stillInvisible(ctx, tx, marks, result.Missing); err != nil {
				return err
			}
			invisible += len(waiting[source])
		}
		if invisible > 0 {
			return nil // what could be marked is committed
		}
		return r.confirm(ctx, tx, confirm)
	})
	if err != nil {
		return err
	}
	if elsewhere > 0 {
		r.metrics.elsewhere.Add(float64(elsewhere))
		r.elsewhere.Do(func() {
			r.log.Warn("rows were published already when they were to be marked: another poller is at work, or the relay was stopped hard")
		})
	}
	clear(left)
	maps.Copy(left, waiting)
	if invisible > 0 {
		return errNotVisible{invisible}
	}
	return nil
}

// stillInvisible returns the marks whose row was not found although its transaction may still run, as
// others see it. A row whose transaction has ended is gone: its owner deleted it.
func stillInvisible(ctx context.Context, tx pgx.Tx, marks []pendingMark, missing []string) ([]pendingMark, error) {
	if len(missing) == 0 {
		return nil, nil
	}
	var oldest int64 // every transaction below it has ended, as this snapshot sees it
	err := tx.QueryRow(ctx, `SELECT pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot()) & 4294967295`).Scan(&oldest)
	if err != nil {
		return nil, fmt.Errorf("read the snapshot: %w", err)
	}
	var left []pendingMark
	for _, m := range marks {
		// Transaction ids wrap around; their order is that of the signed difference.
		// (PostgreSQL manual, "Preventing Transaction ID Wraparound Failures")
		if m.xid != 0 && int32(m.xid-uint32(oldest)) >= 0 && slices.Contains(missing, m.Row) {
			left = append(left, m)
		}
	}
	return left, nil
}

// confirm records the position. Once that is committed the server may be told.
func (r *recorder) confirm(ctx context.Context, tx pgx.Tx, lsn event.LSN) error {
	tag, err := tx.Exec(ctx, `
		UPDATE walpost.slots SET confirmed = greatest(confirmed, $2::text::pg_lsn), state = 'ready', updated_at = now()
		WHERE slot = $1`, r.slot, lsn.String())
	if err != nil {
		return fmt.Errorf("record %v as confirmed of slot %q: %w", lsn, r.slot, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("record %v as confirmed of slot %q: its row in walpost.slots is gone; restart walpost", lsn, r.slot)
	}
	return nil
}

// pendingMark is a row to mark and the transaction that wrote it.
type pendingMark struct {
	outbox.Marked
	xid uint32
}

func byTable(entries []*ack.Entry) map[string][]pendingMark {
	marks := make(map[string][]pendingMark)
	for _, e := range entries {
		if e.Dead || e.Event.Row == "" {
			continue
		}
		marks[e.Event.Source] = append(marks[e.Event.Source], pendingMark{
			Marked: outbox.Marked{Row: e.Event.Row, EventID: e.Event.ID, Attempts: e.Attempts},
			xid:    e.Event.XID,
		})
	}
	return marks
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
