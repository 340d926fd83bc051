package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/slot"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

const (
	watchInterval = 5 * time.Second
)

// streamWatch looks at the slot, the publication and the debt from outside the stream, so that their figures do not vanish
// while the slot is idle, and a change that the stream does not tell is noticed.
type streamWatch struct{ *base }

// run watches until ctx ends, or until something has changed, which stop gets.
func (w *streamWatch) run(ctx context.Context, s *session, p *parts, stop context.CancelCauseFunc) {
	fingerprint := s.fingerprint
	var held hold
	var quiet silence
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		held, quiet = w.observe(limited, held, quiet)
		w.refreshTables(limited, p.ledger)
		var err error
		fingerprint, err = w.publicationChanged(limited, s.tables, fingerprint)
		lead := w.fence.Check(limited, w.Pool)
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
func (w *streamWatch) refreshTables(ctx context.Context, ledger *tableLedger) {
	known := ledger.tables.BySource()
	var tables []*outbox.Table
	changed := false
	for _, source := range w.Sources {
		if source.Messages != "" {
			continue
		}
		before := known[source.Name]
		if before != nil { // with the columns by which its events are known
			source = before.Source
		}
		table, err := source.Inspect(ctx, w.Pool)
		if err != nil {
			return // who needs the table says so
		}
		if before != nil && before.Marks() && !table.Marks() {
			return // a mark that fails says that the column is gone; without one no one would
		}
		table.OnMissing = func(gone, replaced int) { w.noteMissing(source.Name, gone, replaced) }
		tables = append(tables, table)
		changed = changed || !table.Same(before)
	}
	if changed {
		w.Log.Info("a table was altered; what is known of it is read again", "slot", w.Slot)
		ledger.use(tables)
	}
}

// observe brings what comes from SQL up to date, and returns what to compare the next look with. While
// Postgres is away it all stays as it was.
func (w *streamWatch) observe(ctx context.Context, held hold, quiet silence) (hold, silence) {
	if found, err := wal.FindSlot(ctx, w.Pool, w.Slot); err == nil && found != nil {
		held, quiet = w.heldBack(found.HeldBackBy, held), w.watchSilence(quiet, *found)
	}
	if counts, err := w.owed.Counts(ctx); err == nil {
		w.metrics.showOwed(w.names(), counts)
	}
	if absent, err := w.owed.AbsentSources(ctx); err == nil {
		w.condition.setAbsent(absent)
	}
	if lost, err := w.owed.Lost(ctx); err == nil {
		w.condition.setLost(lost)
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
func (w *streamWatch) heldBack(by string, before hold) hold {
	now := hold{by, w.progress.Received()}
	problem := ""
	if by != "" && now == before {
		problem = fmt.Sprintf("the server sends no event before the standbys of synchronized_standby_slots (%s) have it, and one of them does not move: "+
			"bring it back, or take it off that setting and reload; walpost doctor says which", by)
	}
	w.condition.setHeld(problem)
	return now
}

// publicationChanged compares what the publication carries with what is recorded. A table that was taken off it and put
// back, or made again under its name, or a partition that was, leaves a hole that no message of the stream tells. It returns what is recorded
// now.
func (w *streamWatch) publicationChanged(ctx context.Context, tables []*outbox.Table, before store.Fingerprint) (store.Fingerprint, error) {
	published, err := slot.ReadPublished(ctx, w.Pool, w.Publication, w.Sources)
	switch {
	case errors.Is(err, slot.ErrNoTable): // perhaps it is made again in a moment
		w.condition.setTrouble(err.Error() + ": nothing comes from it; when it is there again, its unpublished rows are sent")
		return before, nil
	case err != nil:
		return before, err
	case !published.Exists:
		return before, &changed{reason: fmt.Sprintf("publication %q is gone", w.Publication)}
	}
	difference := slot.Compare(before, published.Now)
	if len(difference.Changed) > 0 {
		return before, &changed{reason: "what the publication carries was changed: rows may be missing from the stream"}
	}
	for _, table := range tables {
		if waits, err := table.WaitsIn(ctx, w.Pool, difference.Partitions); waits || err != nil {
			if err == nil {
				err = &changed{reason: "a partition has come with rows that were not streamed"}
			}
			return before, err
		}
	}
	now := difference.Record(published.Now, difference.SecondPass)
	if err := w.replaceFingerprint(ctx, before, now); err != nil {
		return before, err
	}
	trouble := ""
	if len(published.Unstreamed) > 0 { // said when it is recorded: what a person does about it is a change to that
		trouble = published.Unstreamed[0].Error()
	}
	w.condition.setTrouble(trouble)
	return now, nil
}

// watchSilence tells of a sender that seems to be frozen.
func (w *streamWatch) watchSilence(before silence, slot wal.Slot) silence {
	now := time.Now()
	look := senderLook{pid: slot.ActivePID, heard: w.progress.Heard(), activity: slot.Activity, end: slot.End}
	after, silent := before.next(now, look)
	w.metrics.silent.Set(silent.Seconds())
	problem := ""
	if silent > silenceLimit {
		problem = fmt.Sprintf("the server has sent nothing for %v, although its WAL has grown by %d bytes meanwhile, and its WAL sender (pid %d) shows no sign of work: "+
			"neither its statistics nor what it waits for has changed. Look at that process on the server's machine; one that is suspended (state T) needs SIGCONT, "+
			"and one that does not come back a restart of the server",
			now.Sub(look.heard).Round(time.Second), look.end-after.first.end, look.pid)
	}
	w.condition.setSilent(problem)
	return after
}

// awaitSecondPass waits for the transactions that a repair has found at work, while the stream goes on, and then begins
// everything again: nothing is in hand during the second pass.
func (w *streamWatch) awaitSecondPass(ctx context.Context, s *session, stop context.CancelCauseFunc) {
	if len(s.writers) == 0 {
		return
	}
	if w.awaitWriters(ctx, "the second pass of the repair", s.writers) == nil {
		stop(&changed{writersEnded, "every transaction that the repair has to wait for has ended"})
	}
}
