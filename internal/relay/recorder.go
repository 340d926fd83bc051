package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/printable"
)

const (
	// gather is how long finished events are collected for one transaction.
	gather = 50 * time.Millisecond
	// A leader that is young records more often: what it delivers fast, of what has gathered before it led, would come
	// again from the next one, and a leader that has just begun is the likeliest to end soon. It is young for youngFor,
	// and as long as it has not caught up.
	youngFor    = 10 * time.Second
	youngGather = 10 * time.Millisecond
	// quietBytes is how much WAL without events passes before a position is worth a write of its own: an
	// idle relay writes nothing.
	quietBytes = 16 << 20
	// quietInterval is after which time less is worth it, too, if it is more than ownBytes: so much WAL is never
	// our own record alone, a checkpoint's images of its pages included.
	quietInterval = time.Minute
	ownBytes      = 64 << 10
	// positionsInterval is how often the subscribers' positions are written, when something ended.
	positionsInterval = time.Second
	// markInterval is how often rows are looked for that are still to be marked: of what was paid, discarded, or
	// locked by another session. markBatch is how many are looked at in one transaction.
	markInterval = time.Second
	markBatch    = 1000
	// lockedAfter is how long a row may be locked before the relay says who has locked it.
	lockedAfter = time.Minute
)

// recorder writes down what is finished before it is confirmed: it marks the rows and records the LSN in
// one transaction. It is on the path to the confirm and never on the path to the subscribers.
//
// Nothing above walpost.slots.confirmed is ever confirmed. So a slot that stands above it was moved by
// someone else, and an unpublished row below the slot was lost and not merely unmarked.
type recorder struct {
	ledger  ledger
	tracker *ack.Tracker
	log     *slog.Logger
	metrics *metrics
	stop    context.CancelCauseFunc // ends the run when this is not our database, or not ours to write to, any more

	names    []string         // of the subscribers
	budget   int64            // bytes of WAL that debt may hold
	received func() event.LSN // end of the WAL, as far as it is known

	horizon event.LSN // end of the WAL when this leader began: below it lies what has gathered before

	begun       time.Time // owned by run
	recorded    event.LSN // owned by run
	recordedAt  time.Time // owned by run
	positionsAt time.Time // when positions were last written; owned by run
	dirty       bool      // a delivery ended since then; owned by run
	elsewhere   sync.Once // said that someone else marks rows

	unrecorded error // why something finished comes again, once run has ended
	gaveUp     bool  // something finished was not recorded, so nothing after it may be; owned by run

	epoch   int32                        // of the server that is streamed
	pass    *debt.MarkPlace              // where the pass over the rows that are still to be marked stands; owned by run
	passAt  time.Time                    // when it began; owned by run
	markAt  time.Time                    // when to go on with it; owned by run
	markLog time.Time                    // when an error of it was logged; owned by run
	locked  map[debt.LockedRow]time.Time // rows that were locked in each pass since then; owned by run
	found   map[debt.LockedRow]bool      // those of this pass; owned by run

	mu      sync.Mutex
	err     error  // of the last write, nil when it worked; guarded by mu
	markErr error  // of the last look at what is still to be marked; guarded by mu
	locker  string // who has locked a row for long, in a sentence; guarded by mu
}

// ledger is where the recorder writes; fulfilled by tableLedger.
type ledger interface {
	// write marks the rows of what is finished and records the position, and the subscribers' positions where
	// they are given, in one transaction, or does nothing: with outbox.ErrNotVisible while a row is not there yet.
	// It returns how many rows someone else had marked.
	write(ctx context.Context, finished []*ack.Entry, confirm event.LSN, at *positions) (elsewhere int, err error)
	// markRows is debt.Store.MarkRows.
	markRows(ctx context.Context, query debt.MarkQuery) (debt.MarkRound, error)
	// lockedBy tells who has locked a row, or "".
	lockedBy(ctx context.Context, row debt.LockedRow) (string, error)
}

