package ack_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

// tracked is what the random test drives, so that it can be driven into planted bugs as well.
type tracked interface {
	Begin(commit event.LSN)
	Add(ev *event.Event, subscribers []int, known bool) *ack.Entry
	Commit(end event.LSN)
	Marker(walEnd event.LSN)
	Finish(ends ...ack.End)
	TakeSettled() ack.Settled
	Recorded(s ack.Settled, confirm event.LSN)
	Secure(deliveries []*ack.Delivery)
	Owes(subscriber int, oldest, holds *event.Position)
	OwesSince(subscriber int) *event.Position
	OpenAmong(events []event.Identity) map[event.Identity]bool
	Passed() event.LSN
	Secured(subscriber int) event.Position
	Confirmed() event.LSN
	Pending() bool
	HasRoom() bool
	Received() event.Position
	Open() (events int, bytes int64)
	OpenOf(subscriber int) (int, *event.Event)
	String() string
}

func TestTracker_agreesWithAPlainList(t *testing.T) {
	for range 60 {
		seed := rand.Uint64()
		if err := compare(ack.New(modelWindow, modelSubscribers, 0), seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// The test of the test.
func TestPlainList_findsPlantedBugs(t *testing.T) {
	for name, plant := range map[string]func(*ack.Tracker) tracked{
		"confirms one transaction too far":             func(t *ack.Tracker) tracked { return &tooFar{Tracker: t} },
		"confirms before it is recorded":               func(t *ack.Tracker) tracked { return &tooEarly{Tracker: t} },
		"believes keepalives in a transaction":         func(t *ack.Tracker) tracked { return &credulous{Tracker: t} },
		"forgets debt":                                 func(t *ack.Tracker) tracked { return &forgetful{Tracker: t} },
		"lets out of the window what was not recorded": func(t *ack.Tracker) tracked { return &leaky{Tracker: t} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(50) {
				if compare(plant(ack.New(modelWindow, modelSubscribers, 0)), seed) != nil {
					return
				}
			}
			t.Error("50 random lives went by without a complaint")
		})
	}
}

// tooFar confirms the transaction behind the last one that is safe.
type tooFar struct {
	*ack.Tracker
	ends []event.LSN
}

func (b *tooFar) Commit(end event.LSN) {
	b.ends = append(b.ends, end)
	b.Tracker.Commit(end)
}

func (b *tooFar) Confirmed() event.LSN {
	safe := b.Tracker.Confirmed()
	for _, end := range b.ends {
		if end > safe {
			return end
		}
	}
	return safe
}

// tooEarly confirms what was taken before it is recorded.
type tooEarly struct {
	*ack.Tracker
	taken event.LSN
}

func (b *tooEarly) TakeSettled() ack.Settled {
	s := b.Tracker.TakeSettled()
	b.taken = s.Secured
	return s
}

func (b *tooEarly) Confirmed() event.LSN { return b.taken }

// credulous takes the WAL end of a keepalive for safe although a transaction is under way.
type credulous struct {
	*ack.Tracker
	heard event.LSN
}

func (b *credulous) Marker(walEnd event.LSN) {
	b.heard = walEnd
	b.Tracker.Marker(walEnd)
}

func (b *credulous) Confirmed() event.LSN { return max(b.heard, b.Tracker.Confirmed()) }

// forgetful confirms past what is waiting.
type forgetful struct{ *ack.Tracker }

func (b *forgetful) TakeSettled() ack.Settled {
	s := b.Tracker.TakeSettled()
	s.Finished = s.Secured
	return s
}

// leaky forgets finished events as soon as they are taken.
type leaky struct {
	*ack.Tracker
	taken int
}

func (b *leaky) TakeSettled() ack.Settled {
	s := b.Tracker.TakeSettled()
	b.taken = len(s.Entries)
	return s
}

func (b *leaky) Open() (int, int64) {
	events, bytes := b.Tracker.Open()
	return events - b.taken, bytes
}

const modelSubscribers = 3

var modelWindow = ack.Window{Events: 12, Bytes: 400}

// compare leads a tracker and a model through the same random life and returns the first difference.
func compare(tracker tracked, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 0))
	m := &model{}
	var settled ack.Settled
	inTake := false
	calm := random.IntN(20) // how seldom something finishes, so that queues grow long in some lives
	for step := range 400 {
		var what string
		switch choice := random.IntN(14 + calm); {
		case choice == 0 && !inTake:
			what, inTake = "take", true
			settled = tracker.TakeSettled()
			if err := m.applySettled(settled); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		case choice <= 1 && inTake:
			what, inTake = "recorded", false
			confirm := settled.Finished
			if random.IntN(5) == 0 { // above the WAL budget
				confirm = settled.Secured
			} else if err := m.holdsForDebt(confirm); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			tracker.Recorded(settled, confirm)
			m.record(confirm)
		case choice <= 4:
			what = "finish"
			m.finish(tracker, random)
		case choice == 5:
			what = "secure"
			m.secure(tracker, random)
		case choice == 6:
			what = "pay"
			m.pay(tracker, random)
		case choice == 7:
			what = "marker"
			m.marker(tracker, random)
		case !m.inside:
			what = "begin"
			m.begin(tracker)
		case choice <= 10 || !tracker.HasRoom():
			what = "commit"
			m.commit(tracker)
		default:
			what = "add"
			m.add(tracker, random)
		}
		if err := m.check(tracker); err != nil {
			return fmt.Errorf("step %d, after %s: %w\ntracker %s", step, what, err, tracker)
		}
	}
	return nil
}
