package relay_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/relay"
)

var morning = time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)

// try records a call with an event for each id, which is also its key.
func try(a *relay.Attempts, subscriber string, outcome lane.Outcome, ids ...string) {
	var attempts []lane.Attempt
	for _, id := range ids {
		tried := lane.Attempt{Event: &event.Event{ID: id, Key: id, Type: "lesson.completed"}, Number: 1, Outcome: outcome}
		if outcome != lane.Delivered {
			tried.Err = errors.New("503 from the receiver")
		}
		attempts = append(attempts, tried)
	}
	a.Record(subscriber, morning, time.Second, attempts)
}

func idsOf(attempts []relay.Attempt) string {
	var ids []string
	for _, a := range attempts {
		ids = append(ids, a.Subscriber+"/"+a.Event)
	}
	return strings.Join(ids, " ")
}

func TestAttempts_areForgottenOldestFirst(t *testing.T) {
	a := relay.NewAttempts(3, morning)
	if last, since, _ := a.Last(10, relay.AttemptFilter{}); len(last) != 0 || !since.IsZero() {
		t.Errorf("before the first there are %v since %v", last, since)
	}
	try(a, "x", lane.Delivered, "1", "2")
	try(a, "y", lane.Failed, "3", "4")
	last, since, next := a.Last(10, relay.AttemptFilter{})
	if got, want := idsOf(last), "x/2 y/3 y/4"; got != want {
		t.Errorf("remembers %s, want %s", got, want)
	}
	if got, want := since, morning.Add(time.Second); !got.Equal(want) {
		t.Errorf("since %v, want %v", got, want)
	}
	if got, want := next, last[2].Seq+1; got != want {
		t.Errorf("goes on at %d, want %d", got, want)
	}
	if got := last[1]; got.Error != "503 from the receiver" || got.Seconds != 1 || got.Batch != 2 || got.Number != 1 || got.Position == "" {
		t.Errorf("the attempt is %+v", got)
	}
	last, _, _ = a.Last(1, relay.AttemptFilter{})
	if got, want := idsOf(last), "y/4"; got != want {
		t.Errorf("the last is %s, want %s", got, want)
	}
}

func TestAttempts_areChosenByAllThatAFilterNames(t *testing.T) {
	a := relay.NewAttempts(10, morning)
	long := strings.Repeat("ü", 200)
	try(a, "x", lane.Delivered, "1", long)
	try(a, "y", lane.Dead, "1")
	for filter, want := range map[relay.AttemptFilter]string{
		{Event: "1"}:                        "x/1 y/1",
		{Event: "1", Subscriber: "y"}:       "y/1",
		{Outcome: lane.Dead}:                "y/1",
		{Key: long}:                         "x/" + long,
		{Type: "other"}:                     "",
		{Key: "1", Outcome: lane.Delivered}: "x/1",
		{Subscriber: "x", Key: "1", Type: "lesson.completed"}: "x/1",
	} {
		last, _, _ := a.Last(10, filter)
		if got := idsOf(last); got != want {
			t.Errorf("%+v chooses %s, want %s", filter, got, want)
		}
	}
}

func TestAttempts_tellAReaderWhatItMissed(t *testing.T) {
	a := relay.NewAttempts(3, morning)
	try(a, "x", lane.Delivered, "1")
	page := a.Read(0, relay.AttemptFilter{})
	if got := idsOf(page.Attempts); got != "x/1" || page.Missed != 0 || page.Changed == nil {
		t.Fatalf("first page is %+v", page)
	}
	try(a, "x", lane.Delivered, "2", "3", "4", "5")
	<-page.Changed
	page = a.Read(page.Next, relay.AttemptFilter{})
	if got := idsOf(page.Attempts); got != "x/3 x/4 x/5" || page.Missed != 1 {
		t.Errorf("second page is %s, missed %d; want x/3 x/4 x/5 and 1", got, page.Missed)
	}

	// The relay that comes after it does not know how many were missed; what it has is shown.
	after := relay.NewAttempts(3, morning.Add(time.Second))
	try(after, "x", lane.Delivered, "6")
	for name, from := range map[string]uint64{"an earlier relay": page.Next, "one whose clock is ahead": page.Next + 1e9} {
		if got := after.Read(from, relay.AttemptFilter{}); idsOf(got.Attempts) != "x/6" || got.Missed != 0 {
			t.Errorf("with a number of %s the page is %+v", name, got)
		}
	}
}

