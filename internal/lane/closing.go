package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/printable"
)

// recordUnopened records what was offered to a lane that a stop has ended before it knew its debt.
func (d *debtReader) recordUnopened() error {
	l := d.l
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	if open == 0 {
		return nil
	}
	deadline := time.Now().Add(closeTimeout)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if err := d.loadDebt(ctx); err != nil {
		return fmt.Errorf("subscriber %q: %s could not be recorded as owed and will come again: %w", l.Name(), printable.Count(int64(open), "open delivery"), err)
	}
	return d.recordOpen(deadline)
}

// recordOpen removes what was paid and records what is still open as owed, so that a clean restart repeats
// nothing. What cannot be recorded by the deadline comes again, and the error names it.
func (d *debtReader) recordOpen(deadline time.Time) error {
	l := d.l
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := d.removePaid(ctx)
	if err != nil {
		err = fmt.Errorf("subscriber %q: what was sent of its debt comes again: %w", l.Name(), err)
	}
	// What is still to be looked up is in no queue. What of it is recorded already, or finished, is not to be owed.
	if lookUpErr := d.lookUpUnchecked(ctx); lookUpErr != nil {
		err = errors.Join(err, fmt.Errorf("subscriber %q: what the stream brought at its start comes again: %w", l.Name(), lookUpErr))
	}
	l.mu.Lock()
	s := &l.scope
	s.mode.oweAll()
	s.urgent = true
	for _, q := range l.backlog.keys {
		l.moveBehindDebtLocked(q)
	}
	for c := range l.calls.all { // handlers that ignore their context are not waited for any longer
		if !c.overdue {
			l.noteOverdue(c)
		}
	}
	l.abandonOverdueLocked()
	open := len(s.behindDebt)
	l.mu.Unlock()
	for open > 0 {
		recorded := d.recordBehindDebt(ctx)
		l.mu.Lock()
		before := open
		if open = len(s.behindDebt); recorded != nil && open > 0 {
			err = errors.Join(err, fmt.Errorf("subscriber %q: %s, the first of event %q, could not be recorded as owed and will come again: %w",
				l.Name(), printable.Count(open, "open delivery"), s.behindDebt[0].ev.ID, recorded))
		}
		l.mu.Unlock()
		if recorded != nil || open == before {
			break
		}
	}
	if err != nil {
		d.reportError(err)
		return err
	}
	d.reportError(errors.Join(d.pauseOnItsWord(ctx), d.refresh(ctx))) // what is owed no more holds no WAL
	return nil
}
