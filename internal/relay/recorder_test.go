package relay

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
)

// written is a ledger that remembers what was recorded as confirmed.
type written struct{ confirmed []event.LSN }

func (w *written) write(_ context.Context, _ []*ack.Entry, confirm event.LSN, _ *positions) (int, error) {
	w.confirmed = append(w.confirmed, confirm)
	return 0, nil
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
		tracker.Owes(0, nil)
		received := start
		ledger := &written{}
		r := &recorder{
			ledger: ledger, tracker: tracker, log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry()),
			names: []string{"a"}, budget: Unlimited, received: func() event.LSN { return received }, recorded: start,
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.run(ctx, context.Background())
		}()
		keepalive := func(lsn event.LSN) {
			received = lsn
			tracker.Marker(lsn)
			synctest.Wait()
		}
		keepalive(start + 1<<20)
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if len(ledger.confirmed) != 0 {
			t.Errorf("after 50 s it has recorded %v, want nothing", ledger.confirmed)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if want := []event.LSN{start + 1<<20}; !slices.Equal(ledger.confirmed, want) {
			t.Errorf("after 65 s it has recorded %v, want %v", ledger.confirmed, want)
		}
		keepalive(start + 1<<20 + 30<<10) // what its own record has made
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(ledger.confirmed) != 1 {
			t.Errorf("an idle hour later it has recorded %v, want no more", ledger.confirmed)
		}
		stop()
		<-ended
	})
}
