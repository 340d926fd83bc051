package debttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

const sub = "sub"

// Debt is what the lanes and the recorder reach of a debt.
type Debt interface {
	lane.Ower
	// MarkRows is that of debt.Store.
	MarkRows(ctx context.Context, query debt.MarkQuery) (debt.MarkRound, error)
	// Marked tells whether the event's row is marked, and the attempts that were added to it.
	Marked(e *event.Event) (attempts int, marked bool)
}

// Run is the contract of a debt. open returns an empty one for the known subscribers "sub" and "other", of
// which events may be owed: if the debt points to rows, it has to make these first, unmarked.
func Run(t *testing.T, open func(t *testing.T, events []*event.Event) Debt) {
	for name, test := range map[string]func(*testing.T, *book){
		"Record keeps everything about a delivery":               recordKeepsEverything,
		"Record leaves what is recorded as it is":                recordLeavesWhatIsThere,
		"Record gives what was added the position of its event":  recordPlacesWhatWasAdded,
		"Record and Dead leave another row of an identity alone": otherRowsOfAnIdentity,
		"Record leaves what is in the order of its table":        recordLeavesTheOrderOfATable,
		"Waiting gives the order of positions":                   waitingGivesTheOrder,
		"Waiting begins after a position":                        waitingBeginsAfter,
		"Waiting leaves keys out":                                waitingLeavesKeysOut,
		"Waiting keeps back keys that were set aside":            waitingKeepsBackWhatIsSetAside,
		"Waiting leaves out what is due later":                   waitingLeavesOutWhatIsDueLater,
		"Sample picks the first delivery of a key that is due":   samplePicksAHead,
		"Waiting stops at rows and bytes, but gives one":         waitingStops,
		"Waiting gives nothing where nothing waits":              waitingGivesNothing,
		"Dead makes a dead letter of a waiting delivery":         deadOfAWaitingOne,
		"Dead is called by several at once":                      deadAtOnce,
		"Known tells the states":                                 knownTellsTheStates,
		"FindMarked tells whose rows are marked":                 findMarkedTellsMarks,
		"Paid removes what is secured":                           paidRemoves,
		"Paid keeps what is beyond until secured reaches it":     paidKeepsWhatIsBeyond,
		"Paid of what was not recorded is no error":              paidOfNothing,
		"Failed changes waiting deliveries only":                 failedChangesWaiting,
		"Load counts by key, up to a number of keys":             loadCounts,
		"Load tells whether anything is beyond, in any state":    loadTellsBeyond,
		"Load tells what the stream may bring of what was added": loadTellsWhatTheStreamMayBring,
		"Waiting examines no more than it was asked for":         waitingExaminesNoMoreThanAsked,
		"Waiting leaves out the keys of dead letters":            waitingLeavesOutBlockedKeys,
		"Count gives pages, and Load no more than its limit":     countGivesPages,
		"Blocked gives the keys of dead letters, each once":      blockedGivesKeys,
		"Changes tells the oldest":                               changesTellTheOldest,
		"Unwanted pauses":                                        unwantedPauses,
		"MarkRows marks when nothing is owed to anyone":          marksWhenNothingIsOwed,
		"MarkRows waits for the bound":                           marksBehindTheBound,
		"MarkRows waits for what is open":                        marksWhatIsNotOpen,
		"MarkRows adds the attempts of all":                      marksWithAttempts,
		"subscribers and sources have nothing to do with each":   subscribersAreApart,
		"an id that comes again is another event":                idsComeAgain,
	} {
		t.Run(name, func(t *testing.T) {
			events := someEvents()
			test(t, &book{open(t, events), t, events})
		})
	}
}

// book is an Ower whose errors fail the test, and events that may be owed in it.
type book struct {
	ower   Debt
	t      *testing.T
	events []*event.Event // in the order of their positions
}

// someEvents are in order; the keys are a, b, a, b and so on.
func someEvents() []*event.Event {
	positions := []event.Position{
		{Epoch: 1, Commit: 0x7F, Ordinal: 2}, {Epoch: 1, Commit: 0x80, Ordinal: 0}, {Epoch: 1, Commit: 0x80, Ordinal: 1},
		{Epoch: 1, Commit: 0x80, Ordinal: 10}, {Epoch: 1, Commit: 0x16B374D848, Ordinal: 0}, {Epoch: 2, Commit: 0x10, Ordinal: 0},
	}
	var events []*event.Event
	for i, position := range positions {
		n := i + 1
		events = append(events, &event.Event{
			Source: "lessons", ID: fmt.Sprint("e", n), Type: "lesson.completed", Key: string(rune('a' + i%2)),
			AggregateType: "lesson", AggregateID: fmt.Sprint(n), OccurredAt: "2024-03-10 06:30:00+00", Occurrence: "2024-03-10 06:30:00+00",
			Payload: fmt.Appendf(nil, `{"n": %d.00}`, n), Headers: []byte(`{"correlation_id": "ü"}`),
			Row: fmt.Sprint(n), Position: position, XID: uint32(700 + n),
			CommittedAt: time.Date(2024, 3, 10, 6, 30, n, 123456000, time.UTC),
		})
	}
	return events
}

