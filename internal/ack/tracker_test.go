package ack_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

var wide = ack.Window{Events: 1000, Bytes: 1 << 20}

// A script is steps of a life of a tracker for subscribers 0 and 1, in words: "begin 8", "add a 0 1" (an
// event and who wants it), "commit 16", "marker 24", "finish a 0", "dead a 0", "secure a 0", "owes 0 8",
// "paid 0", "take", "recorded", "released".
type script struct {
	*ack.Tracker
	entries map[string]*ack.Entry
	began   event.LSN
	taken   ack.Settled
}

func play(t *testing.T, steps string) *script {
	t.Helper()
	s := &script{Tracker: ack.New(wide, 2, 4), entries: make(map[string]*ack.Entry)}
	for step := range strings.SplitSeq(steps, ";") {
		s.step(t, strings.Fields(step))
	}
	return s
}

func (s *script) step(t *testing.T, words []string) {
	t.Helper()
	switch verb, rest := words[0], words[1:]; verb {
	case "begin":
		s.began = lsn(t, rest[0])
		s.Begin(s.began)
	case "commit":
		s.Commit(lsn(t, rest[0]))
	case "marker":
		s.Marker(lsn(t, rest[0]))
	case "add":
		var subscribers []int
		for _, word := range rest[1:] {
			subscribers = append(subscribers, int(lsn(t, word)))
		}
		position := event.Position{Commit: s.began, Ordinal: int64(len(s.entries))}
		s.entries[rest[0]] = s.Add(&event.Event{ID: rest[0], Position: position}, subscribers, false)
	case "finish", "dead":
		s.Finish(ack.End{Delivery: s.delivery(t, rest), Recorded: verb == "dead"})
	case "take":
		s.taken = s.TakeSettled()
	case "recorded": // within the WAL budget
		s.Recorded(s.taken, s.taken.Finished)
	case "released": // above it
		s.Recorded(s.taken, s.taken.Secured)
	case "secure":
		s.Secure([]*ack.Delivery{s.delivery(t, rest)})
	case "owes": // since the commit of a transaction
		since := &event.Position{Commit: lsn(t, rest[1])}
		s.Owes(int(lsn(t, rest[0])), since, since)
	case "paid":
		s.Owes(int(lsn(t, rest[0])), nil, nil)
	default:
		t.Fatalf("no step %q", verb)
	}
}

// delivery finds an event for a subscriber: "a 0".
func (s *script) delivery(t *testing.T, words []string) *ack.Delivery {
	t.Helper()
	deliveries := s.entries[words[0]].Deliveries()
	for i := range deliveries {
		if deliveries[i].Subscriber() == int(lsn(t, words[1])) {
			return &deliveries[i]
		}
	}
	t.Fatalf("no delivery %q", words)
	return nil
}

func lsn(t *testing.T, word string) event.LSN {
	t.Helper()
	var n event.LSN
	if _, err := fmt.Sscan(word, &n); err != nil {
		t.Fatalf("%q: %v", word, err)
	}
	return n
}

