package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/tracing"
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
	// positionsInterval is how often the subscribers' positions are written, when something ended. They are all that a next
	// leader knows while one subscriber holds the confirmed position back, and of sources without marks: what was delivered
	// since comes again. They stand in a transaction that is written anyway.
	positionsInterval = 200 * time.Millisecond
)

// recorder writes down what is finished before it is confirmed: it marks the rows and records the LSN in
// one transaction. It is on the path to the confirm and never on the path to the subscribers.
//
// Nothing above walpost.slots.confirmed is ever confirmed. So a slot that stands above it was moved by
// someone else, and an unpublished row below the slot was lost and not merely unmarked.
type recorder struct {
	recorderOptions
	marker *marker

	begun       time.Time // owned by run
	recordedAt  time.Time // owned by run
	positionsAt time.Time // when positions were last written; owned by run
	dirty       bool      // a delivery ended since then; owned by run
	elsewhere   sync.Once // said that someone else marks rows

	unrecorded error // why something finished comes again, once run has ended
	gaveUp     bool  // something finished was not recorded, so nothing after it may be; owned by run

	mu  sync.Mutex
	err error // of the last write, nil when it worked; guarded by mu
}

// recorderOptions are what a recorder is made of.
type recorderOptions struct {
	ledger  ledger
	tracker *ack.Tracker
	tracer  *tracing.Tracer // nil: off
	log     *slog.Logger
	metrics *metrics
	stop    context.CancelCauseFunc // ends the run when this is not our database, or not ours to write to, any more

	names    []string                                 // of the subscribers
	told     []func(secured, finished event.Position) // what they want to hear when their position is recorded; nil for those who do not
	budget   int64                                    // bytes of WAL that debt may hold
	received func() event.LSN                         // end of the WAL, as far as it is known
	epoch    int32                                    // of the server that is streamed

	recorded event.LSN // what walpost.slots has; then owned by run
	horizon  event.LSN // end of the WAL when this leader began: below it lies what has gathered before
}

func newRecorder(options recorderOptions) *recorder {
	return &recorder{recorderOptions: options, marker: &marker{
		ledger: options.ledger, tracker: options.tracker, epoch: options.epoch,
		log: options.log, metrics: options.metrics, stop: options.stop,
	}}
}

// failing returns why nothing can be recorded, or nil.
func (r *recorder) failing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
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
		marks := time.NewTimer(time.Until(r.marker.due))
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
			r.marker.markAll(writing)
			return
		}
		marks.Stop()
		if !time.Now().Before(r.marker.due) {
			r.marker.markOnce(writing)
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
		step := r.tracer.Record(ctx, settled.Entries, confirm)
		elsewhere, err := r.ledger.write(ctx, settled.Entries, confirm, at)
		step.EndRecord(err)
		r.noteElsewhere(elsewhere)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		if err == nil {
			if at != nil {
				r.positionsAt, r.dirty = time.Now(), false
				r.tellSubscribers(at)
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

// tellSubscribers tells those who keep in mind what they have delivered that they need not any more.
func (r *recorder) tellSubscribers(at *positions) {
	for i, tell := range r.told {
		if tell != nil {
			tell(at.secured[i], at.finished[i])
		}
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