func (b *book) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *book) record(events ...*event.Event) {
	b.t.Helper()
	var owed []lane.Owed
	for _, e := range events {
		owed = append(owed, lane.Owed{Event: e})
	}
	_, err := b.ower.Record(b.t.Context(), sub, owed)
	b.ok(err)
}

func (b *book) dead(e *event.Event) {
	b.t.Helper()
	b.deadFor(sub, lane.Owed{Event: e, Attempts: 12, Err: "no"})
}

func (b *book) recordFor(subscriber string, owed []lane.Owed) {
	b.t.Helper()
	_, err := b.ower.Record(b.t.Context(), subscriber, owed)
	b.ok(err)
}

func (b *book) deadFor(subscriber string, letter lane.Owed) {
	b.t.Helper()
	_, err := b.ower.Dead(b.t.Context(), subscriber, letter)
	b.ok(err)
}

func (b *book) pay(secured event.Position, events ...*event.Event) {
	b.t.Helper()
	var paid []lane.Paid
	for _, e := range events {
		paid = append(paid, lane.Paid{Event: e})
	}
	b.ok(b.ower.Paid(b.t.Context(), sub, paid, secured))
	b.markRows(event.Position{Epoch: 9})
}

// markRows marks what the stream is past, but for what is open.
func (b *book) markRows(passed event.Position, open ...*event.Event) {
	b.t.Helper()
	isOpen := make(map[event.Identity]bool)
	for _, e := range open {
		isOpen[e.Identity()] = true
	}
	_, err := b.ower.MarkRows(b.t.Context(), debt.MarkQuery{
		Passed: passed, Limit: 1000, Open: func([]event.Identity) map[event.Identity]bool { return isOpen },
	})
	b.ok(err)
}

// wantMarked checks which of the events are marked, with so many attempts.
func (b *book) wantMarked(when string, want ...int) {
	b.t.Helper()
	for i, e := range b.events {
		attempts, marked := b.ower.Marked(e)
		wantMarked := i < len(want) && want[i] >= 0
		if marked != wantMarked || marked && attempts != want[i] {
			b.t.Errorf("%s: event %s: marked %v with %d attempts, want %v of %v", when, e.ID, marked, attempts, wantMarked, want)
		}
	}
}

func marksWhenNothingIsOwed(t *testing.T, b *book) {
	const not = -1
	b.record(b.events[:4]...)
	b.recordFor("other", []lane.Owed{{Event: b.events[1]}})
	b.deadFor("other", lane.Owed{Event: b.events[2]})
	b.pay(b.events[5].Position, b.events[:3]...)
	b.wantMarked("while the other one is owed two", 0, not, not, not)
	b.ok(b.ower.Paid(t.Context(), "other", []lane.Paid{{Event: b.events[1]}}, b.events[5].Position))
	b.wantMarked("by a payment", 0, not, not, not)
	b.markRows(event.Position{Epoch: 9})
	b.wantMarked("while the other one has a dead letter", 0, 0, not, not)
	b.wantWaiting(all, "e4")
}

func marksBehindTheBound(t *testing.T, b *book) {
	const not = -1
	late := *b.events[1]
	late.Position, late.Bound = event.Position{Epoch: 1, Commit: 0x7F, Ordinal: 9}, 0x200
	b.record(&late, b.events[2], b.events[5])
	paid := []lane.Paid{{Event: &late}, {Event: b.events[2]}, {Event: b.events[5]}}
	b.ok(b.ower.Paid(t.Context(), sub, paid, event.Position{}))
	b.markRows(event.Position{Epoch: 1, Commit: 0x80})
	b.wantMarked("up to the commit of the real one", not, not, not)
	b.markRows(event.Position{Epoch: 1, Commit: 0x200})
	b.wantMarked("up to the bound", not, not, 0)
	b.markRows(event.Position{Epoch: 1, Commit: 0x201})
	b.wantMarked("past the bound", not, 0, 0)
	b.markRows(event.Position{Epoch: 3})
	b.wantMarked("on another server", not, 0, 0, not, not, 0)
}

func marksWhatIsNotOpen(t *testing.T, b *book) {
	const not = -1
	b.record(b.events[:2]...)
	b.ok(b.ower.Paid(t.Context(), sub, []lane.Paid{{Event: b.events[0]}, {Event: b.events[1]}}, b.events[5].Position))
	b.markRows(event.Position{Epoch: 9}, b.events[0])
	b.wantMarked("while the first is open", not, 0)
	b.markRows(event.Position{Epoch: 9})
	b.wantMarked("when nothing is", 0, 0)
}

func marksWithAttempts(t *testing.T, b *book) {
	b.record(b.events[0])
	b.recordFor("other", []lane.Owed{{Event: b.events[0]}})
	for i, name := range []string{sub, "other"} {
		b.ok(b.ower.Paid(t.Context(), name, []lane.Paid{{Event: b.events[0], Attempts: 2 + i}}, event.Position{}))
	}
	b.markRows(event.Position{Epoch: 9})
	b.markRows(event.Position{Epoch: 9})
	b.wantMarked("of both", 5)
}

