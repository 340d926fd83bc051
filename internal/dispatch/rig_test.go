package dispatch_test

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
)

// hand is a lane that keeps what it is offered.
type hand struct{ deliveries []*ack.Delivery }

func (h *hand) Offer(deliveries ...*ack.Delivery) { h.deliveries = append(h.deliveries, deliveries...) }

// ids are the events that were offered, in that order.
func (h *hand) ids() []string {
	var ids []string
	for _, d := range h.deliveries {
		ids = append(ids, d.Event.ID)
	}
	return ids
}

// at returns the events with the ordinals of their positions: "a@0".
func (h *hand) at() []string {
	var all []string
	for _, d := range h.deliveries {
		all = append(all, fmt.Sprintf("%s@%d", d.Event.ID, d.Event.Position.Ordinal))
	}
	return all
}

// A rig is a dispatcher with two sources, the table public.outbox and messages of prefix "walpost", and
// two lanes: one wants everything, the other what its test says.
type rig struct {
	*dispatch.Dispatcher
	t        *testing.T
	tracker  *ack.Tracker
	tables   []*outbox.Table
	registry *prometheus.Registry

	everything, some hand
	ended            []*ack.Delivery
}

const epoch = 3

func newRig(t *testing.T, wants func(source, eventType string) bool) *rig {
	t.Helper()
	lessons := &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox"}
	return newRigFor(t, wants, &outbox.Table{Source: lessons, Key: []string{"id"}})
}

func newRigFor(t *testing.T, wants func(source, eventType string) bool, tables ...*outbox.Table) *rig {
	t.Helper()
	r := &rig{
		t: t, tables: tables, registry: prometheus.NewRegistry(),
		tracker: ack.New(ack.Window{Events: 1000, Bytes: 1 << 20}, 2, 0),
	}
	routes := []dispatch.Route{
		{Lane: &r.everything, Wants: func(string, string) bool { return true }},
		{Lane: &r.some, Wants: wants},
	}
	r.Dispatcher = dispatch.New(tables, []*outbox.Source{{Name: "emitted", Messages: "walpost"}}, routes,
		r.tracker, epoch, 1<<20, dispatch.NewMetrics(r.registry), slog.New(slog.DiscardHandler))
	return r
}

func nothing(string, string) bool { return false }

// receive fails the test on an error.
func (r *rig) receive(frames ...[]byte) {
	r.t.Helper()
	for i, frame := range frames {
		if err := r.Receive(frame); err != nil {
			r.t.Fatalf("frame %d, %q: %v", i, frame[:1], err)
		}
	}
	r.HandOver()
}

// finish ends and records everything that was offered, and returns what may be confirmed.
func (r *rig) finish() event.LSN {
	for _, h := range []*hand{&r.everything, &r.some} {
		for _, d := range h.deliveries {
			if !slices.Contains(r.ended, d) {
				r.tracker.Finish(ack.End{Delivery: d})
				r.ended = append(r.ended, d)
			}
		}
	}
	settled := r.tracker.TakeSettled()
	r.tracker.Recorded(settled, settled.Finished)
	return r.tracker.Confirmed()
}

// metric reads a counter without labels.
// metric is a counter, or the sum of those of its name that have all these values of labels.
func (r *rig) metric(name string, values ...string) (sum float64) {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				if !slices.ContainsFunc(values, func(value string) bool {
					return !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == value })
				}) {
					sum += m.GetCounter().GetValue()
				}
			}
			return sum
		}
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}

// The frames of the protocol, version 1. (PostgreSQL manual, "Logical Replication Message Formats")

func begin(commit event.LSN, xid uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'B'}, uint64(commit))
	b = binary.BigEndian.AppendUint64(b, postgresTime(commitTime))
	return binary.BigEndian.AppendUint32(b, xid)
}

func commit(lsn, end event.LSN) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'C', 0}, uint64(lsn))
	b = binary.BigEndian.AppendUint64(b, uint64(end))
	return binary.BigEndian.AppendUint64(b, postgresTime(commitTime))
}

var commitTime = time.Date(2026, 7, 1, 12, 0, 0, 123456000, time.UTC)

// postgresTime is microseconds since 2000.
func postgresTime(t time.Time) uint64 {
	return uint64(t.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds())
}

func relation(id uint32, table string, columns ...string) []byte {
	schema, name, _ := strings.Cut(table, ".")
	b := binary.BigEndian.AppendUint32([]byte{'R'}, id)
	b = append(b, schema+"\x00"+name+"\x00d"...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(columns)))
	for _, column := range columns {
		b = append(b, "\x00"+column+"\x00"...)
		b = append(b, 0, 0, 0, 25, 0xff, 0xff, 0xff, 0xff) // type text, no modifier
	}
	return b
}

// insert is a row; "NULL" is SQL NULL.
func insert(id uint32, values ...string) []byte {
	b := append(binary.BigEndian.AppendUint32([]byte{'I'}, id), 'N')
	b = binary.BigEndian.AppendUint16(b, uint16(len(values)))
	for _, value := range values {
		if value == "NULL" {
			b = append(b, 'n')
			continue
		}
		b = binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(value)))
		b = append(b, value...)
	}
	return b
}

func message(transactional bool, prefix, content string) []byte {
	b := []byte{'M', 0}
	if transactional {
		b[1] = 1
	}
	b = append(binary.BigEndian.AppendUint64(b, 8), prefix+"\x00"...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(content)))
	return append(b, content...)
}

// outboxRelation and row are the reference table and one unpublished row of it.
func outboxRelation() []byte {
	return relation(7, "public.outbox", "id", "event_id", "event_type", "partition_key", "payload", "published_at")
}

func row(id string) []byte { return rowOf(id, "lesson.completed", "NULL") }

func rowOf(id, eventType, published string) []byte {
	return insert(7, "1"+id, id, eventType, "key of "+id, `{"id": "`+id+`"}`, published)
}

// recorded returns the frames of one of pgoutput's golden files, as a real server sent them.
func recorded(t *testing.T, name string) [][]byte {
	t.Helper()
	file, err := os.Open("../pgoutput/testdata/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var frames [][]byte
	for lines := bufio.NewScanner(file); lines.Scan(); {
		frame, err := hex.DecodeString(lines.Text())
		if err != nil {
			t.Fatalf("%s: %v", file.Name(), err)
		}
		frames = append(frames, frame)
	}
	if len(frames) == 0 {
		t.Fatalf("%s has no frames", file.Name())
	}
	return frames
}
