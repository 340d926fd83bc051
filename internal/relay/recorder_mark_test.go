package relay

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
)

// pendingLedger has rows that are still to be marked.
type pendingLedger struct {
	mu     sync.Mutex
	locked []debt.LockedRow // guarded by mu
	err    error            // guarded by mu
	rounds int              // guarded by mu
}

// set changes what the next rounds find.
func (l *pendingLedger) set(err error, locked ...debt.LockedRow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err, l.locked = err, locked
}

func (*pendingLedger) write(context.Context, []*ack.Entry, event.LSN, *positions) (int, error) {
	return 0, nil
}

func (l *pendingLedger) markRows(context.Context, debt.MarkQuery) (debt.MarkRound, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rounds++
	return debt.MarkRound{Left: len(l.locked), Locked: l.locked}, l.err
}

func (*pendingLedger) lockedBy(_ context.Context, row debt.LockedRow) (string, error) {
	return "pid 4711, query: SELECT " + row.Row, nil
}

// startRecorder starts a recorder on a ledger.
func startRecorder(t *testing.T, ledger ledger) *recorder {
	t.Helper()
	reg := prometheus.NewRegistry()
	r := newRecorder(recorderOptions{ledger: ledger, tracker: ack.New(ack.Window{Events: 10, Bytes: 1 << 20}, 0, 0), log: slog.New(slog.DiscardHandler),
		metrics: newMetrics(reg, reg), received: func() event.LSN { return 0 }})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.run(ctx, t.Context()); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	return r
}

// S-25: a row that is locked for long is told with who has locked it, and one that is locked for a moment is not.
func TestRecorder_namesWhoHasLockedARowForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long, short := debt.LockedRow{Source: "lessons", Row: "1", EventID: "e1"}, debt.LockedRow{Source: "lessons", Row: "2", EventID: "e2"}
		ledger := &pendingLedger{locked: []debt.LockedRow{long, short}}
		r := startRecorder(t, ledger)
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if got, _ := r.marker.unmarked(); got != "" {
			t.Errorf("after 50 s it says %q", got)
		}
		ledger.set(nil, long)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		got, _ := r.marker.unmarked()
		for _, want := range []string{"1 row cannot", `"e1"`, "pid 4711", "SELECT 1"} {
			if !strings.Contains(got, want) {
				t.Errorf("after a minute it says %q, want %s in it", got, want)
			}
		}
		ledger.set(nil, short)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if got, _ := r.marker.unmarked(); got != "" {
			t.Errorf("when the row is free it says %q", got)
		}
	})
}

func TestRecorder_saysWhyWhatWasPaidCannotBeMarkedAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("trigger x")
		ledger := &pendingLedger{err: refused}
		r := startRecorder(t, ledger)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := r.marker.unmarked(); !errors.Is(err, refused) {
			t.Errorf("got %v, want %v", err, refused)
		}
		ledger.mu.Lock()
		rounds := ledger.rounds
		ledger.mu.Unlock()
		if rounds < 5 || rounds > 60 {
			t.Errorf("%d attempts in a minute", rounds)
		}
		ledger.set(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := r.marker.unmarked(); err != nil {
			t.Errorf("got %v when it works again", err)
		}
	})
}
