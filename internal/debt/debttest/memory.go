// Package debttest is for tests of parts that owe: Memory is a debt without a database, for virtual time
// and models, and Run holds it and debt.Store to the same contract.
package debttest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

// Memory is a lane.Ower that forgets everything with the process. It is safe for concurrent use, starts
// nothing and has no clock, so it belongs into a synctest bubble as into any other test.
type Memory struct {
	changes     int64 // by people; guarded by mu
	mu          sync.Mutex
	subscribers map[string]*account    // guarded by mu
	marked      map[event.Identity]int // attempts of marked events; guarded by mu
	fail        []error                // of the next calls; guarded by mu
	onMark      func(event.Identity)   // nil for a debt whose events need a Row to be marked; guarded by mu
}

var _ lane.Ower = (*Memory)(nil)

// account is what one subscriber is owed.
type account struct {
	rows    map[event.Identity]*row
	order   []*row                  // all of them, by position
	paid    map[event.Identity]*row // those that are paid
	secured event.Position
	paused  bool
}

type row struct {
	lane.Owed
	state lane.State
	mark  bool // paid, and its row is still to be marked
}

// NewMemory returns an empty debt.
func NewMemory() *Memory {
	return &Memory{subscribers: make(map[string]*account), marked: make(map[event.Identity]int)}
}

// FailNext lets the next calls of the interface, one for each error, change nothing and return it.
func (m *Memory) FailNext(errs ...error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = append(m.fail, errs...)
}

// EveryEventHasARow lets events be marked whether they have a Row or not, and calls fn with each that is marked.
// fn must not call the debt.
func (m *Memory) EveryEventHasARow(fn func(event.Identity)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onMark = fn
}

func (m *Memory) hasRowLocked(e *event.Event) bool { return e.Row != "" || m.onMark != nil }

func (m *Memory) setMarkLocked(of event.Identity, attempts int) {
	_, marked := m.marked[of]
	m.marked[of] += attempts
	if m.onMark != nil && !marked {
		m.onMark(of)
	}
}

// Add makes a person owe an event to a subscriber, waiting or dead, unless it is recorded already.
func (m *Memory) Add(subscriber string, e *event.Event, state lane.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.ofLocked(subscriber); a.rows[e.Identity()] == nil {
		a.insert(&row{Owed: lane.Owed{Event: e}, state: state})
		m.changes++
	}
}

// Redrive makes the dead letters of a subscriber wait, as a person would.
func (m *Memory) Redrive(subscriber string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.ofLocked(subscriber).order {
		if r.state == lane.StateDead {
			r.state, r.NextAttempt, r.FirstFailure = lane.StateWaiting, time.Time{}, time.Time{}
		}
	}
	m.changes++
}

// Pause sets whether a person has paused the subscriber.
func (m *Memory) Pause(subscriber string, paused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ofLocked(subscriber).paused = paused
	m.changes++
}

// Discard gives a delivery up, as a person would.
func (m *Memory) Discard(subscriber string, e *event.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.ofLocked(subscriber)
	if r := a.rows[e.Identity()]; r != nil && r.state != lane.StatePaid {
		r.state, r.mark = lane.StatePaid, m.hasRowLocked(r.Event)
		a.paid[e.Identity()] = r
	}
	m.changes++
}

// Fails reports whether a call to come is to fail, as FailNext said.
func (m *Memory) Fails() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.fail) > 0
}

// Rename gives what a subscriber is owed to another name.
func (m *Memory) Rename(before, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers[name] = m.ofLocked(before)
	delete(m.subscribers, before)
}

// Owed returns the subscriber's deliveries in a state, in the order of their positions.
func (m *Memory) Owed(subscriber string, state lane.State) []lane.Owed {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ofLocked(subscriber).in(state)
}

// Secured returns the highest position that Paid was given.
func (m *Memory) Secured(subscriber string) event.Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ofLocked(subscriber).secured
}

// Marked tells whether the event's row is marked, and the attempts added to it.
func (m *Memory) Marked(e *event.Event) (attempts int, marked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	attempts, marked = m.marked[e.Identity()]
	return attempts, marked
}

