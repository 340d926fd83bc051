package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

const (
	watchInterval     = 5 * time.Second
	retentionInterval = time.Minute
	retentionBatch    = 1000
)

// watch looks at the slot, the publication and the debt from outside the stream, so that their figures
// do not vanish while the slot is idle, and a change that the stream does not tell is noticed.
func (r *Relay) watch(ctx context.Context, s *session, p *parts, stop context.CancelCauseFunc) {
	fingerprint := s.fingerprint
	var held hold
	var quiet silence
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		held, quiet = r.observe(limited, held, quiet)
		r.refreshTables(limited, p.ledger)
		var err error
		fingerprint, err = r.publicationChanged(limited, s.tables, fingerprint)
		lead := r.fence.Check(limited, r.Pool)
		cancel()
		// Any other error here is one of the stream as well, and told there.
		for _, err := range []error{lead, err} {
			if why := asChanged(err); why != nil {
				stop(why)
				return
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// refreshTables reads again what is known of the sources' tables. A column whose type was changed, or a new primary
// key, would make marks and reads of the debt fail for ever.
func (r *Relay) refreshTables(ctx context.Context, ledger *tableLedger) {
	known := ledger.tables.BySource()
	var tables []*outbox.Table
	changed := false
	for _, source := range r.Sources {
		if source.Messages != "" {
			continue
		}
		table, err := source.Inspect(ctx, r.Pool)
		if err != nil {
			return // who needs the table says so
		}
		before := known[source.Name]
		if before != nil && before.Marks() && !table.Marks() {
			return // a mark that fails says that the column is gone; without one no one would
		}
		table.OnMissing = func(gone, replaced int) { r.noteMissing(source.Name, gone, replaced) }
		tables = append(tables, table)
		changed = changed || !table.Same(before)
	}
	if changed {
		r.Log.Info("a table was altered; what is known of it is read again", "slot", r.Slot)
		ledger.use(tables)
	}
}

// observe brings what comes from SQL up to date, and returns what to compare the next look with. While
// Postgres is away it all stays as it was.
func (r *Relay) observe(ctx context.Context, held hold, quiet silence) (hold, silence) {
	if found, err := wal.FindSlot(ctx, r.Pool, r.Slot); err == nil && found != nil {
		held, quiet = r.heldBack(found.HeldBackBy, held), r.watchSilence(quiet, *found)
	}
	if counts, err := r.owed.Counts(ctx); err == nil {
		r.showOwed(counts)
	}
	if lost, err := r.owed.Lost(ctx); err == nil {
		r.mu.Lock()
		r.lost = lost
		r.mu.Unlock()
	}
	return held, quiet
}

// hold is a look at a server that sends nothing before a standby has it.
type hold struct {
	by       string // the standbys' slots; "" while it sends
	received event.LSN
}

// heldBack tells of a server that has held the stream back from one look to the next. A moment of it is what
// happens at every commit.
func (r *Relay) heldBack(by string, before hold) hold {
	now := hold{by, r.wal.Received()}
	problem := ""
	if by != "" && now == before {
		problem = fmt.Sprintf("the server sends no event before the standbys of synchronized_standby_slots (%s) have it, and one of them does not move: "+
			"bring it back, or take it off that setting and reload; walpost doctor says which", by)
	}
	r.setProblem(&r.held, problem)
	return now
}

// publicationChanged compares what the publication carries with what is recorded. A table that was taken off it and put
// back, or made again under its name, leaves a hole that no message of the stream tells. It returns what is recorded
// now.
func (r *Relay) publicationChanged(ctx context.Context, tables []*outbox.Table, before store.Fingerprint) (store.Fingerprint, error) {
	published, err := slot.ReadPublished(ctx, r.Pool, r.Publication, r.Sources)
	switch {
	case errors.Is(err, slot.ErrNoTable): // perhaps it is made again in a moment
		r.setTrouble(err.Error() + ": nothing comes from it; when it is there again, its unpublished rows are sent")
		return before, nil
	case err != nil:
		return before, err
	case !published.Exists:
		return before, &changed{reason: fmt.Sprintf("publication %q is gone", r.Publication)}
	}
	r.setTrouble("")
	difference := slot.Compare(before, published.Now)
	if len(difference.Changed) > 0 {
		return before, &changed{reason: "what the publication carries was changed: rows may be missing from the stream"}
	}
	for _, table := range tables {
		if waits, err := table.WaitsIn(ctx, r.Pool, difference.Partitions); waits || err != nil {
			if err == nil {
				err = &changed{reason: "a partition has come with rows that were not streamed"}
			}
			return before, err
		}
	}
	now := difference.Record(published.Now, difference.SecondPass)
	return now, r.replaceFingerprint(ctx, before, now)
}

// recordPublished records what is published, where nothing can be missing from the stream.
func (r *Relay) recordPublished(ctx context.Context, s *session) error {
	difference := s.compare()
	s.fingerprint = difference.Record(s.published.Now, difference.SecondPass)
	return r.replaceFingerprint(ctx, s.record.Fingerprint, s.fingerprint)
}

func (r *Relay) replaceFingerprint(ctx context.Context, before, now store.Fingerprint) error {
	if now.Equal(before) {
		return nil
	}
	err := postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
		if err := r.fence.HoldTx(ctx, tx); err != nil {
			return err
		}
		return store.WriteFingerprint(ctx, tx, r.Slot, now)
	})
	if err == nil {
		r.Log.Info("sources or their partitions have come or gone, and no row is missing from the stream", "slot", r.Slot)
	}
	return err
}

func (r *Relay) setTrouble(trouble string) { r.setProblem(&r.trouble, trouble) }

// setProblem replaces a problem that Health shows, and logs it once.
func (r *Relay) setProblem(shown *string, problem string) {
	r.mu.Lock()
	before := *shown
	*shown = problem
	r.mu.Unlock()
	if problem != "" && problem != before {
		r.Log.Error("the relay is not well", "problem", problem)
	}
}

// clean deletes what retention allows, in small batches, so that neither the stream nor the application
// waits for it.
func (r *Relay) clean(ctx context.Context, ledger *tableLedger) {
	ticker := time.NewTicker(retentionInterval)
	defer ticker.Stop()
	for {
		var longest time.Duration
		tables := ledger.tables.BySource()
		for _, table := range tables {
			longest = max(longest, table.Source.Retention)
			r.cleanAll(ctx, "delete old outbox rows", func() (deleted int64, more bool, err error) {
				err = postgres.InTx(ctx, r.Pool, func(tx pgx.Tx) error {
					deleted, more, err = table.Clean(ctx, tx, r.Slot, retentionBatch, debt.SparedSQL)
					return err
				})
				return deleted, more, err
			})
		}
		r.cleanAll(ctx, "delete paid deliveries", func() (int64, bool, error) {
			deleted, err := r.owed.Clean(ctx)
			return int64(deleted), false, err
		})
		if longest > 0 {
			inbox := store.NewInboxCleaner(r.Pool, r.Slot, longest, retentionBatch, r.owed.CanComeAgain)
			r.cleanAll(ctx, "delete old inbox rows", func() (int64, bool, error) { return inbox.CleanBatch(ctx) })
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Relay) cleanAll(ctx context.Context, what string, batch func() (int64, bool, error)) {
	for ctx.Err() == nil {
		deleted, more, err := batch()
		if err != nil {
			if ctx.Err() == nil {
				r.Log.Warn("cannot "+what+", will try again", "wait", retentionInterval, "err", err)
			}
			return
		}
		if deleted > 0 {
			r.Log.Debug(what, "rows", deleted)
		}
		if !more {
			return
		}
		pause(ctx, 100*time.Millisecond) // leave the others their share
	}
}