// failing returns why nothing can be recorded, or nil.
func (r *recorder) failing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// unmarked returns who has locked a row for long, or "", and why rows of what was paid or discarded cannot be
// marked, or nil.
func (r *recorder) unmarked() (locker string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.locker, r.markErr
}

// run records until ctx ends, then once more. A write that has begun outlives ctx for a while, and ends with
// hard.
func (r *recorder) run(ctx, hard context.Context) {
	writing, cancel := context.WithCancel(hard)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		pause(writing, lastRecord)
		cancel()
	})
	defer stop()
	r.begun = time.Now()
	r.recordedAt = r.begun
	quiet := time.NewTicker(quietInterval)
	defer quiet.Stop()
	for {
		var due <-chan time.Time
		if r.dirty {
			due = time.After(r.positionsEvery())
		}
		marks := time.NewTimer(time.Until(r.markAt))
		select {
		case <-r.tracker.Moved():
			pause(ctx, r.gathers())
			r.record(writing, false)
		case <-due:
			r.record(writing, false)
		case <-quiet.C:
			r.record(writing, false)
		case <-marks.C:
		case <-ctx.Done():
			r.record(writing, true)
			r.markLast(writing)
			return
		}
		marks.Stop()
		if !time.Now().Before(r.markAt) {
			r.markOnce(writing)
		}
	}
}

// young reports whether what is delivered is still to be recorded more often.
func (r *recorder) young() bool {
	return time.Since(r.begun) < youngFor || r.tracker.Passed() < r.horizon
}

func (r *recorder) gathers() time.Duration {
	if r.young() {
		return youngGather
	}
	return gather
}

func (r *recorder) positionsEvery() time.Duration {
	if r.young() {
		return youngGather
	}
	return positionsInterval
}

// markOnce looks at one batch of the rows that are still to be marked. It is the only place, beside record, from
// which rows are marked: it knows what the stream has brought and what is open.
func (r *recorder) markOnce(ctx context.Context) {
	if r.pass == nil {
		r.passAt, r.found = time.Now(), make(map[debt.LockedRow]bool)
	}
	round, err := r.ledger.markRows(ctx, debt.MarkQuery{
		Passed: event.Position{Epoch: r.epoch, Commit: r.tracker.Passed()},
		Open:   r.tracker.OpenAmong, After: r.pass, Limit: markBatch,
	})
	r.mu.Lock()
	r.markErr = err
	r.mu.Unlock()
	if why := asChanged(err); why != nil {
		r.stop(why)
	}
	if err != nil {
		now := time.Now()
		if ctx.Err() == nil && now.Sub(r.markLog) >= time.Minute {
			r.markLog = now
			r.log.Warn("cannot mark rows of what was paid or discarded, will try again", "err", err)
		}
		r.metrics.failures.Inc()
		r.pass, r.markAt = nil, now.Add(5*markInterval)
		return
	}
	for _, row := range round.Locked {
		r.found[row] = true
	}
	if r.pass = round.Next; r.pass != nil {
		r.markAt = time.Now()
		return
	}
	r.endPass(ctx, round.Done > 0)
}

// endPass is called when all rows that are still to be marked were looked at. Where many of them have to wait, a
// pass takes long, and the next one begins later.
func (r *recorder) endPass(ctx context.Context, busy bool) {
	now := time.Now()
	r.markAt = now.Add(max(markInterval, 5*now.Sub(r.passAt)))
	if busy {
		r.markAt = now.Add(gather)
	}
	before := r.locked
	r.locked = make(map[debt.LockedRow]time.Time, len(r.found))
	var oldest debt.LockedRow
	for row := range r.found {
		since, ok := before[row]
		if !ok {
			since = now
		}
		r.locked[row] = since
		if at := r.locked[oldest]; at.IsZero() || since.Before(at) {
			oldest = row
		}
	}
	sentence := ""
	if since, ok := r.locked[oldest]; ok && now.Sub(since) >= lockedAfter {
		who, err := r.ledger.lockedBy(ctx, oldest)
		if err != nil || who == "" {
			who = "a session that is not found"
		}
		sentence = fmt.Sprintf("%s cannot be marked, because another session has them locked, the longest since %s: event %q of source %q, locked by %s; end that session, or wait for it",
			printable.Count(int64(len(r.locked)), "row"), since.Format(time.RFC3339), oldest.EventID, oldest.Source, who)
	}
	r.mu.Lock()
	said := r.locker != ""
	r.locker = sentence
	r.mu.Unlock()
	if sentence != "" && !said {
		r.log.Warn("rows are locked", "problem", sentence)
	}
}