func (b *book) waiting(query lane.Query) []lane.Owed {
	b.t.Helper()
	page, err := b.ower.Waiting(b.t.Context(), sub, query)
	b.ok(err)
	return page.Owed
}

var all = lane.Query{Limit: 100}

func (b *book) wantWaiting(query lane.Query, want ...string) {
	b.t.Helper()
	var got []string
	for _, o := range b.waiting(query) {
		got = append(got, o.Event.ID)
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("waiting: got %q, want %q", got, want)
	}
}

func (b *book) wantKnown(want map[int]lane.State) {
	b.t.Helper()
	if got := b.known(b.events...); !maps.Equal(got, want) {
		b.t.Errorf("known: got %v, want %v", got, want)
	}
}

// known returns the states of those of the events that are recorded, by index.
func (b *book) known(events ...*event.Event) map[int]lane.State {
	b.t.Helper()
	known, err := b.ower.Known(b.t.Context(), sub, events)
	b.ok(err)
	states := make(map[int]lane.State)
	for i, recorded := range known {
		states[i] = recorded.State
	}
	return states
}

func (b *book) load(secured event.Position, maxKeys int) lane.Debt {
	b.t.Helper()
	debt, err := b.ower.Load(b.t.Context(), sub, secured, lane.Limit{Keys: maxKeys, Rows: 100})
	b.ok(err)
	return debt
}

func recordKeepsEverything(t *testing.T, b *book) {
	at := time.Date(2024, 3, 11, 1, 2, 3, 4000, time.UTC)
	want := []lane.Owed{
		{Event: b.events[0], Attempts: 3, FirstFailure: at, LastFailure: at.Add(time.Hour), NextAttempt: at.Add(2 * time.Hour), Err: "503 ü"},
		{Event: b.events[1]},
	}
	b.recordFor(sub, want)
	got := b.waiting(all)
	if len(got) != len(want) {
		t.Fatalf("got %d deliveries, want %d", len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i].Event, want[i].Event) {
			t.Errorf("event: got\n%+v, want\n%+v", got[i].Event, want[i].Event)
		}
		got[i].Event = want[i].Event
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("delivery: got\n%+v, want\n%+v", got[i], want[i])
		}
	}
}

func recordLeavesWhatIsThere(t *testing.T, b *book) {
	b.recordFor(sub, []lane.Owed{{Event: b.events[0], Attempts: 3}})
	b.dead(b.events[1])
	b.record(b.events[2])
	b.pay(event.Position{}, b.events[2])
	b.record(b.events[:4]...)
	b.record(b.events[3], b.events[3])
	b.wantKnown(map[int]lane.State{0: lane.StateWaiting, 1: lane.StateDead, 2: lane.StatePaid, 3: lane.StateWaiting})
	b.wantWaiting(all, "e1", "e4")
	if got := b.waiting(all)[0].Attempts; got != 3 {
		t.Errorf("attempts: got %d, want 3 as before", got)
	}
	b.recordFor(sub, nil)
}

// added is the event as a person adds it: at a made-up position, before the bound 0x200.
func (b *book) added(n int) *event.Event {
	e := *b.events[n]
	e.Position, e.Bound = event.Position{Epoch: 1, Commit: 0x7F, Ordinal: int64(n)}, 0x200
	return &e
}

func recordPlacesWhatWasAdded(t *testing.T, b *book) {
	b.record(b.added(3), b.added(2))
	b.dead(b.added(1))
	b.record(b.added(0))
	b.pay(event.Position{}, b.added(0))
	b.record(b.events[:3]...)
	b.wantWaiting(all, "e4", "e3")
	b.record(b.events[3], b.events[3]) // two rows with one identity are one event
	b.wantWaiting(all, "e3", "e4")
	b.wantKnown(map[int]lane.State{0: lane.StatePaid, 1: lane.StateDead, 2: lane.StateWaiting, 3: lane.StateWaiting})
	known, err := b.ower.Known(t.Context(), sub, b.events)
	b.ok(err)
	for n, want := range map[int]bool{0: true, 1: false, 2: false, 3: false} {
		if known[n].MadeUp != want {
			t.Errorf("delivery %d stands at a made-up position: %v, want %v", n, known[n].MadeUp, want)
		}
	}
	b.record(b.added(3)) // and no other way round
	b.wantWaiting(all, "e3", "e4")
}