// Load implements lane.Ower.
func (m *Memory) Load(ctx context.Context, subscriber string, secured event.Position, limit lane.Limit) (lane.Debt, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return lane.Debt{}, err
	}
	a := m.ofLocked(subscriber)
	debt := lane.Debt{Keys: make(map[string]int), Bounds: make(map[string]event.LSN), Paused: a.paused, Change: m.changes}
	waiting := 0
	for _, r := range a.order {
		bound := event.Position{Epoch: r.Event.Position.Epoch, Commit: r.Event.Bound}
		ahead := bound.Compare(event.Position{Epoch: secured.Epoch, Commit: secured.Commit}) > 0 && r.Event.Bound != 0
		debt.Beyond = debt.Beyond || ahead || r.Event.Position.Compare(secured) > 0
		if ahead {
			debt.Bound = max(debt.Bound, r.Event.Bound)
		}
		if r.state != lane.StateWaiting {
			continue
		}
		waiting++
		debt.Keys[r.Event.Key]++
		if ahead {
			debt.Bounds[r.Event.Key] = max(debt.Bounds[r.Event.Key], r.Event.Bound)
		}
	}
	if debt.More = len(debt.Keys) > limit.Keys || waiting > limit.Rows; debt.More {
		debt.Keys, debt.Bounds = nil, nil
	}
	return debt, nil
}

// Count implements lane.Ower.
func (m *Memory) Count(ctx context.Context, subscriber string, after event.Position, limit lane.Limit) (lane.Counted, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return lane.Counted{}, err
	}
	a := m.ofLocked(subscriber)
	counted := CountPage(func(yield func(*event.Event) bool) {
		for _, r := range a.order[a.after(after):] {
			if r.state == lane.StateWaiting && !yield(r.Event) {
				return
			}
		}
	}, after, limit)
	counted.Change = m.changes
	return counted, nil
}

// CountPage counts a page of waiting events, which come in order and are beyond after: lane.Ower.Count of a debt in memory.
func CountPage(waiting iter.Seq[*event.Event], after event.Position, limit lane.Limit) lane.Counted {
	counted := lane.Counted{Keys: make(map[string]int), Reached: after}
	rows := 0
	for e := range waiting {
		if counted.More = rows == limit.Rows; counted.More {
			break
		}
		rows++
		counted.Reached = e.Position
		if counted.Keys[e.Key] > 0 || len(counted.Keys) <= limit.Keys {
			counted.Keys[e.Key]++
		}
	}
	return counted
}

// Record implements lane.Ower.
func (m *Memory) Record(ctx context.Context, subscriber string, owed []lane.Owed) ([]int, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	a := m.ofLocked(subscriber)
	a.record(owed)
	var others []int
	for i, o := range owed {
		if isOther(a.rows[o.Event.Identity()].Event, o.Event) {
			others = append(others, i)
		}
	}
	return others, nil
}

// isOther reports whether two events with one identity are those of two rows, or of two messages.
func isOther(recorded, e *event.Event) bool {
	if recorded.Row != "" || e.Row != "" {
		return !mayBeOneRow(recorded, e)
	}
	commits := recorded.Bound == 0 && e.Bound == 0 && recorded.Position.Epoch == e.Position.Epoch
	return commits && recorded.Position != e.Position
}

func mayBeOneRow(a, b *event.Event) bool { return a.Row == b.Row || a.Row == "" || b.Row == "" }

// Dead implements lane.Ower.
func (m *Memory) Dead(ctx context.Context, subscriber string, letter lane.Owed) (other bool, err error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return false, err
	}
	return m.ofLocked(subscriber).recordDead(letter), nil
}

// RecordRows is that of debt.Store, as are PlaceRows, RecordDead, MarkLater and Commits: for a repair. There is no transaction
// here: tx may be nil, and FailNext, which would end the transaction, is of the other calls.
func (m *Memory) RecordRows(_ context.Context, _ pgx.Tx, subscriber string, owed []lane.Owed) (others int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.ofLocked(subscriber)
	a.place(owed)
	a.record(owed)
	for _, o := range owed {
		if isOther(a.rows[o.Event.Identity()].Event, o.Event) {
			others++
		}
	}
	return others, nil
}

// PlaceRows is that of debt.Store.
func (m *Memory) PlaceRows(_ context.Context, _ pgx.Tx, subscriber string, owed []lane.Owed) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ofLocked(subscriber).place(owed)
	return nil
}

