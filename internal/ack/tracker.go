// Package ack answers one question: up to which LSN may Postgres forget? It knows what is open and
// nothing else; it does no I/O and has no clock. Events come in from package dispatch, outcomes from
// package lane, and the answer goes to the one goroutine that records it (package relay).
package ack

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/slab"
)

// Tracker knows which deliveries are open and the highest LSN below which nothing is. Its positions, on the WAL from old to
// new:
//
//	──┬──────────────┬──────────────┬───────────────────┬──────────────┬──▶
//	  confirmed      finished       secured = prefix    passed         received
//	  recorded: what the oldest     the first that is   all that       the last event
//	  the server     waiting        open begins here    committed      that was added
//	  may forget     delivery                           below it was
//	                 holds (a debt)                     added
//
// Finished is where a debt stops what is confirmed; where that would hold more WAL than is allowed, it is secured that is
// recorded (TakeSettled, Recorded).
//
// An event is in the window from Add until Recorded: what is finished but not yet marked and recorded
// still costs memory, so it still counts. All methods may be called by any goroutine, but Begin, Add,
// Commit and Marker only by the one that reads the stream, and TakeSettled and Recorded only by the one that
// records.
//
// Invariant: Confirmed never passes the commit of a transaction with an open or unrecorded event, and
// never goes back.
type Tracker struct {
	limit Window
	// moved gets a token when there is something to take, room when the window is not full any more.
	moved, room chan struct{}
	full        atomic.Bool // the window is; changes under mu, and is asked for each message of the stream

	mu         sync.Mutex
	oldest     *transaction // in stream order; complete neighbours are merged; guarded by mu
	newest     *transaction // guarded by mu
	current    *transaction // begun and not yet committed; guarded by mu
	received   event.Position
	passed     event.LSN         // everything that committed below it was added; guarded by mu
	prefix     event.LSN         // end of the last transaction that left the queue; guarded by mu
	confirmed  event.LSN         // recorded; guarded by mu
	subs       []sub             // guarded by mu
	settled    []*Entry          // finished and not yet taken; guarded by mu
	ended      bool              // a delivery ended since the last TakeSettled; guarded by mu
	entries    slab.Of[Entry]    // guarded by mu
	deliveries slab.Of[Delivery] // guarded by mu
	spare      *transaction      // to be used again, linked by newer; guarded by mu
	events     int               // in the window; guarded by mu
	bytes      int64             // in the window; guarded by mu
}

// Window bounds what is in memory. An event is admitted while both are below their limit, so a single
// event larger than Bytes passes.
type Window struct {
	Events int
	Bytes  int64
}

// transaction is a run of the stream that ends at end: a transaction, several that are complete, or the
// marker of a keepalive. All of it is guarded by Tracker.mu.
type transaction struct {
	commit, end event.LSN
	committed   bool
	open        int // events with an open delivery
	older       *transaction
	newer       *transaction
}

func (x *transaction) complete() bool { return x.committed && x.open == 0 }

// Entry is one event and what is open of it.
type Entry struct {
	Event *event.Event
	// Attempts is the number of failed attempts over all subscribers, final once the entry was taken.
	Attempts int
	// Owed tells that some delivery was recorded in walpost.owed, so that its row is to be marked only if
	// nothing of it is waiting or dead there any more.
	Owed bool
	// Other tells that some delivery was neither made nor recorded, because another row with the same identity is
	// recorded: the row is not to be marked.
	Other bool

	txn        *transaction
	open       int // deliveries that are not finished; guarded by Tracker.mu
	deliveries []Delivery
}

// Deliveries returns the deliveries of the event, in the order of the subscribers given to Add.
func (e *Entry) Deliveries() []Delivery { return e.deliveries }

// Delivery is one event for one subscriber, from Add until Finish.
type Delivery struct {
	*Entry
	subscriber int
	done       bool      // guarded by Tracker.mu
	older      *Delivery // open deliveries of the same subscriber; guarded by Tracker.mu
	newer      *Delivery // guarded by Tracker.mu
}

// Subscriber is the number that the delivery was added for.
func (d *Delivery) Subscriber() int { return d.subscriber }

