package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/printable"
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
	// payLimit and payBytes bound what is in memory of a debt.
	payLimit = 1000
	payBytes = 8 << 20
	// passInterval is the least time between two passes over a debt that has keys which fail, countInterval
	// that between two counts of it.
	passInterval  = time.Second
	countInterval = 2 * time.Second
	// maxKeys is with how many keys in debt the subscriber counts as being in debt as a whole.
	maxKeys = 1000
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
	sampledAt   time.Time // when a sample was last read
	counted     struct {  // when the debt was last counted, and how long that took
		at   time.Time
		took time.Duration
	}
	warned time.Time
}

// pass is one reading of the debt, from its oldest delivery on.
type pass struct {
	number  int
	cursor  event.Position  // everything up to it was read or left out
	without map[string]bool // keys left out
	again   bool            // something waits behind the cursor: the pass begins again before anything more is read
	unread  bool            // something may wait beyond the cursor
	leftOut bool            // something may wait that this pass did not take in hand
	dueBy   time.Time       // what failed and is due later is left out; zero: nothing is
	allDue  bool            // nothing waits for its backoff: the first pass, and that of a subscriber that is back
	began   time.Time
	took    time.Duration // by its reads
}

// begin begins the next pass. longest is how far away the next attempt of what failed can be, where backAgain says that
// the subscriber has come back: then that is due.
func (p *pass) begin(now time.Time, backAgain bool, longest time.Duration) {
	first := p.number == 0
	*p = pass{number: p.number + 1, without: p.without, unread: true, allDue: first || backAgain, began: now}
	switch {
	case first:
	case backAgain:
		p.dueBy = now.Add(longest)
	default:
		p.dueBy = now
	}
	clear(p.without)
}

// leaveOut leaves a key out of the pass.
func (p *pass) leaveOut(key string) { p.without[key], p.leftOut = true, true }

// lookUps are what has to be looked up in the debt, or read later from it, because an earlier process or a person may
// have recorded what the stream brings.
type lookUps struct {
	open      bool                 // what is open may have been added to the debt
	until     event.LSN            // what the stream brings, until it has passed this
	marksOnly bool                 // nothing of that can be recorded as owed, but its row may be marked
	keys      map[string]event.LSN // these are not read before the stream has passed a position
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
		debt, err := l.ower.Load(ctx, l.Name(), l.stream.Secured, maxKeys)
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
	l.assessLocked(time.Now())
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
	return err
}

// lookUpUnchecked looks up whether what the stream brings is recorded already, after a restart or after a person's change.
func (d *debtReader) lookUpUnchecked(ctx context.Context) error {
	l := d.l
	passed := l.stream.Passed() // before the list is read: everything up to that point is in it
	l.mu.Lock()
	lookUp, unchecked := l.scope.lookUp, l.scope.unchecked
	l.mu.Unlock()
	if !lookUp {
		return nil
	}
	known, finished := make(map[*item]Recorded), unchecked
	if d.lookUps.marksOnly {
		finished = d.belowConfirmed(unchecked)
	} else {
		var err error
		if known, err = d.lookUp(ctx, unchecked); err != nil {
			return err
		}
	}
	if err := d.addMarked(ctx, finished, known); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admitLocked(len(unchecked), known)
	d.passedLocked(passed)
	return nil
}

// belowConfirmed are those of the items, which are in the order of the stream, that the leader before had recorded: a mark
// of their rows is its own, and not that of another program.
func (d *debtReader) belowConfirmed(items []*item) []*item {
	n := slices.IndexFunc(items, func(it *item) bool { return it.ev.Position.Commit >= d.l.stream.Confirmed })
	if n < 0 {
		return items
	}
	return items[:n]
}

// recordBehindDebt makes what stands behind debt owed, when it must leave the window. Keys that have nearly caught up hold
// theirs for a while: when their debt is paid, it is released without ever having been recorded.
func (d *debtReader) recordBehindDebt(ctx context.Context) error {
	l := d.l
	var owed []Owed
	var deliveries []*ack.Delivery
	var dead []*item
	var letters []Owed // of them
	counts := make(map[string]int)
	l.mu.Lock()
	batch := d.dueLocked(time.Now())
	for _, it := range batch {
		switch {
		case it.finished: // its dead letter is written, and what was to be written after it was not
		case it.dead:
			dead, letters = append(dead, it), append(letters, it.owedLocked())
		default:
			owed, deliveries = append(owed, it.owedLocked()), append(deliveries, it.delivery())
			counts[l.keyOf(it.ev)]++
		}
	}
	l.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	for i, it := range dead {
		if err := d.recordDeadBehindDebt(ctx, it, letters[i]); err != nil {
			return err
		}
	}
	if len(owed) > 0 {
		if err := l.ower.Record(ctx, l.Name(), owed); err != nil {
			return fmt.Errorf("record %s as owed: %w", printable.Count(len(owed), "delivery"), err)
		}
		l.acks.Secure(deliveries)
		d.waiting, d.pass.unread = true, true
		d.pass.again = d.pass.again || owed[0].Event.Position.Compare(d.pass.cursor) <= 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open -= len(owed)
	l.metrics.open.Set(float64(l.open))
	l.metrics.recorded.Add(float64(len(owed)))
	s := &l.scope
	s.behindDebt = rest(s.behindDebt, len(batch))
	s.urgent = s.urgent && len(s.behindDebt) > 0
	if !s.mode.whole() {
		for key, n := range counts {
			if _, ok := s.keys[key]; ok {
				s.keys[key] += n
			}
		}
	}
	if len(s.behindDebt) > 0 && (s.mode.whole() || s.urgent) {
		signal(l.readerWake)
	}
	return nil
}

// recordDeadBehindDebt records a dead letter among what stands behind debt.
func (d *debtReader) recordDeadBehindDebt(ctx context.Context, it *item, letter Owed) error {
	if err := d.l.writeDead(ctx, it, letter); err != nil {
		return fmt.Errorf("record dead letter: %w", err)
	}
	d.l.mu.Lock()
	defer d.l.mu.Unlock()
	d.l.finishLocked(it, it.past().err, time.Now())
	d.l.acknowledgeLocked()
	return nil
}

// dueLocked returns what is to be recorded now, oldest first.
func (d *debtReader) dueLocked(now time.Time) []*item {
	l := d.l
	s := &l.scope
	if len(s.behindDebt) == 0 {
		s.urgent = false
		return nil
	}
	if l.liveAtWorkLocked() {
		return nil
	}
	s.sortBehindDebt()
	age := now.Sub(l.made) - s.behindDebt[0].offered
	switch {
	case s.urgent, s.behindDebt[0].ev.Position.Compare(s.before) <= 0:
	case s.mode.whole():
		if len(s.behindDebt) < recordBatch/10 && age < debtTick && !l.stream.Crowds() {
			return nil
		}
	case !l.stream.Crowds() && age < l.options.StallAfter:
		return nil
	}
	return s.behindDebt[:min(len(s.behindDebt), recordBatch)]
}

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
	for c := range l.calls { // handlers that ignore their context are not waited for any longer
		if !c.overdue {
			l.waitNoLongerLocked(c)
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
