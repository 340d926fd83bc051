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
	attempts    int
	dead        bool
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
	tracker.Commit(x.end)
}

// marker is a transaction without events, unless it says nothing.
func (m *model) marker(tracker tracked, random *rand.Rand) {
	m.lsn += event.LSN(random.IntN(3) * 8)
	tracker.Marker(m.lsn)
	if !m.inside {
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
		Entry: tracker.Add(ev, wanted), transaction: x,
		open: make(map[int]*ack.Delivery),
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
	e.dead = e.dead || dead
	tracker.Finish(m.close(e, s), dead, attempts)
}

func (m *model) close(e *modelEntry, s int) *ack.Delivery {
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

func (m *model) take(got ack.Settled) error {
	if got.Confirm != m.prefix() {
		return fmt.Errorf("take: confirm %d, want %d", got.Confirm, m.prefix())
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
		case e.Attempts != e.attempts || e.Dead != e.dead:
			return fmt.Errorf("take: event %q with %d attempts, dead %v, want %d and %v", e.Event.ID, e.Attempts, e.Dead, e.attempts, e.dead)
		}
	}
	if got.Finished != (n > 0) || len(got.Entries) != n {
		return fmt.Errorf("take: %d entries, finished %v, want %d", len(got.Entries), got.Finished, n)
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
		if err := m.checkSubscriber(tracker, s); err != nil {
			return fmt.Errorf("subscriber %d: %w", s, err)
		}
	}
	return m.checkQueue(tracker, events)
}

func (m *model) checkSubscriber(tracker tracked, s int) error {
	open := 0
	var oldest *event.Event
	for _, e := range m.entries {
		if e.open[s] == nil {
			continue
		}
		if oldest == nil {
			oldest = e.Event
		}
		open++
	}
	if n, first := tracker.OpenOf(s); n != open || first != oldest {
		return fmt.Errorf("%d open, the oldest %v, want %d and %v", n, first, open, oldest)
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