// sub is what the tracker knows of a subscriber: the list of its open deliveries, oldest first, and how
// far back its debt reaches. All of it is guarded by Tracker.mu.
type sub struct {
	oldest, newest *Delivery
	open           int
	bytes          int64           // of the open ones
	owed           *event.Position // oldest waiting delivery, nil without debt
	holds          *event.Position // oldest waiting delivery that the server would still send again
	unknown        bool            // no one has looked yet whether there is debt
}

// New returns a tracker for a number of subscribers that starts at the slot's confirmed LSN.
func New(limit Window, subscribers int, confirmed event.LSN) *Tracker {
	t := &Tracker{
		limit:     limit,
		moved:     make(chan struct{}, 1),
		room:      make(chan struct{}, 1),
		prefix:    confirmed,
		confirmed: confirmed,
		subs:      make([]sub, subscribers),
	}
	t.full.Store(!t.fitsLocked())
	return t
}

// Begin opens the transaction whose commit record starts at commit. A transaction that broke off with
// the connection goes on when the server sends it again: then Begin changes nothing.
func (t *Tracker) Begin(commit event.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		if t.current.commit != commit {
			panic(fmt.Sprintf("ack: transaction %v begins inside transaction %v", commit, t.current.commit))
		}
		return
	}
	t.current = t.pushLocked(transaction{commit: commit})
}

// Add takes an event of the transaction in hand that subscribers want. With no subscribers it is
// finished at once. known tells that others want it too and have dealt with it before, so that
// something of it may be owed.
func (t *Tracker) Add(ev *event.Event, subscribers []int, known bool) *Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil {
		panic(fmt.Sprintf("ack: event %v outside a transaction", ev.Position))
	}
	size := ev.Size()
	entry := t.entries.New(size)
	*entry = Entry{Event: ev, Owed: known, txn: t.current, open: len(subscribers), deliveries: t.deliveries.Slice(len(subscribers), size)}
	for i, s := range subscribers {
		entry.deliveries[i] = Delivery{Entry: entry, subscriber: s}
		t.subs[s].push(&entry.deliveries[i])
	}
	t.received = ev.Position
	t.events++
	t.bytes += int64(size)
	t.full.Store(!t.fitsLocked())
	t.current.open++
	if entry.open == 0 {
		t.settleEntryLocked(entry)
	}
	return entry
}

// Commit closes the transaction in hand, whose commit record ends at end.
func (t *Tracker) Commit(end event.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil {
		panic(fmt.Sprintf("ack: commit ending at %v without a transaction", end))
	}
	x := t.current
	t.current = nil
	x.end, x.committed = end, true
	t.passed = max(t.passed, end)
	t.completedLocked(x)
}

// Marker notes the WAL end of a keepalive: once everything before it is finished, nothing up to it is
// needed. Inside a transaction it says nothing and is ignored.
func (t *Tracker) Marker(walEnd event.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		return
	}
	t.passed = max(t.passed, walEnd)
	if t.newest == nil && walEnd <= t.prefix || t.newest != nil && walEnd <= t.newest.end {
		return
	}
	t.completedLocked(t.pushLocked(transaction{commit: walEnd, end: walEnd, committed: true}))
}

// End is how a delivery has ended.
type End struct {
	Delivery *Delivery
	Recorded bool // something of it stands in walpost.owed; else it was delivered
	Other    bool // what stands there is of another row with the same identity
	Attempts int  // failed ones
}

// Finish ends deliveries that were delivered, or that are recorded and will not be sent from the stream any more: dead
// letters, what was paid, and what is owed to a subscriber that has left.
func (t *Tracker) Finish(ends ...End) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range ends {
		e.Delivery.Other = e.Delivery.Other || e.Other
		t.endDeliveryLocked(e.Delivery, e.Recorded, e.Attempts)
	}
}

// Secure ends deliveries that were recorded as waiting: they leave the window, and the position that is
// confirmed stays before the oldest of them as long as the WAL budget allows.
func (t *Tracker) Secure(deliveries []*Delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range deliveries {
		s := &t.subs[d.subscriber]
		if s.owed == nil || d.Event.Position.Compare(*s.owed) < 0 {
			position := d.Event.Position
			s.owed = &position
		}
		if s.holds == nil || d.Event.Position.Compare(*s.holds) < 0 {
			position := d.Event.Position
			s.holds = &position
		}
		t.endDeliveryLocked(d, true, 0)
	}
}

