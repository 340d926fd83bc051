package relay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/printable"
)

const (
	// leaverBatch is how many events one transaction of a leaver records at most.
	leaverBatch = 5000
	// leaverLook is how often a leaver looks whether everything of it is recorded.
	leaverLook = 100 * time.Millisecond
)

// leaver stands in for the lane of a subscriber that has left the configuration, until every event that committed before
// it left and was not delivered to it is recorded as owed. It delivers nothing. Records that exist stay as they are, dead
// or waiting.
//
// Its deliveries finish like dead letters: no WAL is kept for them, because no one will pay them from it. An event that the
// stream brings again although its row is marked is not recorded: the subscriber has had it, and it would stand behind
// later events of its key that a repair has recorded.
type leaver struct {
	name    string
	number  int // in the tracker
	tracker *ack.Tracker
	ower    recordOwer
	log     *slog.Logger
	// passed reports whether the stream has handed over everything that committed before the subscriber left.
	passed func() bool
	// depart records that nothing more is to come.
	depart func(ctx context.Context) error

	offered chan struct{} // gets a token when there is something to record

	owed        int    // recorded in this life; owned by run
	first, last string // ids of these; owned by run

	mu   sync.Mutex
	held []*ack.Delivery // guarded by mu
	err  error           // of the last write, nil when it worked; guarded by mu
}

// recordOwer is the part of lane.Ower that records.
type recordOwer interface {
	FindMarked(ctx context.Context, events []*event.Event) ([]int, error)
	Record(ctx context.Context, subscriber string, owed []lane.Owed) (others []int, err error)
	Dead(ctx context.Context, subscriber string, letter lane.Owed) (other bool, err error)
}

func newLeaver(name string, number int, tracker *ack.Tracker, ower recordOwer, log *slog.Logger) *leaver {
	return &leaver{name: name, number: number, tracker: tracker, ower: ower, log: log.With("subscriber", name), offered: make(chan struct{}, 1)}
}

// Offer queues deliveries. It never blocks: the window of the tracker bounds what is queued.
func (l *leaver) Offer(deliveries ...*ack.Delivery) {
	l.mu.Lock()
	l.held = append(l.held, deliveries...)
	l.mu.Unlock()
	select {
	case l.offered <- struct{}{}:
	default:
	}
}

// failing returns why nothing can be recorded, or nil.
func (l *leaver) failing() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// run records what is offered until nothing more is to come. When ctx ends before, it records what it has by then,
// no longer than hard lasts; the rest comes again, and is recorded by the next process. It is an error when something
// that it had could not be recorded.
func (l *leaver) run(ctx, hard context.Context) error {
	writing, cancel := context.WithCancel(hard)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		pause(writing, lastRecord)
		cancel()
	})
	defer stop()
	backoff := lane.Backoff{Initial: leaverLook, Max: 5 * time.Second}
	for failures := 0; ; {
		select {
		case <-l.offered:
		case <-time.After(leaverLook):
		case <-ctx.Done():
		}
		passed := l.passed() // before the list is read: everything up to there is in it
		err := l.record(writing)
		if err == nil && passed && l.idle() {
			if err = l.depart(writing); err == nil {
				return nil
			}
		}
		l.mu.Lock()
		l.err = err
		l.mu.Unlock()
		if ctx.Err() != nil {
			if err != nil {
				return fmt.Errorf("stopped before everything that is owed to subscriber %q, which has left, was recorded; it comes again: %w", l.name, err)
			}
			return nil
		}
		if failures++; err == nil {
			failures = 0
			continue
		}
		wait := backoff.Wait(failures)
		if failures == 1 || wait > time.Second {
			l.log.Warn("cannot record what is owed to a subscriber that has left, will try again; nothing of it is confirmed meanwhile", "wait", wait, "err", err)
		}
		pause(ctx, wait)
	}
}

// record writes what is held, in batches, and ends it.
func (l *leaver) record(ctx context.Context) error {
	for {
		l.mu.Lock()
		batch := l.held[:min(len(l.held), leaverBatch)]
		l.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		ends := make([]ack.End, len(batch))
		events := make([]*event.Event, len(batch))
		for i, d := range batch {
			ends[i], events[i] = ack.End{Delivery: d, Recorded: true}, d.Event
		}
		marked, err := l.ower.FindMarked(ctx, events)
		if err != nil {
			return fmt.Errorf("look up marks: %w", err)
		}
		var owed []lane.Owed
		var at []int // of owed, in the batch
		var ids []string
		var others []int // in the batch
		for i, ev := range events {
			if _, had := slices.BinarySearch(marked, i); had {
				continue
			}
			ids = append(ids, ev.ID)
			if ev.Invalid == "" {
				owed, at = append(owed, lane.Owed{Event: ev}), append(at, i)
				continue
			}
			other, err := l.ower.Dead(ctx, l.name, lane.Owed{Event: ev, Err: ev.Invalid})
			if err != nil {
				return fmt.Errorf("record a dead letter of %q: %w", l.name, err)
			}
			if other {
				others = append(others, i)
			}
		}
		recordedBefore, err := l.ower.Record(ctx, l.name, owed)
		if err != nil {
			return fmt.Errorf("record %s as owed to %q: %w", printable.Count(len(owed), "delivery"), l.name, err)
		}
		for _, n := range recordedBefore {
			others = append(others, at[n])
		}
		for _, i := range others {
			ends[i].Other = true
			l.log.Warn("another row with its id and time is recorded; the two count as one event, and this row stays unpublished: make the ids unique",
				"event", events[i].ID, "correlation_id", events[i].CorrelationID(), "row", events[i].Row)
		}
		l.mu.Lock()
		if l.held = l.held[len(batch):]; len(l.held) == 0 {
			l.held = nil
		}
		l.mu.Unlock()
		if len(ids) > 0 {
			if l.owed == 0 {
				l.first = ids[0]
			}
			l.owed, l.last = l.owed+len(ids), ids[len(ids)-1]
		}
		l.tracker.Finish(ends...)
	}
}

// idle reports whether nothing is open for the subscriber.
func (l *leaver) idle() bool {
	open, _ := l.tracker.OpenOf(l.number)
	return open == 0
}