// place moves what waits to the place of the first delivery with its identity.
func (a *account) place(owed []lane.Owed) {
	seen := make(map[event.Identity]bool)
	for _, o := range owed {
		if r := a.rows[o.Event.Identity()]; r != nil && r.state == lane.StateWaiting && !seen[o.Event.Identity()] {
			r.InTableOrder = o.InTableOrder
			a.move(r, o.Event.Position, o.Event.Bound)
		}
		seen[o.Event.Identity()] = true
	}
}

// RecordDead is that of debt.Store.
func (m *Memory) RecordDead(_ context.Context, _ pgx.Tx, subscriber string, letter lane.Owed) (other bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ofLocked(subscriber).recordDead(letter), nil
}

// MarkLater is that of debt.Store: the events are owed to no one, and only their rows are still to be marked.
func (m *Memory) MarkLater(_ context.Context, _ pgx.Tx, events []lane.Owed) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.ofLocked("")
	for _, o := range events {
		id := o.Event.Identity()
		if a.rows[id] == nil {
			a.insert(&row{Owed: o, state: lane.StatePaid})
			a.paid[id] = a.rows[id]
		}
		a.rows[id].mark = true
	}
	return nil
}

// Commits is that of debt.Store.
func (m *Memory) Commits(_ context.Context, _ pgx.Tx, epoch int32, events []*event.Event) (map[int]event.Position, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	commits := make(map[int]event.Position)
	for i, e := range events {
		real := false
		for _, a := range m.subscribers {
			r := a.rows[e.Identity()]
			if r == nil || r.Event.Position.Epoch != epoch || real {
				continue
			}
			real = r.Event.Bound == 0
			if last, ok := commits[i]; real || !ok || r.Event.LastOf().Compare(last) < 0 {
				commits[i] = r.Event.LastOf()
			}
		}
	}
	return commits, nil
}

// Waiting implements lane.Ower.
func (m *Memory) Waiting(ctx context.Context, subscriber string, query lane.Query) (lane.WaitingPage, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return lane.WaitingPage{}, err
	}
	if query.Order == lane.ByKey && query.Change != m.changes {
		return lane.WaitingPage{}, lane.ErrChanged
	}
	var page lane.WaitingPage
	size := int64(0)
	keptBack := make(map[string]bool) // keys
	for _, key := range query.Without {
		keptBack[key] = true
	}
	inHand := make(map[string]bool)
	for _, key := range query.InHand {
		inHand[key] = true
	}
	a := m.ofLocked(subscriber)
	if query.WithoutBlocked {
		for _, o := range a.in(lane.StateDead) {
			keptBack[o.Event.Key] = true
		}
	}
	first, examined := a.after(query.After), 0
	for i, r := range a.order {
		if r.state != lane.StateWaiting {
			continue
		}
		late := !query.Due.IsZero() && r.NextAttempt.After(query.Due)
		if query.Order == lane.ByKey && !r.FirstFailure.IsZero() && (late || i < first && !inHand[r.Event.Key]) {
			keptBack[r.Event.Key] = true
		}
		if i < first {
			continue
		}
		if page.More = query.Examine > 0 && examined == query.Examine; page.More {
			return page, nil
		}
		examined++
		if keptBack[r.Event.Key] || query.Order == lane.None && late {
			page.Reached = r.Event.Position
			continue
		}
		size += int64(r.Event.Size())
		if len(page.Owed) > 0 && (len(page.Owed) >= query.Limit || query.Bytes > 0 && size > query.Bytes) {
			page.More = true
			return page, nil
		}
		page.Owed, page.Reached = append(page.Owed, r.Owed), r.Event.Position
	}
	return page, nil
}

