package dispatch_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
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
	table := &outbox.Table{Source: &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox"}, Key: []string{"id"}}
	s := &transactions{
		tracker: tracker, at: 8,
		dispatcher: dispatch.New([]*outbox.Table{table}, nil, []dispatch.Route{lane, lane, lane}, tracker, epoch, 16<<20,
			dispatch.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)),
	}
	for i := range rows {
		s.rows = append(s.rows, insert(7, fmt.Sprint(i), fmt.Sprintf("01K0WALP0ST0000000000%05d", i), "lesson.completed", "lesson", "17",
			fmt.Sprint(i%100), `{"text": "`+strings.Repeat("x", 238)+`"}`, "{}", "2026-01-01 00:00:00.123456+00", "NULL", "0"))
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

// next is one transaction, from its Begin until it may be confirmed.
func (s *transactions) next(t testing.TB) {
	s.at += 64
	s.receive(t, begin(s.at, 7))
	for _, row := range s.rows {
		s.receive(t, row)
	}
	s.receive(t, commit(s.at, s.at+8))
	s.dispatcher.HandOver()
	settled := s.tracker.Take()
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