func TestTracker_knowsWhatMayBeConfirmed(t *testing.T) {
	for _, test := range []struct{ name, steps, want string }{
		{"nothing came", "take", "4|4|"},
		{"a transaction that no one wants moves the prefix",
			"begin 8; commit 16", "4|16|"},
		{"an event that no one wants moves it too",
			"begin 8; add a; commit 16", "4|16|"},
		{"an open event holds its transaction",
			"begin 8; add a 0; commit 16", "4|4| 8-16(1)"},
		{"until every subscriber has finished",
			"begin 8; add a 0 1; commit 16; finish a 0", "4|4| 8-16(1)"},
		{"and then it may go",
			"begin 8; add a 0 1; commit 16; finish a 0; finish a 1", "4|16|"},
		{"a dead letter finishes like a delivery",
			"begin 8; add a 0; commit 16; dead a 0", "4|16|"},
		{"nothing is confirmed before it is recorded",
			"begin 8; add a 0; commit 16; finish a 0; take", "4|16|"},
		{"and then it is",
			"begin 8; add a 0; commit 16; finish a 0; take; recorded", "16|16|"},
		{"what finishes after the take is not confirmed with it",
			"begin 8; add a 0; commit 16; begin 24; add b 0; commit 32; finish a 0; take; finish b 0; recorded", "16|32|"},
		{"a transaction that has not committed holds although all of it is finished",
			"begin 8; add a 0; finish a 0; take; recorded", "4|4| 8-…(0)"},
		{"acks in another order do not pass an open event", // F-04
			"begin 8; add a 0; commit 16; begin 24; add b 0; commit 32; finish b 0; take; recorded", "4|4| 8-16(1) 24-32(0)"},
		{"and are there when it finishes",
			"begin 8; add a 0; commit 16; begin 24; add b 0; commit 32; finish b 0; finish a 0; take; recorded", "32|32|"},
		{"complete neighbours become one",
			"begin 8; add a 0; commit 16; begin 24; commit 32; begin 40; commit 48; begin 56; add d 0; commit 64", "4|4| 8-16(1) 40-48(0) 56-64(1)"},
		{"also when the middle one completes last",
			"begin 8; add a 0; commit 16; begin 24; commit 32; begin 40; add c 0; commit 48; begin 56; commit 64; finish c 0", "4|4| 8-16(1) 56-64(0)"},
		{"a keepalive with nothing open moves the prefix", // F-19
			"marker 100", "4|100|"},
		{"a keepalive never passes what came before it", // F-01
			"begin 8; add a 0; commit 16; marker 100", "4|4| 8-16(1) 100-100(0)"},
		{"and counts once that is finished",
			"begin 8; add a 0; commit 16; marker 100; finish a 0", "4|100|"},
		{"a thousand keepalives behind an open event are one",
			"begin 8; add a 0; commit 16; marker 100" + strings.Repeat("; marker 100", 999) + "; marker 200", "4|4| 8-16(1) 200-200(0)"},
		{"inside a transaction a keepalive says nothing", // F-01
			"begin 8; add a 0; marker 100; finish a 0", "4|4| 8-…(0)"},
		{"a keepalive that went back says nothing",
			"marker 100; marker 50", "4|100|"},
		{"nor does one below the last commit",
			"begin 8; add a 0; commit 16; marker 12", "4|4| 8-16(1)"},
		{"debt leaves the queue", // F-22
			"begin 8; add a 0; commit 16; begin 24; commit 32; secure a 0", "4|32|"},
		{"but the debtor's transaction is not confirmed", // F-22
			"begin 8; add a 0; commit 16; begin 24; commit 32; secure a 0; take; recorded", "8|32|"},
		{"until it is paid",
			"begin 8; add a 0; commit 16; begin 24; commit 32; secure a 0; take; recorded; paid 0; take; recorded", "32|32|"},
		{"or the WAL budget is used up",
			"begin 8; add a 0; commit 16; begin 24; commit 32; secure a 0; take; released", "32|32|"},
		{"the oldest of several debtors counts",
			"begin 8; add a 0; commit 16; begin 24; add b 1; commit 32; secure b 1; secure a 0; take; recorded", "8|32|"},
		{"and of several debts of one",
			"begin 8; add a 0; commit 16; begin 24; add b 0; commit 32; secure b 0; secure a 0; take; recorded", "8|32|"},
		{"what is paid lets go up to the next",
			"begin 8; add a 0; commit 16; begin 24; add b 0; commit 32; secure b 0; secure a 0; owes 0 24; take; recorded", "24|32|"},
		{"debt from before the start holds the start, and nothing goes back",
			"owes 0 2; begin 8; commit 16; take; recorded", "4|16|"},
		{"debt of one does not finish the event for another",
			"begin 8; add a 0 1; commit 16; secure a 0; take; released", "4|4| 8-16(1)"},
		{"a transaction that broke off goes on",
			"begin 8; add a 0; begin 8; add b 0; commit 16; finish a 0", "4|4| 8-16(1)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := play(t, test.steps).String(); got != test.want {
				t.Errorf("after %s:\n got %q\nwant %q", test.steps, got, test.want)
			}
		})
	}
}

func TestTracker_aBrokenOrderOfCallsPanicsWithTheFacts(t *testing.T) {
	for _, test := range []struct{ name, steps, want string }{
		{"begin inside another transaction", "begin 8; begin 16", "transaction 0/10 begins inside transaction 0/8"},
		{"an event outside of any", "add a 0", "outside a transaction"},
		{"commit of nothing", "commit 16", "commit ending at 0/10 without a transaction"},
		{"an event finished twice", "begin 8; add a 0; finish a 0; finish a 0", `delivery of "a" to subscriber 0 ended twice`},
		{"finished after it was owed", "begin 8; add a 0; secure a 0; finish a 0", `delivery of "a" to subscriber 0 ended twice`},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, test.want) {
					t.Errorf("panicked with %q, want %q in it", got, test.want)
				}
			}()
			play(t, test.steps)
		})
	}
}

func TestTracker_sumsTheFailedAttemptsOfAllSubscribers(t *testing.T) {
	tracker := ack.New(wide, 2, 0)
	tracker.Begin(8)
	entry := tracker.Add(&event.Event{ID: "a"}, []int{0, 1}, false)
	tracker.Commit(16)
	tracker.Finish(ack.End{Delivery: &entry.Deliveries()[1], Recorded: true, Attempts: 3})
	tracker.Finish(ack.End{Delivery: &entry.Deliveries()[0], Attempts: 2})
	settled := tracker.TakeSettled()
	if len(settled.Entries) != 1 || settled.Entries[0].Attempts != 5 || !settled.Entries[0].Owed {
		t.Fatalf("took %+v, want one entry with 5 attempts of which something is owed", settled.Entries)
	}
	if !settled.Ended {
		t.Error("Ended is false although an event finished")
	}
	tracker.Recorded(settled, settled.Finished)
	tracker.Marker(100)
	if again := tracker.TakeSettled(); len(again.Entries) != 0 || again.Ended || again.Finished != 100 {
		t.Errorf("took %+v after a keepalive, want no entry, nothing ended, and 100 to confirm", again)
	}
}

