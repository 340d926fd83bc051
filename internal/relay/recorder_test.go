package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
)

// written is a ledger that remembers what was recorded as confirmed.
type written struct {
	mu        sync.Mutex
	confirmed []event.LSN      // guarded by mu
	secured   []event.Position // of the last subscriber, whenever the positions were written; guarded by mu
}

func (w *written) write(_ context.Context, _ []*ack.Entry, confirm event.LSN, at *positions) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.confirmed = append(w.confirmed, confirm)
	if at != nil {
		w.secured = append(w.secured, at.secured[len(at.secured)-1])
	}
	return 0, nil
}

func (w *written) positions() []event.LSN {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.confirmed)
}

func (*written) markRows(context.Context, debt.MarkQuery) (debt.MarkRound, error) {
	return debt.MarkRound{}, nil
}

func (*written) lockedBy(context.Context, debt.LockedRow) (string, error) { return "", nil }

// refusing is a ledger that refuses its first write for good.
type refusing struct {
	written
	why error
}

func (r *refusing) write(ctx context.Context, finished []*ack.Entry, confirm event.LSN, at *positions) (int, error) {
	if why := r.why; why != nil {
		r.why = nil
		return 0, why
	}
	return r.written.write(ctx, finished, confirm, at)
}

// What is finished and could not be recorded is gone from the tracker, whose position is past it: nothing more may be
// recorded by this recorder, also where the next write would work.
func TestRecorder_recordsNothingBeyondWhatItHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := ack.New(ack.Window{Events: 10, Bytes: 1 << 20}, 1, 8)
		tracker.Owes(0, nil, nil)
		ledger := &refusing{why: &changed{reason: "the slot is another one"}}
		ctx, stop := context.WithCancelCause(t.Context())
		r := newRecorder(recorderOptions{
			ledger: ledger, tracker: tracker, log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry(), prometheus.NewRegistry()), stop: stop,
			names: []string{"a"}, budget: Unlimited, received: func() event.LSN { return 24 }, recorded: 8,
		})
		tracker.Begin(8)
		tracker.Add(&event.Event{ID: "e", Position: event.Position{Epoch: 1, Commit: 8}}, nil, false)
		tracker.Commit(16)
		r.run(ctx, context.Background())
		if got := ledger.positions(); len(got) != 0 {
			t.Errorf("it has recorded %v as confirmed, and an event before it has no mark", got)
		}
	})
}

// S-54: over a quiet outbox foreign WAL passes, less than 16 MiB of it. It is confirmed after a minute, and what a
// record of our own makes is no reason for the next one.
func TestRecorder_confirmsAQuietOutboxAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const start = event.LSN(1 << 30)
		tracker := ack.New(ack.Window{Events: 10, Bytes: 1 << 20}, 1, start)
		tracker.Owes(0, nil, nil)
		var received atomic.Uint64
		received.Store(uint64(start))
		ledger := &written{}
		r := newRecorder(recorderOptions{
			ledger: ledger, tracker: tracker, log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry(), prometheus.NewRegistry()),
			names: []string{"a"}, budget: Unlimited, received: func() event.LSN { return event.LSN(received.Load()) }, recorded: start,
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.run(ctx, context.Background())
		}()
		keepalive := func(lsn event.LSN) {
			received.Store(uint64(lsn))
			tracker.Marker(lsn)
			synctest.Wait()
		}
		keepalive(start + 1<<20)
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if got := ledger.positions(); len(got) != 0 {
			t.Errorf("after 50 s it has recorded %v, want nothing", got)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if got, want := ledger.positions(), []event.LSN{start + 1<<20}; !slices.Equal(got, want) {
			t.Errorf("after 65 s it has recorded %v, want %v", got, want)
		}
		keepalive(start + 1<<20 + 30<<10) // what its own record has made
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := ledger.positions(); len(got) != 1 {
			t.Errorf("an idle hour later it has recorded %v, want no more", got)
		}
		stop()
		<-ended
	})
}

// S-130, S-472: while one subscriber holds the confirmed position back, the positions of the others are all that a next leader
// knows. A young leader writes them at once, one that has led for a while five times a second.
func TestRecorder_writesPositionsMoreOftenWhileItIsYoung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const start = event.LSN(1 << 30)
		tracker := ack.New(ack.Window{Events: 10_000, Bytes: 1 << 20}, 2, start)
		tracker.Owes(0, nil, nil)
		tracker.Owes(1, nil, nil)
		ledger := &written{}
		r := newRecorder(recorderOptions{
			ledger: ledger, tracker: tracker, log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry(), prometheus.NewRegistry()),
			names: []string{"stands", "moves"}, budget: Unlimited, received: func() event.LSN { return start }, recorded: start, horizon: start + 8*1000,
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.run(ctx, context.Background())
		}()
		lsn := start
		// deliver has the second subscriber finish an event every 20 ms, and returns by how many events its recorded
		// position is behind at most.
		deliver := func(n int) (behind int) {
			for range n {
				lsn += 8
				tracker.Begin(lsn)
				entry := tracker.Add(&event.Event{Position: event.Position{Epoch: 1, Commit: lsn}}, []int{0, 1}, false)
				tracker.Commit(lsn + 4)
				tracker.Finish(ack.End{Delivery: &entry.Deliveries()[1]})
				time.Sleep(20 * time.Millisecond)
				synctest.Wait()
				ledger.mu.Lock()
				recorded := start
				if len(ledger.secured) > 0 {
					recorded = ledger.secured[len(ledger.secured)-1].Commit
				}
				ledger.mu.Unlock()
				behind = max(behind, int(lsn-recorded)/8)
			}
			return behind
		}
		if got := deliver(900); got > 1 {
			t.Errorf("before it has caught up, %d events are delivered and not recorded", got)
		}
		if deliver(200); lsn < r.horizon {
			t.Fatal("it has not caught up")
		}
		if got := deliver(200); got < 5 || got > 13 { // an event every 20 ms
			t.Errorf("after that, %d events are delivered and not recorded, want those of 0.2 s and a moment", got)
		}
		stop()
		<-ended
	})
}

// S-372: a subscriber that keeps in mind what it has delivered hears what is recorded, and nothing before that.
func TestRecorder_tellsASubscriberWhatIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := ack.New(ack.Window{Events: 10, Bytes: 1 << 20}, 2, 8)
		tracker.Owes(0, nil, nil)
		owed := event.Position{Epoch: 1, Commit: 8, Ordinal: 1}
		tracker.Owes(1, &owed, &owed)
		ledger := &refusing{why: errors.New("the disk is full")}
		var heard []string
		r := newRecorder(recorderOptions{
			ledger: ledger, tracker: tracker, log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry(), prometheus.NewRegistry()),
			names: []string{"deaf", "remembers"}, budget: Unlimited, received: func() event.LSN { return 32 }, recorded: 8,
			told: []func(secured, finished event.Position){nil, func(secured, finished event.Position) {
				heard = append(heard, fmt.Sprintf("%d writes, secured %v, finished %v", len(ledger.positions()), secured, finished))
			}},
		})
		tracker.Begin(16)
		tracker.Add(&event.Event{ID: "e", Position: event.Position{Epoch: 1, Commit: 16}}, nil, false)
		tracker.Commit(24)
		r.record(t.Context(), true)
		want := fmt.Sprintf("1 writes, secured %v, finished %v", event.Position{Epoch: 1, Commit: 16}, event.Position{Epoch: 1, Commit: 8})
		if len(heard) != 1 || heard[0] != want {
			t.Errorf("heard %q, want %q once", heard, want)
		}
	})
}
