package dispatch_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
)

// finishing is a lane that finishes what it is offered at once.
type finishing struct{ tracker *ack.Tracker }

func (f finishing) Offer(deliveries ...*ack.Delivery) {
	for _, d := range deliveries {
		f.tracker.Finish(ack.End{Delivery: d})
	}
}

// transactions feeds a dispatcher with transactions of so many rows of the reference service's outbox, for
// three subscribers, and records and confirms each.
type transactions struct {
	dispatcher *dispatch.Dispatcher
	tracker    *ack.Tracker
	rows       [][]byte
	at         event.LSN
}

func newTransactions(t testing.TB, rows int) *transactions {
	t.Helper()
	tracker := ack.New(ack.Window{Events: 10_000, Bytes: 32 << 20}, 3, 0)
	lane := dispatch.Route{Lane: finishing{tracker}, Wants: func(string, string) bool { return true }}
	return newStream(t, rows, tracker, []dispatch.Route{lane, lane, lane})
}

// newStream is newTransactions for other lanes.
func newStream(t testing.TB, rows int, tracker *ack.Tracker, routes []dispatch.Route) *transactions {
	t.Helper()
	table := &outbox.Table{Source: &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox"}, Key: []string{"id"}}
	s := &transactions{
		tracker: tracker, at: 8,
		dispatcher: dispatch.New([]*outbox.Table{table}, nil, routes, tracker, epoch, 16<<20,
			dispatch.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)),
	}
	for i := range rows {
		s.rows = append(s.rows, insert(7, fmt.Sprint(i), fmt.Sprintf("01K0WALP0ST0000000000%05d", i), "lesson.completed", "lesson", "17",
			fmt.Sprint(i%1000), `{"text": "`+strings.Repeat("x", 238)+`"}`, "{}", "2026-01-01 00:00:00.123456+00", "NULL", "0"))
	}
	s.receive(t, relation(7, "public.outbox", "id", "event_id", "event_type", "aggregate_type", "aggregate_id",
		"partition_key", "payload", "headers", "created_at", "published_at", "attempts"))
	return s
}

func (s *transactions) receive(t testing.TB, frame []byte) {
	if err := s.dispatcher.Receive(frame); err != nil {
		t.Fatal(err)
	}
}

// send is one transaction.
func (s *transactions) send(t testing.TB) {
	s.at += 64
	s.receive(t, begin(s.at, 7))
	for _, row := range s.rows {
		s.receive(t, row)
	}
	s.receive(t, commit(s.at, s.at+8))
	s.dispatcher.HandOver()
}

// next is one transaction, from its Begin until it may be confirmed.
func (s *transactions) next(t testing.TB) {
	s.send(t)
	settled := s.tracker.TakeSettled()
	s.tracker.Recorded(settled, settled.Finished)
	if got, want := s.tracker.Confirmed(), s.at+8; got != want {
		t.Fatalf("confirmed %v, want %v", got, want)
	}
}

// allocationsPerEvent is what a row may cost from the bytes of its message to the offer to three lanes, its
// payload as the text that came. The frames of Begin and Commit are made by the test, so transactions are
// large here.
const allocationsPerEvent = 1

func TestReceive_allocatesLittleForAnEvent(t *testing.T) {
	const rows = 1000
	s := newTransactions(t, rows)
	got := testing.AllocsPerRun(20, func() { s.next(t) }) / rows
	t.Logf("%.2f allocations an event", got)
	if got > allocationsPerEvent {
		t.Errorf("%.2f allocations an event, want at most %v", got, allocationsPerEvent)
	}
}

// BenchmarkDispatcher is the cost of an event from the bytes of its message to the offer to three lanes, and
// of its way out of the tracker.
func BenchmarkDispatcher(b *testing.B) {
	for _, rows := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("transactions of %d", rows), func(b *testing.B) {
			s := newTransactions(b, rows)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%rows == 0 {
					s.next(b) // an iteration is an event
				}
			}
		})
	}
}

// BenchmarkWalk is an event's whole way through the relay, from the bytes of its message through three lanes
// with their subscribers, who do nothing, until it may be confirmed. cpu-ns/op is the processor time of all
// goroutines and of the garbage collector together.
func BenchmarkWalk(b *testing.B) {
	const rows = 1000
	window := ack.Window{Events: 10_000, Bytes: 32 << 20}
	tracker := ack.New(window, 3, 0)
	vectors := lane.NewVectors(prometheus.NewRegistry(), prometheus.NewRegistry())
	attempts := relay.NewAttempts(10_000, time.Now())
	var routes []dispatch.Route
	var lanes sync.WaitGroup
	ctx, cancel := context.WithCancel(b.Context())
	for i := range 3 {
		sub := instant(fmt.Sprint("instant", i))
		l := lane.New(i, sub, lane.Options{
			Ordering: lane.ByKey, Concurrency: 8, Batch: 500, Timeout: 10 * time.Second, StallAfter: time.Minute,
			Backoff: lane.Backoff{Initial: time.Second, Max: time.Second},
		}, tracker, debttest.NewMemory(), lane.Stream{
			Term:    func() int64 { return 1 },
			Passed:  func() event.LSN { return 0 },
			Refuse:  func(*event.Event) error { return nil },
			Crowds:  func() bool { return false },
			Pressed: func() bool { return false },
			Observe: func(began time.Time, took time.Duration, tried []lane.Attempt) {
				attempts.Record(sub.Name(), began, took, tried)
			},
		}, vectors.For(sub.Name()), slog.New(slog.DiscardHandler))
		lanes.Go(func() {
			if err := l.Run(ctx, time.Minute); err != nil {
				b.Error(err)
			}
		})
		routes = append(routes, dispatch.Route{Lane: l, Wants: func(string, string) bool { return true }})
	}
	s := newStream(b, rows, tracker, routes)
	b.ReportAllocs()
	before := processorTime(b)
	for n := 0; b.Loop(); n++ {
		if n%rows != 0 {
			continue // an iteration is an event
		}
		s.send(b)
		for !tracker.HasRoom() {
			<-tracker.Moved()
			settled := tracker.TakeSettled()
			tracker.Recorded(settled, settled.Finished)
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
	cancel()
	lanes.Wait()
}

// instant is a subscriber that takes everything at once.
type instant string

func (i instant) Name() string                                           { return string(i) }
func (instant) Wants(string) bool                                        { return true }
func (instant) Handle(context.Context, subscriber.Delivery) error        { return nil }
func (instant) HandleBatch(context.Context, []subscriber.Delivery) error { return nil }

// processorTime is what this process has used so far.
func processorTime(t testing.TB) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
