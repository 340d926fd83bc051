package ack_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

// model is the tracker as one would write it without regard to cost: everything there ever was.
type model struct {
	transactions []*modelTransaction // and markers, in stream order
	entries      []*modelEntry       // in stream order
	inside       bool                // the last transaction has not committed
	confirmed    event.LSN
	lsn          event.LSN // the stream has come so far
	passed       event.LSN // end of what the stream has brought
	ended        bool      // some debt reaches less far back than at the last take
}

type modelTransaction struct {
	commit, end event.LSN
	committed   bool
	open        int // events
}

type modelEntry struct {
	*ack.Entry
	transaction *modelTransaction
	open        map[int]*ack.Delivery
	waiting     map[int]bool // as debt
	attempts    int
	owed        bool
	taken       bool
	written     bool
}

func (m *model) begin(tracker tracked) {
	m.lsn += 8
	m.transactions = append(m.transactions, &modelTransaction{commit: m.lsn})
	m.inside = true
	tracker.Begin(m.lsn)
}

func (m *model) commit(tracker tracked) {
	x := m.transactions[len(m.transactions)-1]
	m.lsn += 8
	x.end, x.committed, m.inside = m.lsn, true, false
	m.passed = m.lsn
	tracker.Commit(x.end)
}

// marker is a transaction without events, unless it says nothing.
func (m *model) marker(tracker tracked, random *rand.Rand) {
	m.lsn += event.LSN(random.IntN(3) * 8)
	tracker.Marker(m.lsn)
	if !m.inside {
		m.passed = m.lsn
		m.transactions = append(m.transactions, &modelTransaction{commit: m.lsn, end: m.lsn, committed: true})
	}
}

func (m *model) add(tracker tracked, random *rand.Rand) {
	x := m.transactions[len(m.transactions)-1]
	ev := &event.Event{
		ID:       fmt.Sprint(len(m.entries)),
		Payload:  make([]byte, random.IntN(60)),
		Position: event.Position{Commit: x.commit, Ordinal: int64(len(m.entries))},
	}
	var wanted []int
	for s := range modelSubscribers {
		if random.IntN(2) == 0 {
			wanted = append(wanted, s)
		}
	}
	e := &modelEntry{
		Entry: tracker.Add(ev, wanted, false), transaction: x,
		open: make(map[int]*ack.Delivery), waiting: make(map[int]bool),
	}
	for i := range e.Deliveries() {
		d := &e.Deliveries()[i]
		e.open[d.Subscriber()] = d
	}
	if len(e.open) > 0 {
		x.open++
	}
	m.entries = append(m.entries, e)
}

// finish ends one open delivery.
func (m *model) finish(tracker tracked, random *rand.Rand) {
	e, s := m.anyOpen(random)
	if e == nil {
		return
	}
	dead, attempts := random.IntN(4) == 0, random.IntN(3)
	e.attempts += attempts
	e.owed = e.owed || dead
	tracker.Finish(ack.End{Delivery: m.close(e, s), Recorded: dead, Attempts: attempts})
}

// secure makes debt of one open delivery and of some later ones of the same subscriber.
func (m *model) secure(tracker tracked, random *rand.Rand) {
	first, s := m.anyOpen(random)
	if first == nil {
		return
	}
	var secured []*ack.Delivery
	for _, e := range m.entries {
		if e == first || e.open[s] != nil && e.Event.Position.Compare(first.Event.Position) > 0 && random.IntN(2) == 0 {
			e.owed, e.waiting[s] = true, true
			secured = append(secured, m.close(e, s))
		}
	}
	tracker.Secure(secured)
}

// pay ends some of a subscriber's debt, from its oldest on.
func (m *model) pay(tracker tracked, random *rand.Rand) {
	s := random.IntN(modelSubscribers)
	before := m.owesSince(s)
	for _, e := range m.entries {
		if e.waiting[s] {
			if random.IntN(3) == 0 {
				break
			}
			delete(e.waiting, s)
		}
	}
	after := m.owesSince(s)
	m.ended = m.ended || before != nil && (after == nil || *after != *before)
	tracker.Owes(s, after, after)
}

func (m *model) owesSince(s int) *event.Position {
	for _, e := range m.entries {
		if e.waiting[s] {
			return &e.Event.Position
		}
	}
	return nil
}

func (m *model) close(e *modelEntry, s int) *ack.Delivery {
	m.ended = true // a delivery ends
	d := e.open[s]
	delete(e.open, s)
	if len(e.open) == 0 {
		e.transaction.open--
	}
	return d
}

func (m *model) anyOpen(random *rand.Rand) (*modelEntry, int) {
	var open []*ack.Delivery
	for _, e := range m.entries {
		for s := range modelSubscribers { // not the map's order: a seed has to repeat its life
			if e.open[s] != nil {
				open = append(open, e.open[s])
			}
		}
	}
	if len(open) == 0 {
		return nil, 0
	}
	d := open[random.IntN(len(open))]
	at := slices.IndexFunc(m.entries, func(e *modelEntry) bool { return e.Entry == d.Entry })
	return m.entries[at], d.Subscriber()
}

// prefix is the end of the longest run of whole transactions without an open event.
func (m *model) prefix() event.LSN {
	var prefix event.LSN
	for _, x := range m.transactions {
		if !x.committed || x.open > 0 {
			break
		}
		prefix = max(prefix, x.end)
	}
	return prefix
}