// markLast marks what can be marked at a stop.
func (r *recorder) markLast(ctx context.Context) {
	r.pass = nil
	for again := true; again && ctx.Err() == nil; {
		r.markOnce(ctx)
		again = r.pass != nil
	}
}

// record writes what has settled, again and again until it is written or ctx ends. Without a finished
// event there is no reason to write, unless much foreign WAL has passed or this is the end.
func (r *recorder) record(ctx context.Context, last bool) {
	if r.gaveUp {
		return
	}
	settled := r.tracker.TakeSettled()
	confirm := r.within(settled)
	r.dirty = r.dirty || settled.Ended
	switch {
	case last, len(settled.Entries) > 0:
	case confirm > r.recorded && r.dirty, confirm >= r.recorded+quietBytes:
	case confirm > r.recorded+ownBytes && time.Since(r.recordedAt) >= quietInterval:
	case r.dirty && time.Since(r.positionsAt) >= r.positionsEvery(): // one subscriber holds the others' back
	default:
		return
	}
	backoff := lane.Backoff{Initial: gather, Max: 5 * time.Second}
	for failures := 1; ; failures++ {
		var at *positions
		if last || time.Since(r.positionsAt) >= r.positionsEvery() {
			at = positionsOf(r.tracker, r.names)
		}
		elsewhere, err := r.ledger.write(ctx, settled.Entries, confirm, at)
		r.noteElsewhere(elsewhere)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		if err == nil {
			if at != nil {
				r.positionsAt, r.dirty = time.Now(), false
			}
			r.recorded, r.recordedAt = confirm, time.Now()
			r.tracker.Recorded(settled, confirm)
			return
		}
		if why := asChanged(err); why != nil {
			r.gaveUp = true
			r.stop(why)
			return
		}
		if ctx.Err() != nil {
			r.gaveUp = true
			if len(settled.Entries) > 0 || confirm > r.recorded {
				r.unrecorded = fmt.Errorf("stopped before everything finished was recorded; it comes again: %w", err)
			}
			return
		}
		wait := backoff.Wait(failures)
		// On a busy server a row comes a moment after its event: that is no one's concern.
		moment := errors.Is(err, outbox.ErrNotVisible) && failures < 4
		if !moment && (failures == 1 || wait > time.Second) {
			r.log.Warn("cannot record what is finished, will try again; nothing is confirmed meanwhile", "attempt", failures, "wait", wait, "err", err)
		}
		r.metrics.failures.Inc()
		pause(ctx, wait)
	}
}

// within chooses what to confirm: what is finished, so that debt holds WAL and can be read from the
// stream again, as long as that costs no more than the budget; above it, what is secured.
func (r *recorder) within(s ack.Settled) event.LSN {
	if r.budget == Unlimited || int64(r.received()-min(s.Finished, r.received())) <= r.budget {
		return s.Finished
	}
	return s.Secured
}

func (r *recorder) noteElsewhere(rows int) {
	if rows == 0 {
		return
	}
	r.metrics.elsewhere.Add(float64(rows))
	r.elsewhere.Do(func() {
		r.log.Warn("rows were published already when they were to be marked: another poller is at work, or the relay was stopped hard", "rows", rows)
	})
}
