package lane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// loadDebt learns what is owed, again and again until it is known or ctx ends. Without that nothing may be
// handed over: something older could be owed.
func (d *debtReader) loadDebt(ctx context.Context) error {
	l := d.l
	for failures := 1; ; failures++ {
		debt, err := l.ower.Load(ctx, l.Name(), l.stream.Secured, readLimit)
		if err == nil {
			l.mu.Lock()
			d.adoptLocked(debt)
			d.lookUps.until, d.lookUps.marksOnly = max(l.stream.Horizon, debt.Bound), !debt.Beyond
			if d.lookUps.marksOnly {
				d.lookUps.until, l.scope.unread = l.stream.Confirmed, false
				if len(d.belowConfirmed(l.scope.unchecked)) == 0 {
					d.passedLocked(l.stream.Passed())
				}
			}
			l.mu.Unlock()
			err = d.refresh(ctx)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil { // that is our own stop, and no trouble
			return ctx.Err()
		}
		d.reportError(fmt.Errorf("learn what is owed: %w", err))
		select {
		case <-time.After(l.options.Backoff.Wait(failures)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// adoptLocked makes the scope fit what is owed.
func (d *debtReader) adoptLocked(debt Debt) {
	s := &d.l.scope
	d.waiting, d.change = debt.More || len(debt.Keys) > 0, debt.Change
	s.mode = debtByKey
	if debt.More {
		s.mode.oweAll()
	}
	if debt.Paused {
		s.mode.pause()
	}
	clear(s.keys)
	switch d.l.options.Ordering {
	case ByKey:
		for key, n := range debt.Keys {
			s.keys[key] = n
		}
	case Total:
		for _, n := range debt.Keys {
			s.keys[""] += n
		}
	case None: // nothing waits for what is owed
	}
	d.l.metrics.inDebt.Set(boolToFloat(s.mode.whole()))
	d.l.metrics.keysInDebt.Set(float64(len(s.keys)))
}

// runRounds works until ctx ends.
func (d *debtReader) runRounds(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.l.readerWake:
		case <-timer.C:
		}
		limited, cancel := context.WithTimeout(ctx, roundLimit)
		err := d.runRound(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		d.reportError(err)
		switch {
		case err != nil:
			timer.Reset(time.Second)
		case d.hasWork():
			timer.Reset(debtTick)
		default:
			timer.Reset(refreshInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(roundPause):
		}
	}
}

func (d *debtReader) hasWork() bool {
	l := d.l
	l.mu.Lock()
	defer l.mu.Unlock()
	return d.waiting || l.scope.mode.whole() || l.scope.lookUp || l.open > 0
}

// runRound does what is to be done. A pause that cannot be written keeps nothing else back.
func (d *debtReader) runRound(ctx context.Context) error {
	return errors.Join(d.pauseOnItsWord(ctx), d.keepBooks(ctx))
}

// keepBooks works on the debt in the only right order: record before reading, remove before reading again, let go last.
func (d *debtReader) keepBooks(ctx context.Context) error {
	l := d.l
	if d.refreshDue() {
		if err := d.refresh(ctx); err != nil {
			return err
		}
	}
	l.mu.Lock()
	d.assessLocked(time.Now())
	l.mu.Unlock()
	for _, step := range []func(context.Context) error{d.lookUpOpen, d.lookUpUnchecked, d.recordBehindDebt, d.removePaid} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	err := errors.Join(d.readWaiting(ctx), d.readSample(ctx))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveDebtLocked() // whatever cannot be read
	l.startCallsLocked()
	return err
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