func (m *model) applySettled(got ack.Settled) error {
	finished := m.prefix()
	for s := range modelSubscribers {
		if since := m.owesSince(s); since != nil {
			finished = min(finished, since.Commit)
		}
	}
	finished = max(finished, m.confirmed)
	if got.Secured != m.prefix() || got.Finished != finished {
		return fmt.Errorf("take: finished %d and secured %d, want %d and %d", got.Finished, got.Secured, finished, m.prefix())
	}
	n := 0
	for _, e := range m.entries {
		if len(e.open) > 0 || e.taken {
			continue
		}
		e.taken = true
		n++
		switch {
		case !slices.Contains(got.Entries, e.Entry):
			return fmt.Errorf("take: event %q is missing", e.Event.ID)
		case e.Attempts != e.attempts || e.Owed != e.owed:
			return fmt.Errorf("take: event %q with %d attempts, owed %v, want %d and %v", e.Event.ID, e.Attempts, e.Owed, e.attempts, e.owed)
		}
	}
	if got.Ended != (n > 0 || m.ended) || len(got.Entries) != n {
		return fmt.Errorf("take: %d entries, ended %v, want %d", len(got.Entries), got.Ended, n)
	}
	m.ended = false
	return nil
}

// holdsForDebt checks that within the WAL budget no transaction is let go of which something is waiting.
func (m *model) holdsForDebt(confirm event.LSN) error {
	for _, e := range m.entries {
		if len(e.waiting) > 0 && confirm > e.transaction.commit && confirm > m.confirmed {
			return fmt.Errorf("%d is to be confirmed although event %q of commit %d is waiting", confirm, e.Event.ID, e.transaction.commit)
		}
	}
	return nil
}

func (m *model) record(confirm event.LSN) {
	for _, e := range m.entries {
		e.written = e.taken
	}
	m.confirmed = max(m.confirmed, confirm)
}

// check compares everything that can be asked, and the promises as such.
func (m *model) check(tracker tracked) error {
	confirmed := tracker.Confirmed()
	if confirmed != m.confirmed {
		return fmt.Errorf("confirmed %d, want %d", confirmed, m.confirmed)
	}
	var events int
	var bytes int64
	var received event.Position
	for _, e := range m.entries {
		received = e.Event.Position
		if !e.written {
			events++
			bytes += int64(e.Event.Size())
			if confirmed > e.transaction.commit {
				return fmt.Errorf("confirmed %d passes the commit %d of event %q, which is not recorded", confirmed, e.transaction.commit, e.Event.ID)
			}
		}
		if got, want := tracker.OpenAmong([]event.Identity{e.Event.Identity()})[e.Event.Identity()], len(e.open) > 0; got != want {
			return fmt.Errorf("event %q open: %v, want %v", e.Event.ID, got, want)
		}
	}
	if got := tracker.Passed(); got != m.passed {
		return fmt.Errorf("passed %d, want %d", got, m.passed)
	}
	if gotEvents, gotBytes := tracker.Open(); gotEvents != events || gotBytes != bytes {
		return fmt.Errorf("window holds %d events and %d bytes, want %d and %d", gotEvents, gotBytes, events, bytes)
	}
	if got, want := tracker.HasRoom(), events < modelWindow.Events && bytes < modelWindow.Bytes; got != want {
		return fmt.Errorf("room: %v, want %v", got, want)
	}
	if got := tracker.Received(); got != received {
		return fmt.Errorf("received %v, want %v", got, received)
	}
	for s := range modelSubscribers {
		if err := m.checkSubscriber(tracker, s, received); err != nil {
			return fmt.Errorf("subscriber %d: %w", s, err)
		}
	}
	return m.checkQueue(tracker, events)
}

func (m *model) checkSubscriber(tracker tracked, s int, received event.Position) error {
	open, secured := 0, received
	var oldest *event.Event
	for _, e := range m.entries {
		if e.open[s] == nil {
			continue
		}
		if oldest == nil {
			oldest, secured = e.Event, e.Event.Position
			secured.Ordinal--
		}
		open++
	}
	if n, first := tracker.OpenOf(s); n != open || first != oldest {
		return fmt.Errorf("%d open, the oldest %v, want %d and %v", n, first, open, oldest)
	}
	if got := tracker.Secured(s); got != secured {
		return fmt.Errorf("secured up to %v, want %v", got, secured)
	}
	got, want := tracker.OwesSince(s), m.owesSince(s)
	if (got == nil) != (want == nil) || got != nil && *got != *want {
		return fmt.Errorf("owes since %v, want %v", got, want)
	}
	return nil
}

// checkQueue holds what is kept in memory against what is open: between two transactions that hold
// something there is at most one that does not.
func (m *model) checkQueue(tracker tracked, inWindow int) error {
	holding := 0
	for _, x := range m.transactions {
		if !x.committed || x.open > 0 {
			holding++
		}
	}
	if got, most := strings.Count(tracker.String(), " "), 2*holding; got > most {
		return fmt.Errorf("queue of %d for %d transactions that hold something, want at most %d", got, holding, most)
	}
	if got, want := tracker.Pending(), holding > 0 || inWindow > 0 || m.prefix() > m.confirmed; got != want {
		return fmt.Errorf("pending: %v, want %v", got, want)
	}
	return nil
}