func TestAttempts_keepNoLongTextAlive(t *testing.T) {
	a := relay.NewAttempts(3, morning)
	huge := strings.Repeat("é", 1<<20)
	a.Record("x", morning, 0, []lane.Attempt{{Event: &event.Event{ID: "1", Key: huge}, Outcome: lane.Failed, Err: errors.New(huge)}})
	last, _, _ := a.Last(1, relay.AttemptFilter{Key: huge})
	if len(last) != 1 || len(last[0].Key) > 256 || len(last[0].Error) > 500 || !strings.HasPrefix(huge, last[0].Error) {
		t.Errorf("kept is %.1000v", last)
	}
}

// What is remembered is names: neither the payload that came with them, nor that of their neighbours, may stay
// in memory for them.
func TestAttempts_keepNoPayloadAlive(t *testing.T) {
	const remembered = 2000
	for name, c := range map[string]struct{ size, every int }{
		"large events":                    {64 << 10, 1},
		"small events, one tried of many": {200, 50},
	} {
		source := &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox"}
		layout, err := source.Layout([]string{"event_id", "event_type", "partition_key", "payload"})
		if err != nil {
			t.Fatal(err)
		}
		var shelf outbox.Shelf
		payload := bytes.Repeat([]byte{'x'}, c.size)
		a := relay.NewAttempts(remembered, morning)
		before := heap()
		for n := range remembered * c.every {
			ev := layout.EventOn(&shelf, [][]byte{fmt.Appendf(nil, "event-%d", n), []byte("lesson.completed"), []byte("42"), payload})
			if n%c.every == 0 {
				a.Record("x", morning, 0, []lane.Attempt{{Event: ev, Number: 1, Outcome: lane.Delivered}})
			}
		}
		if grown := heap() - before; grown > 2<<20 {
			t.Errorf("%s: %d attempts keep %d KiB", name, remembered, grown>>10)
		}
		runtime.KeepAlive(a)
	}
}

func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// Readers see every attempt of each subscriber once and in order, or are told that they missed some.
func TestAttempts_areReadWhileLanesWrite(t *testing.T) {
	const writers, calls = 4, 2000
	a := relay.NewAttempts(1000, morning)
	var lanes, readers sync.WaitGroup
	for w := range writers {
		lanes.Go(func() {
			for n := range calls {
				try(a, fmt.Sprint(w), lane.Delivered, fmt.Sprintf("%05d", n))
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			last := map[string]string{}
			var seen, missed uint64
			for next := uint64(0); seen+missed < writers*calls; {
				page := a.Read(next, relay.AttemptFilter{})
				if next == 0 && len(page.Attempts) > 0 {
					missed += page.Attempts[0].Seq - uint64(morning.UnixMicro()) // before it came
				}
				for _, tried := range page.Attempts {
					if tried.Event <= last[tried.Subscriber] {
						t.Errorf("%s comes after %s", tried.Event, last[tried.Subscriber])
					}
					last[tried.Subscriber] = tried.Event
				}
				seen, missed, next = seen+uint64(len(page.Attempts)), missed+page.Missed, page.Next
				if page.Changed != nil && seen+missed < writers*calls {
					<-page.Changed
				}
			}
		})
	}
	lanes.Wait()
	readers.Wait()
}

func TestAttempts_costNoAllocation(t *testing.T) {
	a := relay.NewAttempts(1000, morning)
	attempts := []lane.Attempt{{Event: &event.Event{ID: "1", Key: "2", Type: "lesson.completed"}, Number: 1, Outcome: lane.Delivered}}
	for range 1000 { // every place has memory of its own then
		a.Record("x", morning, time.Second, attempts)
	}
	if got := testing.AllocsPerRun(100, func() { a.Record("x", morning, time.Second, attempts) }); got != 0 {
		t.Errorf("%v allocations for an attempt, want none", got)
	}
}

// BenchmarkAttempts is what an attempt costs its lane, with batches and without.
func BenchmarkAttempts(b *testing.B) {
	for _, batch := range []int{1, 500} {
		b.Run(fmt.Sprintf("calls of %d", batch), func(b *testing.B) {
			a := relay.NewAttempts(10_000, time.Now())
			attempts := make([]lane.Attempt, batch)
			for i := range attempts {
				attempts[i] = lane.Attempt{Event: &event.Event{ID: "01M8KYWXP684RBZYHB26RMQSXQ", Key: "42", Type: "lesson.completed"}, Number: 1, Outcome: lane.Delivered}
			}
			b.ReportAllocs()
			for b.Loop() {
				a.Record("analytics", time.Now(), time.Millisecond, attempts)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/attempt")
		})
	}
}
