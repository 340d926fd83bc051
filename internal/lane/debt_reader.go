package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

const (
	// roundPause keeps rounds apart, so that each finds a batch.
	roundPause = 10 * time.Millisecond
	// debtTick is how often the reader works while something is owed, refreshInterval how often it asks for changes
	// otherwise.
	debtTick        = 100 * time.Millisecond
	refreshInterval = 2 * time.Second
	// recordBatch is how many events one transaction records at most.
	recordBatch = 5000
	// passInterval is the least time between two passes over a debt that has keys which fail, countInterval
	// that between two counts of it.
	passInterval  = time.Second
	countInterval = 2 * time.Second
	// examineRows bounds what one read of the debt passes over: a tenth of a second of the server, between which there
	// is time for the rest of a round.
	examineRows = 20_000
	// roundLimit bounds a round: a network that swallows everything must be noticed before TCP gives up.
	roundLimit = time.Minute
	// closeTimeout is how long after its drain a lane may go on to write: less than the relay has, which records
	// afterwards what the lanes have finished.
	closeTimeout = 2500 * time.Millisecond
)

// debtReader records and pays a lane's debt. One goroutine does all of its I/O, so that recording, reading,
// removing and looking cannot overtake each other.
type debtReader struct {
	l *Lane

	waiting bool  // something may be waiting in the debt
	change  int64 // by people, as far as the scope knows it
	pass    pass
	lookUps lookUps

	refreshedAt time.Time
	pressed     time.Time // since when the others wait for this lane, zero while they do not
	sampledAt   time.Time // when a sample was last read
	count       count
	warned      time.Time
}

func newDebtReader(l *Lane) *debtReader {
	return &debtReader{l: l, pass: pass{unread: true, allDue: true, without: make(map[string]bool)}, lookUps: lookUps{keys: make(map[string]event.LSN)}}
}

// readAgain reads from the oldest on: something may wait behind the cursor.
func (d *debtReader) readAgain() { d.pass.again, d.waiting = true, true }

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

// reportError shows an error of the debt in log, metrics and statistics, and its end.
func (d *debtReader) reportError(err error) {
	l := d.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.stats.DebtError = ""
		return
	}
	l.stats.DebtError = err.Error()
	l.metrics.debtErrors.Inc()
	if now := time.Now(); now.Sub(d.warned) >= warnEvery {
		d.warned = now
		l.log.Warn("cannot keep the books of the debt, will try again; nothing is lost meanwhile", "err", err)
	}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