// Sample implements lane.Ower.
func (m *Memory) Sample(ctx context.Context, subscriber string, order lane.Ordering, pick float64) ([]lane.Owed, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	var due []lane.Owed
	for _, r := range m.ofLocked(subscriber).order {
		key := r.Event.Key
		if order != lane.ByKey {
			key = r.Event.Source + " " + r.Event.ID
		}
		if r.state != lane.StateWaiting || seen[key] {
			continue
		}
		seen[key] = true
		if !r.NextAttempt.After(time.Now()) {
			due = append(due, r.Owed)
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	n := int(pick * float64(len(due)))
	return due[n : n+1], nil
}

// Known implements lane.Ower.
func (m *Memory) Known(ctx context.Context, subscriber string, events []*event.Event) (map[int]lane.Recorded, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	known := make(map[int]lane.Recorded)
	for i, e := range events {
		if r := m.ofLocked(subscriber).rows[e.Identity()]; r != nil {
			known[i] = lane.Recorded{State: r.state, MadeUp: r.Event.Bound != 0 && !r.InTableOrder, Other: isOther(r.Event, e)}
		}
	}
	return known, nil
}

// FindMarked implements lane.Ower.
func (m *Memory) FindMarked(ctx context.Context, events []*event.Event) (marked []int, err error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	for i, e := range events {
		if _, ok := m.marked[e.Identity()]; ok {
			marked = append(marked, i)
		}
	}
	return marked, nil
}

// Paid implements lane.Ower.
func (m *Memory) Paid(ctx context.Context, subscriber string, paid []lane.Paid, secured event.Position) error {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return err
	}
	a := m.ofLocked(subscriber)
	if a.secured.Compare(secured) < 0 {
		a.secured = secured
	}
	for _, p := range paid {
		if r := a.rows[p.Event.Identity()]; r != nil {
			r.state, r.mark, r.Attempts = lane.StatePaid, m.hasRowLocked(r.Event), p.Attempts
			a.paid[p.Event.Identity()] = r
		}
	}
	a.removePaid()
	return nil
}

// MarkRows is debt.Store.MarkRows.
func (m *Memory) MarkRows(ctx context.Context, query debt.MarkQuery) (debt.MarkRound, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return debt.MarkRound{}, err
	}
	var round debt.MarkRound
	var unmarked []*row
	var events []event.Identity
	for _, a := range m.subscribers {
		for id, r := range a.paid {
			bound := event.Position{Epoch: r.Event.Position.Epoch, Commit: r.Event.LastOf().Commit}
			if r.mark && bound.Compare(event.Position{Epoch: query.Passed.Epoch, Commit: query.Passed.Commit}) < 0 {
				unmarked, events = append(unmarked, r), append(events, id)
			}
		}
	}
	open := query.Open(events)
	for i, r := range unmarked {
		if open[events[i]] {
			round.Left++
			continue
		}
		round.Done++
		r.mark = false
		if !m.owesLocked(events[i]) {
			m.setMarkLocked(events[i], r.Attempts)
		}
	}
	for name, a := range m.subscribers {
		if name == "" { // MarkLater keeps there what is owed to no one
			a.secured = event.Position{Epoch: math.MaxInt32}
		}
		a.removePaid()
	}
	return round, nil
}

// Mark marks the row of an event, as a relay does when every subscriber that it was routed to has finished it,
// unless something of it is owed.
func (m *Memory) Mark(e *event.Event, attempts int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, marked := m.marked[e.Identity()]; !marked && m.hasRowLocked(e) && !m.owesLocked(e.Identity()) {
		m.setMarkLocked(e.Identity(), attempts)
	}
}

// Failed implements lane.Ower.
func (m *Memory) Failed(ctx context.Context, subscriber string, owed []lane.Owed) error {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return err
	}
	for _, o := range owed {
		if r := m.ofLocked(subscriber).rows[o.Event.Identity()]; r != nil && r.state == lane.StateWaiting {
			o.Event, o.InTableOrder = r.Event, r.InTableOrder // it fails where it stands
			r.Owed = o
		}
	}
	return nil
}

// Blocked implements lane.Ower.
func (m *Memory) Blocked(ctx context.Context, subscriber string, limit int) ([]string, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	var keys []string
	for _, o := range m.ofLocked(subscriber).in(lane.StateDead) {
		keys = append(keys, o.Event.Key)
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	return keys[:min(len(keys), limit+1)], nil
}

// Changes implements lane.Ower.
func (m *Memory) Changes(ctx context.Context, subscriber string) (lane.Changes, error) {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return lane.Changes{}, err
	}
	a := m.ofLocked(subscriber)
	look := lane.Changes{Paused: a.paused, Change: m.changes}
	if i := slices.IndexFunc(a.order, func(r *row) bool { return r.state == lane.StateWaiting }); i >= 0 {
		oldest := a.order[i].Event
		look.Any, look.Oldest, look.OldestAt = true, oldest.Position, oldest.CommittedAt
		look.Holds = &look.Oldest
	}
	return look, nil
}

// Unwanted implements lane.Ower.
func (m *Memory) Unwanted(ctx context.Context, subscriber, _ string) error {
	defer m.mu.Unlock()
	if err := m.begin(ctx); err != nil {
		return err
	}
	m.ofLocked(subscriber).paused = true
	return nil
}