func (t *Tracker) endDeliveryLocked(d *Delivery, recorded bool, attempts int) {
	if d.done {
		panic(fmt.Sprintf("ack: delivery of %q to subscriber %d ended twice", d.Event.ID, d.subscriber))
	}
	d.done = true
	t.subs[d.subscriber].remove(d)
	e := d.Entry
	e.Attempts += attempts
	e.Owed = e.Owed || recorded
	e.open--
	t.ended = true
	if e.open == 0 {
		t.settleEntryLocked(e)
	}
	signal(t.moved)
}

// AwaitOwes lets nothing be confirmed for being finished until Owes has told a subscriber's debt.
func (t *Tracker) AwaitOwes(subscriber int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.subs[subscriber].unknown = true
}

// Owes tells how far back a subscriber's debt reaches; nil means that nothing is waiting. holds is the oldest that the
// server would still send again: what stands below the confirmed position holds nothing back. Secure only ever moves
// them back, so the caller of Owes must have read the debt after its last Secure.
func (t *Tracker) Owes(subscriber int, oldest, holds *event.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.subs[subscriber]
	before := s.holds
	s.owed, s.holds, s.unknown = oldest, holds, false
	if before != nil && (holds == nil || *holds != *before) {
		t.ended = true // paid: a reason to record what may be confirmed now
		signal(t.moved)
	}
}

// HoldsSince returns the position of the oldest waiting delivery of a subscriber that holds the confirmed position back,
// nil if none does.
func (t *Tracker) HoldsSince(subscriber int) *event.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.subs[subscriber].holds
}

// OwesSince returns the position of a subscriber's oldest waiting delivery, nil without debt.
func (t *Tracker) OwesSince(subscriber int) *event.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.subs[subscriber].owed
}

// Passed is what the stream has brought since New: every event that committed below it was added, and is open,
// finished or owed since then for each subscriber that it was routed to. 0 as long as nothing has come.
func (t *Tracker) Passed() event.LSN {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passed
}

// OpenAmong returns those of the events that are open for a subscriber. It looks through the window.
func (t *Tracker) OpenAmong(events []event.Identity) map[event.Identity]bool {
	open := make(map[event.Identity]bool)
	if len(events) == 0 {
		return open
	}
	asked := make(map[event.Identity]bool, len(events))
	for _, of := range events {
		asked[of] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.subs {
		for d := t.subs[i].oldest; d != nil; d = d.newer {
			if of := d.Event.Identity(); asked[of] {
				open[of] = true
			}
		}
	}
	return open
}

// Pressed reports whether the window is full and mainly one subscriber's, so that others wait for it.
func (t *Tracker) Pressed(subscriber int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := &t.subs[subscriber]
	if t.HasRoom() || !t.crowdsLocked(mine) {
		return false
	}
	for i := range t.subs {
		if i != subscriber && t.subs[i].open <= mine.open/2 {
			return true
		}
	}
	return false
}

// Crowds reports whether a quarter of the window, in events or in bytes, is one subscriber's.
func (t *Tracker) Crowds(subscriber int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.crowdsLocked(&t.subs[subscriber])
}

func (t *Tracker) crowdsLocked(s *sub) bool {
	return s.open > 0 && (s.open >= t.limit.Events/4 || s.bytes >= t.limit.Bytes/4)
}

// Secured is the position up to which everything a subscriber wants is finished or owed.
func (t *Tracker) Secured(subscriber int) event.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	oldest := t.subs[subscriber].oldest
	if oldest == nil {
		return t.received
	}
	position := oldest.Event.Position
	position.Ordinal-- // everything before it; of an ordinal 0 that is the transaction's beginning
	return position
}

// settleEntryLocked moves an entry with nothing open to the ones that wait for their mark.
func (t *Tracker) settleEntryLocked(e *Entry) {
	t.settled = append(t.settled, e)
	t.ended = true
	e.txn.open--
	t.completedLocked(e.txn)
	e.txn = nil
	signal(t.moved)
}