// S-470: what is recorded of one row says nothing of another one with its identity, and is not changed for it.
func otherRowsOfAnIdentity(t *testing.T, b *book) {
	second := func(n int) *event.Event {
		e := *b.events[n]
		e.Row, e.Payload, e.Position = "9"+e.Row, []byte(`{"second": 1}`), event.Position{Epoch: 2, Commit: 0x20, Ordinal: int64(n)}
		return &e
	}
	wantOthers := func(want []int, events ...*event.Event) {
		t.Helper()
		owed := make([]lane.Owed, len(events))
		for i, e := range events {
			owed[i] = lane.Owed{Event: e}
		}
		got, err := b.ower.Record(t.Context(), sub, owed)
		b.ok(err)
		if !slices.Equal(got, want) {
			t.Errorf("rows of another identity: got %v, want %v", got, want)
		}
	}
	wantOthers([]int{2}, b.events[0], b.events[1], second(0))
	wantOthers(nil, b.events[0], b.events[1])
	b.dead(b.events[1])
	wantOthers([]int{0, 2}, second(1), b.events[2], second(0))
	b.pay(event.Position{}, b.events[2])
	wantOthers([]int{0}, second(2))
	b.wantWaiting(all, "e1")
	for n, e := range []*event.Event{second(0), second(1)} {
		if other, err := b.ower.Dead(t.Context(), sub, lane.Owed{Event: e, Err: "no"}); !other || err != nil {
			t.Errorf("dead letter of the second row of e%d: got %v, %v", n+1, other, err)
		}
	}
	b.wantWaiting(all, "e1")
	known, err := b.ower.Known(t.Context(), sub, []*event.Event{b.events[0], second(0), b.events[1], second(1), second(3)})
	b.ok(err)
	for n, want := range map[int]lane.Recorded{0: {State: lane.StateWaiting}, 1: {State: lane.StateWaiting, Other: true}, 2: {State: lane.StateDead}, 3: {State: lane.StateDead, Other: true}} {
		if known[n] != want {
			t.Errorf("known of delivery %d: got %+v, want %+v", n, known[n], want)
		}
	}

	// Messages have no row: those at two positions are two.
	message, again := *b.events[3], *b.events[3]
	message.Source, message.Row, again.Source, again.Row = "messages", "", "messages", ""
	again.Position.Ordinal++
	wantOthers([]int{2}, &message, &message, &again)
}

// What a repair has put in the order of its table keeps that place, also when it has failed, though the stream brings
// it again.
func recordLeavesTheOrderOfATable(t *testing.T, b *book) {
	inOrder := func(n int) lane.Owed { return lane.Owed{Event: b.added(n), InTableOrder: true} }
	b.recordFor(sub, []lane.Owed{inOrder(2), inOrder(3)})
	b.ok(b.ower.Failed(t.Context(), sub, []lane.Owed{{Event: b.added(2), Attempts: 1, FirstFailure: time.Unix(1, 0), Err: "503"}}))
	b.record(b.events[2:4]...)
	b.wantWaiting(all, "e3", "e4")
}

func waitingGivesTheOrder(t *testing.T, b *book) {
	for _, i := range []int{4, 2, 5, 0} {
		b.record(b.events[i])
	}
	b.record(b.events[3], b.events[1])
	b.wantWaiting(all, "e1", "e2", "e3", "e4", "e5", "e6")
}

func waitingBeginsAfter(t *testing.T, b *book) {
	b.record(b.events...)
	b.wantWaiting(lane.Query{After: b.events[2].Position, Limit: 2}, "e4", "e5")
	between := b.events[2].Position
	between.Ordinal++
	b.wantWaiting(lane.Query{After: between, Limit: 1}, "e4")
	b.wantWaiting(lane.Query{After: b.events[5].Position, Limit: 1})
}

func waitingLeavesKeysOut(t *testing.T, b *book) {
	b.record(b.events...)
	b.wantWaiting(lane.Query{Without: []string{"a", "unknown"}, Limit: 2}, "e2", "e4")
	b.wantWaiting(lane.Query{Without: []string{"a", "b"}, Limit: 2})
	b.wantWaiting(lane.Query{Without: []string{}, Limit: 1}, "e1")
}

// A key whose first delivery failed and is behind the cursor was set aside, unless it is in hand.
func waitingKeepsBackWhatIsSetAside(t *testing.T, b *book) {
	b.record(b.events[:5]...)
	b.fail(b.events[0], time.Time{}) // key a: e1, e3, e5
	after := b.events[0].Position
	b.wantWaiting(lane.Query{After: after, Limit: 10}, "e2", "e3", "e4", "e5")
	b.wantWaiting(lane.Query{After: after, Limit: 10, Order: lane.None}, "e2", "e3", "e4", "e5")
	b.wantWaiting(lane.Query{After: after, Limit: 10, Order: lane.ByKey, Change: b.change()}, "e2", "e4")
	b.wantWaiting(lane.Query{After: after, Limit: 10, Order: lane.ByKey, Change: b.change(), InHand: []string{"a"}}, "e2", "e3", "e4", "e5")
	b.wantWaiting(lane.Query{Limit: 10, Order: lane.ByKey, Change: b.change()}, "e1", "e2", "e3", "e4", "e5")
	if _, err := b.ower.Waiting(t.Context(), sub, lane.Query{Limit: 10, Order: lane.ByKey, Change: b.change() + 1}); !errors.Is(err, lane.ErrChanged) {
		t.Errorf("with another change: %v, want ErrChanged", err)
	}
}

