package relay

import (
	"context"
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
	confirmed []event.LSN // guarded by mu
}

func (w *written) write(_ context.Context, _ []*ack.Entry, confirm event.LSN, _ *positions) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.confirmed = append(w.confirmed, confirm)
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
		r := &recorder{
			ledger: ledger, tracker: tracker, log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry()),
			names: []string{"a"}, budget: Unlimited, received: func() event.LSN { return event.LSN(received.Load()) }, recorded: start,
		}
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