// completedLocked merges x with complete neighbours, so that one event that stays open for days does not make
// a list of the millions of transactions behind it, and pops the front.
func (t *Tracker) completedLocked(x *transaction) {
	if !x.complete() {
		return
	}
	if x.newer != nil && x.newer.complete() {
		x.commit, x.end = x.newer.commit, x.newer.end
		t.removeLocked(x.newer)
	}
	if x.older != nil && x.older.complete() {
		x.older.commit, x.older.end = x.commit, x.end
		t.removeLocked(x)
		x = x.older
	}
	if x == t.oldest {
		t.prefix = max(t.prefix, x.end)
		t.removeLocked(x)
		signal(t.moved)
	}
}

// Settled is what TakeSettled found: events to mark, and what may be confirmed once they are.
type Settled struct {
	Entries []*Entry
	// Finished is the end of what is finished: delivered, or dead. Confirming it holds WAL for every
	// subscriber in debt.
	Finished event.LSN
	// Secured is the end of what is finished or recorded as waiting. It is never below Finished.
	Secured event.LSN
	// Ended tells that a delivery ended since the last TakeSettled. Without one there is no reason to write to
	// the database.
	Ended bool
}

// TakeSettled returns all that has settled since the last call. It does not leave the window before Recorded.
func (t *Tracker) TakeSettled() Settled {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Settled{Entries: t.settled, Finished: t.prefix, Secured: t.prefix, Ended: t.ended}
	for i := range t.subs {
		if t.subs[i].unknown {
			s.Finished = t.confirmed
		}
		if holds := t.subs[i].holds; holds != nil {
			// The server sends a transaction again if its commit record starts at or after the position
			// that is confirmed, so the start itself keeps the transaction and lets go all before it.
			s.Finished = min(s.Finished, holds.Commit)
		}
	}
	s.Finished = max(s.Finished, t.confirmed)
	t.settled, t.ended = nil, false
	return s
}

// Recorded lets what TakeSettled returned out of the window and confirm be confirmed: one of the two positions
// that TakeSettled returned.
func (t *Tracker) Recorded(s Settled, confirm event.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range s.Entries {
		t.events--
		t.bytes -= int64(e.Event.Size())
	}
	t.confirmed = max(t.confirmed, confirm)
	t.full.Store(!t.fitsLocked())
	if t.HasRoom() {
		signal(t.room)
	}
}

// Confirmed is the LSN to tell the server: everything below it is finished, marked and recorded.
func (t *Tracker) Confirmed() event.LSN {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.confirmed
}

// Pending reports whether something is between reception and confirmation, so that the confirmed LSN
// can be expected to move soon.
func (t *Tracker) Pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.events > 0 || t.oldest != nil || t.prefix > t.confirmed
}

// HasRoom reports whether the window takes another event.
func (t *Tracker) HasRoom() bool { return !t.full.Load() }

func (t *Tracker) fitsLocked() bool { return t.events < t.limit.Events && t.bytes < t.limit.Bytes }

// Room gets a token when the window may have room again. A token can be stale: ask HasRoom.
func (t *Tracker) Room() <-chan struct{} { return t.room }

// Moved gets a token when TakeSettled may have something new to return.
func (t *Tracker) Moved() <-chan struct{} { return t.moved }

// Received is the position of the last event that was added.
func (t *Tracker) Received() event.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.received
}

// Open is the size of the window's content.
func (t *Tracker) Open() (events int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.events, t.bytes
}

// OpenDeliveries returns how many deliveries are neither finished nor owed. What is finished and not recorded yet is
// in the window, and is none of them.
func (t *Tracker) OpenDeliveries() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.subs {
		n += t.subs[i].open
	}
	return n
}

// OpenOf returns how many deliveries of a subscriber are open and the event of the oldest, or nil.
func (t *Tracker) OpenOf(subscriber int) (int, *event.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.subs[subscriber]
	if s.oldest == nil {
		return 0, nil
	}
	return s.open, s.oldest.Event
}

// String draws the queue for tests: "confirmed|prefix| transactions", each as commit-end with the number
// of open events, "…" for one that has not committed.
func (t *Tracker) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d|%d|", t.confirmed, t.prefix)
	for x := t.oldest; x != nil; x = x.newer {
		if !x.committed {
			fmt.Fprintf(&b, " %d-…(%d)", x.commit, x.open)
			continue
		}
		fmt.Fprintf(&b, " %d-%d(%d)", x.commit, x.end, x.open)
	}
	return b.String()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