func waitingLeavesOutWhatIsDueLater(t *testing.T, b *book) {
	b.record(b.events[:5]...)
	now := time.Now()
	b.fail(b.events[1], now.Add(time.Hour)) // key b: e2, e4
	b.fail(b.events[0], now.Add(-time.Hour))
	b.wantWaiting(lane.Query{Limit: 10, Due: now, Order: lane.ByKey, Change: b.change()}, "e1", "e3", "e5")
	b.wantWaiting(lane.Query{Limit: 10, Due: now, Order: lane.None}, "e1", "e3", "e4", "e5")
	b.wantWaiting(lane.Query{Limit: 10, Due: now.Add(2 * time.Hour), Order: lane.ByKey, Change: b.change()}, "e1", "e2", "e3", "e4", "e5")
	b.wantWaiting(lane.Query{Limit: 10, Order: lane.ByKey, Change: b.change()}, "e1", "e2", "e3", "e4", "e5")
}

func samplePicksAHead(t *testing.T, b *book) {
	b.wantSample(lane.ByKey, 0.5)
	b.record(b.events[:5]...)
	b.wantSample(lane.ByKey, 0, "e1")
	b.wantSample(lane.ByKey, 0.99, "e2")
	b.wantSample(lane.None, 0.99, "e5")
	b.fail(b.events[1], time.Now().Add(time.Hour))
	b.wantSample(lane.ByKey, 0.99, "e1")
	b.fail(b.events[0], time.Now().Add(time.Hour))
	b.wantSample(lane.ByKey, 0)
	b.wantSample(lane.None, 0, "e3")
}