// begin locks the mutex, which its caller unlocks, and returns why the call is to fail.
func (m *Memory) begin(ctx context.Context) error {
	m.mu.Lock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(m.fail) > 0 {
		err := m.fail[0]
		m.fail = m.fail[1:]
		return err
	}
	return nil
}

// ofLocked returns a subscriber's account.
func (m *Memory) ofLocked(subscriber string) *account {
	a := m.subscribers[subscriber]
	if a == nil {
		a = &account{rows: make(map[event.Identity]*row), paid: make(map[event.Identity]*row)}
		m.subscribers[subscriber] = a
	}
	return a
}

// owesLocked tells whether anything of an event is owed to anyone.
func (m *Memory) owesLocked(id event.Identity) bool {
	for _, a := range m.subscribers {
		if r := a.rows[id]; r != nil && r.state != lane.StatePaid {
			return true
		}
	}
	return false
}

// after is the index of the first row beyond a position.
func (a *account) after(position event.Position) int {
	i, _ := slices.BinarySearchFunc(a.order, position, func(r *row, p event.Position) int {
		if r.Event.Position.Compare(p) <= 0 {
			return -1
		}
		return 1
	})
	return i
}

// record makes waiting what is not recorded yet, and gives what stands at a made-up position the real one.
func (a *account) record(owed []lane.Owed) {
	for _, o := range owed {
		r := a.rows[o.Event.Identity()]
		switch {
		case r == nil:
			a.insert(&row{Owed: o, state: lane.StateWaiting})
		case r.Event.Bound != 0 && o.Event.Bound == 0 && r.state != lane.StatePaid && !r.InTableOrder && mayBeOneRow(r.Event, o.Event):
			a.move(r, o.Event.Position, 0)
		}
	}
}

// move gives a delivery another position.
func (a *account) move(r *row, position event.Position, bound event.LSN) {
	a.remove(r.Event.Identity())
	moved := *r.Event
	moved.Position, moved.Bound = position, bound
	r.Event = &moved
	a.insert(r)
}

func (a *account) recordDead(letter lane.Owed) (other bool) {
	if r := a.rows[letter.Event.Identity()]; r != nil && isOther(r.Event, letter.Event) {
		return true
	}
	letter.NextAttempt = time.Time{}
	a.remove(letter.Event.Identity())
	a.insert(&row{Owed: letter, state: lane.StateDead})
	return false
}

func (a *account) insert(r *row) {
	a.rows[r.Event.Identity()] = r
	a.order = slices.Insert(a.order, a.after(r.Event.Position), r)
}

func (a *account) remove(id event.Identity) {
	r := a.rows[id]
	if r == nil {
		return
	}
	delete(a.rows, id)
	delete(a.paid, id)
	// A test may give several events one position: r is somewhere before what is beyond it.
	i := a.after(r.Event.Position) - 1
	for a.order[i] != r {
		i--
	}
	if i == 0 { // a large debt is paid from the front, and the rest must not be moved each time
		a.order = a.order[1:]
		return
	}
	a.order = slices.Delete(a.order, i, i+1)
}

// removePaid removes what was paid, whose row needs no mark any more, and that the subscriber is past.
func (a *account) removePaid() {
	for id, r := range a.paid {
		if !r.mark && r.Event.LastOf().Compare(a.secured) <= 0 {
			a.remove(id)
		}
	}
}

// in returns the deliveries in a state, in order.
func (a *account) in(state lane.State) []lane.Owed {
	var owed []lane.Owed
	for _, r := range a.order {
		if r.state == state {
			owed = append(owed, r.Owed)
		}
	}
	return owed
}

// String lists everything that is recorded, for tests that compare states.
func (m *Memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m.subscribers)) {
		a := m.subscribers[name]
		fmt.Fprintf(&b, "%s (%v, paused %v):", name, a.secured, a.paused)
		for _, r := range a.order {
			fmt.Fprintf(&b, " %s %q at %v, mark %v;", r.state, r.Event.ID, r.Event.Position, r.mark)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Unmarked counts the paid deliveries whose rows are still to be marked.
func (m *Memory) Unmarked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, a := range m.subscribers {
		for _, r := range a.paid {
			if r.mark {
				n++
			}
		}
	}
	return n
}