func TestTracker_theWindowIsFullUntilWhatIsFinishedIsRecorded(t *testing.T) {
	for _, test := range []struct {
		name  string
		limit ack.Window
	}{
		{"by number", ack.Window{Events: 2, Bytes: 1 << 20}},
		{"by bytes", ack.Window{Events: 1000, Bytes: 20}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tracker := ack.New(test.limit, 1, 0)
			tracker.Begin(8)
			var entries []*ack.Entry
			for range 2 {
				if !tracker.HasRoom() {
					t.Fatalf("full with %d events", len(entries))
				}
				entries = append(entries, tracker.Add(&event.Event{ID: "0123456789"}, []int{0}, false))
			}
			if tracker.HasRoom() {
				t.Error("room although the limit is reached")
			}
			tracker.Finish(ack.End{Delivery: &entries[1].Deliveries()[0]})
			if tracker.HasRoom() {
				t.Error("room although nothing is recorded")
			}
			// Inside the transaction: one larger than the window must not stop itself.
			settled := tracker.TakeSettled()
			tracker.Recorded(settled, settled.Finished)
			if !tracker.HasRoom() {
				t.Error("no room although one of two was recorded")
			}
			select {
			case <-tracker.Room():
			default:
				t.Error("no one was told that there is room")
			}
			if events, bytes := tracker.Open(); events != 1 || bytes != 10 {
				t.Errorf("open: got %d events and %d bytes, want 1 and 10", events, bytes)
			}
		})
	}
}

func TestTracker_namesTheOldestOpenEventOfASubscriber(t *testing.T) {
	s := play(t, "begin 8; add a 0; add b 0 1; add c 1; commit 16; finish a 0; finish c 1")
	for subscriber, want := range []string{"b", "b"} {
		if n, oldest := s.OpenOf(subscriber); n != 1 || oldest == nil || oldest.ID != want {
			t.Errorf("subscriber %d: got %d, %+v, want 1 and %q", subscriber, n, oldest, want)
		}
	}
	s.step(t, []string{"finish", "b", "1"})
	if n, oldest := s.OpenOf(1); n != 0 || oldest != nil {
		t.Errorf("subscriber 1: got %d, %+v, want nothing", n, oldest)
	}
}

func TestTracker_knowsWhereASubscriberStands(t *testing.T) {
	s := play(t, "begin 8; add a 0; add b 0 1; add c 1; commit 16")
	for _, test := range []struct {
		steps string
		want  event.Position // of subscriber 0
	}{
		{"finish b 0", event.Position{Commit: 8, Ordinal: -1}}, // nothing of the transaction
		{"secure a 0", event.Position{Commit: 8, Ordinal: 2}},  // everything received, also c
		{"begin 24; commit 32", event.Position{Commit: 8, Ordinal: 2}},
		{"begin 40; add d 1; add e 0", event.Position{Commit: 40, Ordinal: 3}}, // before e
	} {
		for step := range strings.SplitSeq(test.steps, ";") {
			s.step(t, strings.Fields(step))
		}
		if got := s.Secured(0); got != test.want {
			t.Errorf("after %s: got %v, want %v", test.steps, got, test.want)
		}
	}
}

// Reader, lanes and recorder are goroutines of their own; the race detector watches them here.
func TestTracker_confirmsEverythingInTheEndWhenManyFinishAtOnce(t *testing.T) {
	const transactions, each, subscribers = 500, 3, 4
	tracker := ack.New(ack.Window{Events: 50, Bytes: 1 << 20}, subscribers, 0)
	lanes := make([]chan *ack.Delivery, subscribers)
	var group sync.WaitGroup
	for i := range lanes {
		lanes[i] = make(chan *ack.Delivery, transactions*each)
		group.Go(func() {
			for d := range lanes[i] {
				tracker.Finish(ack.End{Delivery: d, Attempts: 1})
			}
		})
	}
	want := event.LSN(transactions * 8)
	recorded := make(chan int)
	go func() {
		entries := 0
		for tracker.Confirmed() < want {
			<-tracker.Moved()
			settled := tracker.TakeSettled()
			entries += len(settled.Entries)
			tracker.Recorded(settled, settled.Finished)
		}
		recorded <- entries
	}()
	for n := range transactions {
		tracker.Begin(event.LSN(n * 8))
		for range each {
			for !tracker.HasRoom() {
				<-tracker.Room()
			}
			entry := tracker.Add(&event.Event{ID: "x"}, []int{0, 1, 2, 3}, false)
			for i := range entry.Deliveries() {
				lanes[i] <- &entry.Deliveries()[i]
			}
		}
		tracker.Commit(event.LSN(n*8 + 8))
	}
	for _, lane := range lanes {
		close(lane)
	}
	group.Wait()
	if got := <-recorded; got != transactions*each {
		t.Errorf("recorded %d events, want %d", got, transactions*each)
	}
	if events, bytes := tracker.Open(); events != 0 || bytes != 0 || tracker.Pending() {
		t.Errorf("in the end %d events and %d bytes are open, pending %v", events, bytes, tracker.Pending())
	}
}