// fail notes a failed attempt of a waiting delivery.
func (b *book) fail(e *event.Event, next time.Time) {
	b.t.Helper()
	now := time.Now()
	err := b.ower.Failed(b.t.Context(), sub, []lane.Owed{{Event: e, Attempts: 1, FirstFailure: now, LastFailure: now, NextAttempt: next, Err: "no"}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// change is the number of the last change by people.
func (b *book) change() int64 {
	b.t.Helper()
	look, err := b.ower.Changes(b.t.Context(), sub)
	if err != nil {
		b.t.Fatal(err)
	}
	return look.Change
}

func (b *book) wantSample(order lane.Ordering, pick float64, want ...string) {
	b.t.Helper()
	owed, err := b.ower.Sample(b.t.Context(), sub, order, pick)
	if err != nil {
		b.t.Fatal(err)
	}
	var got []string
	for _, o := range owed {
		got = append(got, o.Event.ID)
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("sample at %v: got %v, want %v", pick, got, want)
	}
}

func waitingStops(t *testing.T, b *book) {
	b.record(b.events...)
	size := int64(b.events[0].Size())
	b.wantWaiting(lane.Query{Limit: 2}, "e1", "e2")
	b.wantWaiting(lane.Query{Limit: 100, Bytes: 1}, "e1")
	b.wantWaiting(lane.Query{Limit: 100, Bytes: 2*size - 1}, "e1")
	b.wantWaiting(lane.Query{Limit: 100, Bytes: 2 * size}, "e1", "e2")
	b.wantWaiting(lane.Query{Limit: 2, Bytes: 1 << 30}, "e1", "e2")
	b.wantWaiting(lane.Query{Limit: 100, Bytes: 1, After: b.events[3].Position}, "e5")
}

func waitingGivesNothing(t *testing.T, b *book) {
	b.wantWaiting(all)
	b.dead(b.events[0])
	b.record(b.events[1])
	b.pay(event.Position{}, b.events[1])
	b.wantWaiting(all)
}

func deadOfAWaitingOne(t *testing.T, b *book) {
	b.record(b.events[:2]...)
	b.dead(b.events[0])
	b.dead(b.events[0]) // once more changes nothing
	b.dead(b.events[2])
	b.wantWaiting(all, "e2")
	b.wantKnown(map[int]lane.State{0: lane.StateDead, 1: lane.StateWaiting, 2: lane.StateDead})
}

func deadAtOnce(t *testing.T, b *book) {
	b.record(b.events...)
	var letters sync.WaitGroup
	for _, e := range b.events {
		letters.Go(func() {
			if _, err := b.ower.Dead(t.Context(), sub, lane.Owed{Event: e, Err: "no"}); err != nil {
				t.Error(err)
			}
		})
	}
	letters.Wait()
	b.wantWaiting(all)
}

func knownTellsTheStates(t *testing.T, b *book) {
	b.record(b.events[1], b.events[3])
	b.dead(b.events[2])
	b.pay(event.Position{}, b.events[3])
	b.wantKnown(map[int]lane.State{1: lane.StateWaiting, 2: lane.StateDead, 3: lane.StatePaid})
	none, err := b.ower.Known(t.Context(), sub, nil)
	b.ok(err)
	if len(none) != 0 {
		t.Errorf("of no events: got %v", none)
	}
}

func findMarkedTellsMarks(t *testing.T, b *book) {
	far := event.Position{Epoch: 2, Commit: 0x1000}
	b.record(b.events[:3]...)
	b.recordFor("other", []lane.Owed{{Event: b.events[1]}})
	b.pay(far, b.events[:2]...)
	b.markRows(far)
	b.wantMarked("with one that the other one is owed", 0)
	again, another := *b.events[0], *b.events[0]
	again.Position.Commit++ // it identifies nothing
	another.Occurrence = "another event with this id"
	marked, err := b.ower.FindMarked(t.Context(), append(b.events[:len(b.events):len(b.events)], &again, &another))
	b.ok(err)
	if want := []int{0, len(b.events)}; !slices.Equal(marked, want) {
		t.Errorf("marked: got %v, want %v", marked, want)
	}
	if none, err := b.ower.FindMarked(t.Context(), nil); len(none) != 0 || err != nil {
		t.Errorf("of no events: %v, %v", none, err)
	}
}

func paidRemoves(t *testing.T, b *book) {
	b.record(b.events[:3]...)
	b.dead(b.events[3]) // by a person, while it was delivered
	b.pay(b.events[4].Position, b.events[0], b.events[1], b.events[3])
	b.wantKnown(map[int]lane.State{2: lane.StateWaiting})
	b.wantWaiting(all, "e3")
	b.record(b.events[0])
	b.wantWaiting(all, "e1", "e3")
}

func paidKeepsWhatIsBeyond(t *testing.T, b *book) {
	b.record(b.events...)
	b.pay(b.events[1].Position, b.events[1], b.events[2], b.events[3])
	b.wantKnown(map[int]lane.State{0: lane.StateWaiting, 2: lane.StatePaid, 3: lane.StatePaid, 4: lane.StateWaiting, 5: lane.StateWaiting})
	b.wantWaiting(all, "e1", "e5", "e6")
	b.pay(b.events[2].Position)
	b.wantKnown(map[int]lane.State{0: lane.StateWaiting, 3: lane.StatePaid, 4: lane.StateWaiting, 5: lane.StateWaiting})
	b.pay(b.events[5].Position, b.events[0])
	b.wantKnown(map[int]lane.State{4: lane.StateWaiting, 5: lane.StateWaiting})
}

func paidOfNothing(t *testing.T, b *book) {
	b.pay(b.events[5].Position, b.events[0])
	b.pay(event.Position{}, b.events[1])
	b.wantKnown(map[int]lane.State{})
}

func failedChangesWaiting(t *testing.T, b *book) {
	at := time.Date(2024, 3, 11, 1, 2, 3, 0, time.UTC)
	b.record(b.events[:2]...)
	b.dead(b.events[1])
	var failed []lane.Owed
	for _, e := range b.events[:3] {
		failed = append(failed, lane.Owed{Event: e, Attempts: 5, FirstFailure: at, LastFailure: at, NextAttempt: at.Add(time.Minute), Err: "again"})
	}
	b.ok(b.ower.Failed(t.Context(), sub, failed))
	b.wantKnown(map[int]lane.State{0: lane.StateWaiting, 1: lane.StateDead})
	got := b.waiting(all)[0]
	got.Event = b.events[0]
	if !reflect.DeepEqual(got, failed[0]) {
		t.Errorf("got %+v, want %+v", got, failed[0])
	}
	b.ok(b.ower.Failed(t.Context(), sub, nil))
}

func loadCounts(t *testing.T, b *book) {
	if got := b.load(event.Position{}, 10); len(got.Keys) != 0 || got.Keys == nil || got.More || got.Beyond || got.Paused {
		t.Errorf("of nothing: got %+v", got)
	}
	b.record(b.events[:5]...)
	b.dead(b.events[5])
	b.pay(event.Position{}, b.events[4])
	want := map[string]int{"a": 2, "b": 2}
	if got := b.load(event.Position{}, 2); got.More || !maps.Equal(got.Keys, want) {
		t.Errorf("got %+v, want %v", got, want)
	}
	if got := b.load(event.Position{}, 1); !got.More || got.Keys != nil {
		t.Errorf("of more keys than asked for: got %+v, want only that there are more", got)
	}
}

func loadTellsBeyond(t *testing.T, b *book) {
	b.record(b.events[0], b.events[1])
	b.dead(b.events[2])
	b.pay(event.Position{}, b.events[1])
	for i, want := range []bool{true, true, false, false} {
		if got := b.load(b.events[i].Position, 10).Beyond; got != want {
			t.Errorf("beyond %v: got %t, want %t", b.events[i].Position, got, want)
		}
	}
	b.record(b.events[5])
	if !b.load(b.events[4].Position, 10).Beyond {
		t.Error("a waiting one beyond secured is not told")
	}
	b.pay(event.Position{}, b.events[5])
	if !b.load(b.events[4].Position, 10).Beyond {
		t.Error("a paid one beyond secured is not told")
	}
}

// What a person adds has a place before the stream, which may bring the event all the same.
func loadTellsWhatTheStreamMayBring(t *testing.T, b *book) {
	want := func(state lane.State) {
		t.Helper()
		for commit, want := range map[event.LSN]bool{0x7F: true, 0x100: true, 0x200: false, 0x300: false} {
			secured := event.Position{Epoch: 1, Commit: commit, Ordinal: math.MaxInt64}
			got := b.load(secured, 10)
			if got.Beyond != want || (got.Bound == 0x200) != want {
				t.Errorf("a %s delivery with the bound 0x200, secured up to %v: got %t, up to %v, want %t", state, secured, got.Beyond, got.Bound, want)
			}
			bounds := make(map[string]event.LSN)
			if want && state == lane.StateWaiting {
				bounds["b"] = 0x200
			}
			if !maps.Equal(got.Bounds, bounds) {
				t.Errorf("a %s delivery with the bound 0x200, secured up to %v: got bounds %v, want %v", state, secured, got.Bounds, bounds)
			}
		}
	}
	b.record(b.added(1))
	want(lane.StateWaiting)
	if got := b.load(event.Position{}, 0); !got.More || got.Bounds != nil || got.Bound != 0x200 {
		t.Errorf("with more keys than asked for: got %+v, want the highest bound and no other", got)
	}
	b.ok(b.ower.Paid(t.Context(), sub, []lane.Paid{{Event: b.added(1)}}, event.Position{}))
	want(lane.StatePaid)
	b.markRows(event.Position{Epoch: 9})
	b.dead(b.added(2))
	want(lane.StateDead)
}

func blockedGivesKeys(t *testing.T, b *book) {
	blocked := func() []string {
		t.Helper()
		keys, err := b.ower.Blocked(t.Context(), sub, 1)
		b.ok(err)
		return keys
	}
	b.record(b.events[1])
	if got := blocked(); len(got) != 0 {
		t.Errorf("without a dead letter: got %q", got)
	}
	b.dead(b.events[0])
	b.dead(b.events[2])
	if got, want := blocked(), []string{"a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for i, key := range []string{"b", "c"} {
		letter := *b.events[i+3]
		letter.Key = key
		b.dead(&letter)
	}
	if got, want := blocked(), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("of three keys and a limit of one: got %q, want %q", got, want)
	}
}

// What is left out is passed over, and no more of it than was asked for.
func waitingExaminesNoMoreThanAsked(t *testing.T, b *book) {
	b.record(b.events...)
	page := func(query lane.Query) (ids string, reached int, more bool) {
		t.Helper()
		page, err := b.ower.Waiting(t.Context(), sub, query)
		b.ok(err)
		for _, o := range page.Owed {
			ids += o.Event.ID
		}
		return ids, slices.IndexFunc(b.events, func(e *event.Event) bool { return e.Position == page.Reached }), page.More
	}
	size := int64(b.events[0].Size())
	for _, test := range []struct {
		query   lane.Query
		ids     string
		reached int // by index; -1 for nothing
		more    bool
	}{
		{lane.Query{Limit: 10, Examine: 3, Without: []string{"a", "b"}}, "", 2, true},
		{lane.Query{Limit: 10, Examine: 3, Without: []string{"a", "b"}, After: b.events[2].Position}, "", 5, true},
		{lane.Query{Limit: 10, Examine: 3, Without: []string{"a", "b"}, After: b.events[5].Position}, "", -1, false},
		{lane.Query{Limit: 10, Examine: 4, Without: []string{"a"}}, "e2e4", 3, true},
		{lane.Query{Limit: 10, Examine: 3, Without: []string{"a"}}, "e2", 2, true},
		{lane.Query{Limit: 1, Examine: 4}, "e1", 0, true},
		{lane.Query{Limit: 10, Bytes: size, Examine: 4}, "e1", 0, true},
		{lane.Query{Limit: 10, Examine: 1}, "e1", 0, true},
	} {
		ids, reached, more := page(test.query)
		// Whether a read that ends with the last one of them says so, or the next one does, is the debt's affair.
		if atEnd := reached == len(b.events)-1 && !more; ids != test.ids || !atEnd && (reached != test.reached || more != test.more) {
			t.Errorf("%+v: got %q up to %d, more: %v; want %q, %d, %v", test.query, ids, reached, more, test.ids, test.reached, test.more)
		}
	}
}

func waitingLeavesOutBlockedKeys(t *testing.T, b *book) {
	b.record(b.events...)
	b.dead(b.events[2])
	b.deadFor("other", lane.Owed{Event: b.events[1]})
	b.wantWaiting(lane.Query{Limit: 10, WithoutBlocked: true}, "e2", "e4", "e6")
	b.wantWaiting(lane.Query{Limit: 10}, "e1", "e2", "e4", "e5", "e6")
}

func countGivesPages(t *testing.T, b *book) {
	b.record(b.events...)
	b.dead(b.events[3])
	count := func(after event.Position, limit lane.Limit) lane.Counted {
		t.Helper()
		counted, err := b.ower.Count(t.Context(), sub, after, limit)
		b.ok(err)
		if counted.Change != b.change() {
			t.Errorf("change %d, want %d", counted.Change, b.change())
		}
		return counted
	}
	page := count(event.Position{}, lane.Limit{Keys: 10, Rows: 2})
	if !maps.Equal(page.Keys, map[string]int{"a": 1, "b": 1}) || page.Reached != b.events[1].Position || !page.More {
		t.Errorf("the first page: got %+v", page)
	}
	page = count(page.Reached, lane.Limit{Keys: 10, Rows: 2})
	if !maps.Equal(page.Keys, map[string]int{"a": 2}) || page.Reached != b.events[4].Position || !page.More {
		t.Errorf("the second page: got %+v", page)
	}
	page = count(page.Reached, lane.Limit{Keys: 10, Rows: 2})
	if !maps.Equal(page.Keys, map[string]int{"b": 1}) || page.More {
		t.Errorf("the last page: got %+v", page)
	}
	if page = count(event.Position{}, lane.Limit{Keys: 0, Rows: 10}); len(page.Keys) != 1 {
		t.Errorf("of no key and one: got %+v", page)
	}
	if got := b.load(event.Position{}, 10); got.More || got.Keys["a"] != 3 || got.Keys["b"] != 2 {
		t.Errorf("load within its limit: got %+v", got)
	}
	debt, err := b.ower.Load(t.Context(), sub, event.Position{}, lane.Limit{Keys: 10, Rows: 4})
	b.ok(err)
	if !debt.More || debt.Keys != nil {
		t.Errorf("load of more deliveries than its limit: got %+v", debt)
	}
}

func changesTellTheOldest(t *testing.T, b *book) {
	changes := func() lane.Changes {
		t.Helper()
		changes, err := b.ower.Changes(t.Context(), sub)
		b.ok(err)
		changes.Holds = nil // depends on the slot, which a debt in memory has not
		return changes
	}
	if got := changes(); got != (lane.Changes{}) {
		t.Errorf("of nothing: got %+v", got)
	}
	b.record(b.events[1:]...)
	b.dead(b.events[0])
	for _, e := range b.events[1:] {
		if got, want := changes(), (lane.Changes{Any: true, Oldest: e.Position, OldestAt: e.CommittedAt}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		b.pay(b.events[2].Position, e)
	}
	if got := changes(); got.Any {
		t.Errorf("after all is paid: got %+v", got)
	}
}

func unwantedPauses(t *testing.T, b *book) {
	b.record(b.events[0])
	b.ok(b.ower.Unwanted(t.Context(), sub, "410 Gone"))
	for name, want := range map[string]bool{sub: true, "other": false} {
		look, err := b.ower.Changes(t.Context(), name)
		b.ok(err)
		debt, err := b.ower.Load(t.Context(), name, event.Position{}, lane.Limit{Keys: 10, Rows: 100})
		b.ok(err)
		if look.Paused != want || debt.Paused != want {
			t.Errorf("%s: looks paused %v and loads paused %v, want %v", name, look.Paused, debt.Paused, want)
		}
	}
	if got := b.waiting(lane.Query{Limit: 10, Bytes: 1000}); len(got) != 1 {
		t.Errorf("%d deliveries wait, want the one as before", len(got))
	}
}

func subscribersAreApart(t *testing.T, b *book) {
	foreign := *b.events[0]
	foreign.Source, foreign.Row, foreign.Position = "messages", "", event.Position{Epoch: 1, Commit: 0x100}
	b.record(b.events[0], &foreign)
	b.recordFor("other", []lane.Owed{{Event: b.events[0]}, {Event: b.events[1]}})
	b.wantWaiting(all, "e1", "e1")
	b.pay(b.events[5].Position, b.events[0])
	b.wantWaiting(all, "e1")
	if got := b.waiting(all)[0].Event.Source; got != "messages" {
		t.Errorf("source: got %q, want messages", got)
	}
	if got := b.load(event.Position{}, 10).Keys; !maps.Equal(got, map[string]int{"a": 1}) {
		t.Errorf("keys: got %v, want one of a", got)
	}
	others, err := b.ower.Waiting(t.Context(), "other", all)
	b.ok(err)
	if len(others.Owed) != 2 {
		t.Errorf("of the other subscriber: got %d, want 2", len(others.Owed))
	}
}

// idsComeAgain uses messages: no row has to stand for both.
func idsComeAgain(t *testing.T, b *book) {
	then := &event.Event{Source: "messages", ID: "1", Occurrence: "then", Type: "t", Key: "a", Payload: []byte("1"), Position: event.Position{Epoch: 1, Commit: 0x100}}
	now := *then
	now.Occurrence, now.Payload, now.Position.Commit = "now", []byte("2"), 0x108
	b.dead(then)
	b.record(&now)
	states := b.known(then, &now)
	if want := map[int]lane.State{0: lane.StateDead, 1: lane.StateWaiting}; !maps.Equal(states, want) {
		t.Errorf("states: got %v, want %v", states, want)
	}
	b.wantWaiting(all, "1")
	b.pay(now.Position, &now)
	b.wantWaiting(all)
	states = b.known(then, &now)
	if want := map[int]lane.State{0: lane.StateDead}; !maps.Equal(states, want) {
		t.Errorf("states after the payment: got %v, want %v", states, want)
	}
}
