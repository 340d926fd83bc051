package relay

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/wal"
)

// The world of the model: a server, receivers and processes without Postgres, under virtual time. What
// happens in it is told in model_test.go.

// modelServer is a server as the relay sees it: transactions in commit order, and what survives a crash.
type modelServer struct {
	mu        sync.Mutex
	commits   []modelTxn
	end       event.LSN         // of the WAL
	confirmed event.LSN         // what the slot has
	recorded  event.LSN         // walpost.slots.confirmed
	known     map[string]stored // walpost.subscribers
	debt      *debttest.Memory
	onMark    func(event.Identity) // of each mark
	ids       int
	used      int             // event ids since they began at 1 the last time
	refuse    int             // so many writes of marks and positions fail
	lost      repairKind      // how the slot was lost; the next life repairs it
	window    ack.Window      // of its relays
	lane      lane.Options    // and of their lanes, but for the ordering
	largePage bool            // a page of a debt is as large as a lane asks for; false: so small that a debt has many
	deleted   map[string]bool // rows, by the ids of the history; owned by it
	added     int64           // rows that people have added
	crashIn   int             // so many moments before and after writes, until the process dies; 0 for never
	log       *slog.Logger    // what happens in the world is logged with what the relay logs, at Debug
}

type modelTxn struct {
	commit, end event.LSN
	events      []modelEvent
}

// modelEvent has an id of its own, by which the history knows it and which counts up, and one that the relay sees,
// which may have been another event's.
type modelEvent struct{ id, used, key, eventType string }

// commit writes a transaction of so many events of a few keys.
func (s *modelServer) commit(r *rand.Rand, events, keys int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	txn := modelTxn{commit: s.end}
	for range events {
		s.ids++
		s.used++
		txn.events = append(txn.events, modelEvent{fmt.Sprintf("e%07d", s.ids), fmt.Sprint(s.used), fmt.Sprintf("k%d", r.IntN(keys)), fmt.Sprintf("t%d", r.IntN(3))})
	}
	s.end += event.LSN(8 * (1 + r.IntN(1000)))
	txn.end = s.end
	s.commits = append(s.commits, txn)
	s.log.Debug("world: committed", "lsn", txn.commit, "end", txn.end, "events", txn.events)
}

// modelSubscriber is what lives outside of the relay: a receiver with moods, and what it has got.
type modelSubscriber struct {
	name     string
	ordering lane.Ordering
	refuses  int          // one event in so many is none that it can read; 0 takes all
	filter   event.Filter // of the configuration; owned by the history
	spans    []span       // what is for it; owned by the history
	mu       sync.Mutex
	down     bool            // fails everything
	hang     bool            // does not answer before the deadline
	bad      map[string]bool // keys that it refuses
	asks     string          // the key for which it asks to be left alone for askedFor
	tried    map[string]time.Time
	got      []string // ids, in the order of their effects
	lives    []int    // where in got the lives of the relay begin
	had      sync.Map // ids that it has got, for who must not take mu
	keys     map[string]string
	busy     map[string]bool // keys in a call: never two at once
	pipes    bool            // it reports delivery by delivery
	silent   int             // of so many one is not reported before it is aborted; 0 for none
	repeats  map[string]bool // ids that may come again without a crash
	over     []string        // broken promises
	// Owned by the history, by id:
	repaired  map[string]bool // a repair or a person may bring it
	again     map[string]bool // a person may bring it again
	moved     map[string]bool // a person has given it another place
	ended     map[string]bool // a person has ended it
	lacks     map[string]bool // it was deleted before the subscriber began
	beginning bool            // with all rows
}

// span is a time in which a subscriber was in the configuration with one filter, by what committed in it.
type span struct {
	from, until event.LSN // until is exclusive, 0 for one that lasts
	filter      event.Filter
}

// changes notes the configuration of a start at the end of the WAL.
func (m *modelSubscriber) changes(end event.LSN, away bool) {
	if last := len(m.spans) - 1; last >= 0 && m.spans[last].until == 0 {
		if !away && m.spans[last].filter.Equal(m.filter) {
			return
		}
		m.spans[last].until = end
	}
	if !away {
		from := end
		if m.beginning && len(m.spans) == 0 {
			from = 0
		}
		m.spans = append(m.spans, span{from: from, filter: m.filter})
	}
}

// due tells whether an event must come to the subscriber, and whether it may: what committed before a change of the
// filter can come by the new one as well.
func (m *modelSubscriber) due(commit event.LSN, e modelEvent) (must, may bool) {
	if m.lacks[e.id] {
		return false, true // the stream may still bring it
	}
	eventType := e.eventType
	for i, s := range m.spans {
		if commit < s.from || s.until != 0 && commit >= s.until {
			continue
		}
		must = s.filter.Takes("model", eventType)
		later := i+1 < len(m.spans) && m.spans[i+1].from == s.until
		return must, must || later && m.spans[i+1].filter.Takes("model", eventType)
	}
	return false, false
}

// unreadable reports whether the subscriber can never take an event.
func (m *modelSubscriber) unreadable(id string) bool {
	n, _ := strconv.Atoi(id[1:])
	return m.refuses > 0 && n%m.refuses == 0
}

// within is what the subscriber's order is kept within.
func (m *modelSubscriber) within(key, id string) string {
	switch m.ordering {
	case lane.Total:
		return ""
	case lane.None:
		return id
	}
	return key
}

func (m *modelSubscriber) handle(ctx context.Context, alive func() bool, d subscriber.Delivery) error {
	within := m.within(d.Key, d.OccurredAt)
	m.enter(within, d)
	defer m.leave(within)
	return m.attempt(ctx, alive, d)
}

// attempt is what the subscriber's mood makes of a delivery.
func (m *modelSubscriber) attempt(ctx context.Context, alive func() bool, d subscriber.Delivery) error {
	m.mu.Lock()
	down, hang, bad, asks := m.down, m.hang, m.bad[d.Key], m.asks == d.Key
	m.mu.Unlock()
	wait := time.Millisecond
	if hang {
		wait = time.Hour
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case !alive():
		return errors.New("the process is dead")
	case asks:
		return subscriber.RetryAfter(errors.New("429 Too Many Requests"), askedFor)
	case down, bad:
		return errors.New("not now")
	case m.unreadable(d.OccurredAt):
		return subscriber.Permanent(errors.New("no event that it can read"))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.got = append(m.got, d.OccurredAt)
	m.keys[d.OccurredAt] = d.Key
	m.had.Store(d.OccurredAt, true)
	return nil
}

// modelProcess is one life of the relay.
type modelProcess struct {
	server    *modelServer
	crash     context.CancelFunc // everything at once
	stop      context.CancelFunc // softly
	yield     context.CancelFunc // because the slot is lost
	dead      context.Context
	ended     chan struct{}
	tracker   *ack.Tracker
	budget    int64
	plant     *plant
	subs      []*modelSubscriber
	members   []member // subs, and those that have left
	lanes     []*lane.Lane
	run       context.Context // ends with a stop
	received  func() event.LSN
	replaying *tasks       // what has to end before the process has
	replays   []sync.Mutex // held while one is under way, by lane
}

// modelOutlet is a subscriber as one process sees it.
type modelOutlet struct {
	*modelSubscriber
	process *modelProcess
}

func (o modelOutlet) Name() string      { return o.name }
func (o modelOutlet) Wants(string) bool { return true }
func (o modelOutlet) Handle(ctx context.Context, d subscriber.Delivery) error {
	err := o.handle(ctx, func() bool { return o.process.dead.Err() == nil }, d)
	o.process.server.log.Debug("world: handled", "subscriber", o.name, "id", d.OccurredAt, "key", d.Key, "position", d.Position, "replay", d.Replay, "err", err)
	return err
}
func (o modelOutlet) HandleBatch(ctx context.Context, ds []subscriber.Delivery) error {
	failed := make(map[int]error)
	badKeys := make(map[string]bool)
	for i, d := range ds {
		if badKeys[o.within(d.Key, d.OccurredAt)] {
			failed[i] = subscriber.ErrHeld
			continue
		}
		if err := o.Handle(ctx, d); err != nil {
			failed[i], badKeys[o.within(d.Key, d.OccurredAt)] = err, !subscriber.IsPermanent(err)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &subscriber.BatchError{Failed: failed}
}

// mortal is the debt as a process reaches it: not at all once it is dead.
type mortal struct {
	lane.Ower
	process *modelProcess
	plant   *plant
}

var errFull = errors.New("no space left on device")

func (s *modelServer) refuses() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse == 0 {
		return false
	}
	s.refuse--
	return true
}

var errDead = errors.New("the process is dead")

// write does what changes the debt. The process may die before it, or before it has the answer.
func (m mortal) write(do func() error) error {
	if m.process.dies() {
		return errDead
	}
	err := do()
	if m.process.dies() {
		return errDead
	}
	return err
}

func (m mortal) Load(ctx context.Context, sub string, secured event.Position, limit lane.Limit) (lane.Debt, error) {
	found, err := m.Ower.Load(ctx, sub, secured, m.page(limit))
	if m.plant.forgetsBound {
		found.Bound, found.Bounds = 0, nil
	}
	return found, err
}

// fewAtOnce and the rows that a read examines are so small that a debt of a model has many pages.
var fewAtOnce = lane.Limit{Keys: 5, Rows: 6}

// page is how much is counted at once.
func (m mortal) page(limit lane.Limit) lane.Limit {
	if m.process.server.largePage {
		return limit
	}
	return fewAtOnce
}

func (m mortal) Count(ctx context.Context, sub string, after event.Position, limit lane.Limit) (lane.Counted, error) {
	return m.Ower.Count(ctx, sub, after, m.page(limit))
}

// Changes tells what holds WAL as the table does: nothing below what is recorded as confirmed.
func (m mortal) Changes(ctx context.Context, sub string) (lane.Changes, error) {
	changes, err := m.Ower.Changes(ctx, sub)
	if err != nil || m.plant.holdsConfirmed {
		return changes, err
	}
	s := m.process.server
	s.mu.Lock()
	recorded := event.Position{Epoch: 1, Commit: s.recorded}
	s.mu.Unlock()
	changes.Holds = nil
	for _, owed := range s.debt.Owed(sub, lane.StateWaiting) {
		if at := owed.Event.Position; at.Compare(recorded) >= 0 {
			changes.Holds = &at
			break
		}
	}
	return changes, nil
}

func (m mortal) Record(ctx context.Context, sub string, owed []lane.Owed) (others []int, err error) {
	if m.plant.forgetsRecord && len(owed) > 1 {
		owed = owed[1:]
	}
	for i := range owed {
		owed[i].Event = m.known(owed[i].Event)
	}
	m.process.server.log.Debug("world: recorded as owed", "subscriber", sub, "events", owedIDs(owed))
	err = m.write(func() (err error) {
		others, err = m.Ower.Record(ctx, sub, owed)
		return err
	})
	return others, err
}

func (m mortal) Dead(ctx context.Context, sub string, letter lane.Owed) (other bool, err error) {
	letter.Event = m.known(letter.Event)
	err = m.write(func() (err error) {
		other, err = m.Ower.Dead(ctx, sub, letter)
		return err
	})
	return other, err
}

// known is an event as the debt knows it.
func (m mortal) known(e *event.Event) *event.Event {
	if !m.plant.takesIDs {
		return e
	}
	copied := *e
	copied.Occurrence = ""
	return &copied
}

func (m mortal) Waiting(ctx context.Context, sub string, q lane.Query) (lane.WaitingPage, error) {
	if m.process.dead.Err() != nil {
		return lane.WaitingPage{}, errDead
	}
	if !m.process.server.largePage {
		q.Examine = 4
	}
	page, err := m.Ower.Waiting(ctx, sub, q)
	owed := page.Owed
	if m.plant.readsBackwards && len(owed) > 1 {
		last := owed[len(owed)-1]
		slices.Reverse(owed[:len(owed)-1])
		owed[len(owed)-1] = last // the cursor stays right
	}
	return page, err
}

func (m mortal) Paid(ctx context.Context, sub string, paid []lane.Paid, secured event.Position) error {
	return m.write(func() error {
		m.process.server.log.Debug("world: paid", "subscriber", sub, "paid", paid, "secured", secured)
		m.process.server.raise(sub, secured)
		return m.Ower.Paid(ctx, sub, paid, secured)
	})
}

// owedIDs tells for the log which events are owed, and where.
func owedIDs(owed []lane.Owed) []string {
	var ids []string
	for _, o := range owed {
		ids = append(ids, fmt.Sprintf("%s@%v", o.Event.OccurredAt, o.Event.Position))
	}
	return ids
}

func (m mortal) Failed(ctx context.Context, sub string, owed []lane.Owed) error {
	return m.write(func() error { return m.Ower.Failed(ctx, sub, owed) })
}

func (s *modelServer) raise(sub string, secured event.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.known[sub]; secured.Compare(k.secured) > 0 {
		k.secured = secured
		s.known[sub] = k
	}
}

// modelLedger is what tableLedger writes to.
type modelLedger struct {
	process *modelProcess
	plant   *plant
}

func (l modelLedger) write(ctx context.Context, finished []*ack.Entry, confirm event.LSN, at *positions) (int, error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if l.plant.confirmsFirst {
		l.process.server.setConfirmed(confirm)
	}
	if l.process.dies() {
		return 0, errDead
	}
	if l.process.server.refuses() {
		return 0, errFull
	}
	for _, e := range finished {
		if l.plant.marksWhatIsOwed {
			l.process.server.onMark(e.Event.Identity())
			continue
		}
		l.process.server.debt.Mark(e.Event, e.Attempts)
	}
	if at != nil {
		for i, name := range at.names {
			l.process.server.raise(name, at.secured[i])
		}
	}
	l.process.server.record(confirm)
	l.process.server.log.Debug("world: recorded", "marks", len(finished), "confirmed", confirm, "positions", at)
	if l.process.dies() {
		return 0, errDead
	}
	return 0, nil
}

func (s *modelServer) record(confirm event.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded = max(s.recorded, confirm)
}

func (l modelLedger) markRows(ctx context.Context, query debt.MarkQuery) (debt.MarkRound, error) {
	if l.process.dies() {
		return debt.MarkRound{}, errDead
	}
	if l.plant.forgetsOpen {
		query.Open = func([]event.Identity) map[event.Identity]bool { return nil }
	}
	round, err := l.process.server.debt.MarkRows(ctx, query)
	if l.process.dies() {
		return debt.MarkRound{}, errDead
	}
	return round, err
}

func (modelLedger) lockedBy(context.Context, debt.LockedRow) (string, error) { return "", nil }

// plant is a bug that the model has to find.
type plant struct {
	confirmsTooFar  bool
	forgetsRecord   bool
	readsBackwards  bool
	takesIDs        bool // for identities
	forgetsLeavers  bool
	forgetsOpen     bool // marks what is open
	forgetsBound    bool // of what people add
	beginsLate      bool // with what is not published, instead of all rows
	confirmsFirst   bool // before it is recorded
	marksWhatIsOwed bool
	neverOwes       bool // what stands still, so that it stays in the window
	holdsConfirmed  bool // keeps WAL for a debt below the confirmed position
	releasesEarly   bool // takes the first report of a key in a call for the report of all
	forgetsAbort    bool // sends before what an earlier leadership has sent is aborted
}

// byPeople reports whether it is found where people do something, or the process dies at a write.
func (p *plant) byPeople() bool {
	return p.forgetsOpen || p.forgetsBound || p.beginsLate || p.confirmsFirst
}

// repairKind is what a lost slot needs.
type repairKind int

const (
	noRepair repairKind = iota
	newSlot             // A: the slot is gone
	sameSlot            // B: the slot is there and may have a hole
)

// findOrMakeSlot is repairer.prepareSlot and membership.startPositions without Postgres.
func (s *modelServer) findOrMakeSlot(subs []*modelSubscriber, plant *plant) (horizon, confirmed event.LSN, members []member) {
	s.mu.Lock()
	lost := s.lost
	s.lost = noRepair
	s.mu.Unlock()
	if lost == noRepair {
		return s.startPositions(subs, plant)
	}
	r := &rowDebts{&base{}}
	for _, sub := range subs {
		r.Subscriptions = append(r.Subscriptions, Subscription{Subscriber: modelOutlet{modelSubscriber: sub}, Filter: sub.filter, FromBeginning: sub.beginning})
	}
	opened := &session{epoch: 1, confirmed: s.confirmed, end: s.end, known: s.known}
	if lost == sameSlot {
		opened.slot = &wal.Slot{Confirmed: s.confirmed}
		s.recordRows(recording{at: s.beforeTheStream(), repair: true, to: r.recipients(opened, func(name string, _ bool) bool {
			k, known := s.known[name]
			return known && (k.goneAt == "" || len(k.wants) > 0)
		})})
		return s.startPositions(subs, plant)
	}
	s.mu.Lock()
	s.confirmed, s.recorded, opened.confirmed = s.end, s.end, s.end
	s.mu.Unlock()
	members = (&membership{base: r.base}).atTheBeginning(opened)
	at := event.Position{Epoch: 1, Commit: s.end - 1}
	fresh := func(name string, beginning bool) bool { _, known := s.known[name]; return beginning && !known }
	s.recordRows(recording{snapshot: "of the slot", at: at, retained: !plant.beginsLate, to: r.recipients(opened, fresh)})
	s.recordRows(recording{snapshot: "of the slot", at: at, repair: true,
		to: r.recipients(opened, func(name string, beginning bool) bool { return !fresh(name, beginning) })})
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, k := range s.known {
		s.known[name] = stored{secured: k.secured, goneAt: "then"}
	}
	for i := range members {
		members[i].after = event.Position{Epoch: 1, Commit: s.confirmed - 1, Ordinal: math.MaxInt64}
		s.known[members[i].name] = stored{secured: members[i].after, wants: members[i].wants}
	}
	return s.end, s.confirmed, members
}

// beforeTheStream is Relay.beforeTheStream without Postgres.
func (s *modelServer) beforeTheStream() event.Position {
	var last event.Position
	for name := range s.known {
		if waiting := s.debt.Owed(name, lane.StateWaiting); len(waiting) > 0 {
			if at := waiting[len(waiting)-1].Event.Position; at.Compare(last) > 0 {
				last = at
			}
		}
	}
	return behind(last, event.Position{Epoch: 1, Commit: s.confirmed - 1})
}

// recordRows is rowDebts.record without Postgres: the rows are in the order of their commits.
func (s *modelServer) recordRows(o recording) {
	table := &outbox.Table{Source: &outbox.Source{Name: "model", Messages: "m", Mark: true}, Published: "published_at"}
	debts := newWaitingRows(s.debt, nil, 1, o)
	debts.table = table
	ordinal, bound := int64(0), s.end
	if o.snapshot != "" {
		bound = o.at.Commit
	}
	for _, txn := range s.commits {
		for _, e := range txn.events {
			ev := table.Source.EventFromMessage(e.content())
			ev.Source, ev.Row = "model", e.id
			ev.Position, ev.Bound = o.at, bound
			ev.Position.Ordinal += ordinal
			if _, marked := s.debt.Marked(ev); marked && !o.retained || s.deleted[e.id] {
				continue
			}
			ordinal++
			if err := debts.add(context.Background(), ev); err != nil {
				panic(err)
			}
		}
	}
	if err := debts.flush(context.Background()); err != nil {
		panic(err)
	}
	for _, to := range o.to {
		s.log.Debug("world: a pass over the table", "for", to.name, "snapshot", o.snapshot, "retained", o.retained, "at", o.at,
			"owed", owedIDs(s.debt.Owed(to.name, lane.StateWaiting)))
	}
	if at := o.at; !o.retained {
		at.Ordinal += ordinal
		s.placeMarked(o, at, bound)
	}
}

// placeMarked is rowDebts.placeMarked without Postgres.
func (s *modelServer) placeMarked(o recording, at event.Position, bound event.LSN) {
	for _, to := range o.to {
		waiting := s.debt.Owed(to.name, lane.StateWaiting)
		if !slices.ContainsFunc(waiting, func(w lane.Owed) bool {
			_, marked := s.debt.Marked(w.Event)
			return marked && !s.deleted[w.Event.OccurredAt] && w.Event.Position.Compare(o.at) < 0
		}) {
			continue
		}
		slices.SortFunc(waiting, func(a, b lane.Owed) int { return cmp.Compare(a.Event.OccurredAt, b.Event.OccurredAt) })
		var moved []lane.Owed
		for _, w := range waiting {
			ev := *w.Event
			if s.deleted[ev.OccurredAt] {
				continue
			}
			ev.Position, ev.Bound = at, bound
			at.Ordinal++
			moved = append(moved, lane.Owed{Event: &ev, InTableOrder: true})
		}
		if err := s.debt.PlaceRows(context.Background(), nil, to.name, moved); err != nil {
			panic(err)
		}
		s.log.Debug("world: marked rows get another place", "for", to.name, "rows", owedIDs(moved))
	}
}

// startPositions is Relay.startPositions without Postgres.
func (s *modelServer) startPositions(subs []*modelSubscriber, plant *plant) (horizon, confirmed event.LSN, members []member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var configured []configuredSubscriber
	for _, sub := range subs {
		configured = append(configured, configuredSubscriber{name: sub.name, filter: sub.filter, fromBeginning: sub.beginning})
	}
	members = plan(s.known, configured, 1, place{1, s.end})
	for i, m := range members {
		if m.found == beginning {
			s.recordRows(recording{at: event.Position{Epoch: 1, Commit: s.confirmed - 1}, retained: !plant.beginsLate,
				to: []recipient{{name: m.name, wants: subs[i].filter.Takes}}})
		}
	}
	before := s.known
	s.known = make(map[string]stored)
	for name := range before {
		s.known[name] = stored{secured: before[name].secured, goneAt: "then"} // one that is no member has left for good
	}
	for _, m := range members {
		s.log.Debug("world: begins", "subscriber", m.name, "after", m.after, "found", m.found, "left", m.left, "wants", m.wants.encode())
		wanted, err := parseWants([]byte(m.wants.encode()))
		if err != nil {
			panic(err)
		}
		k := stored{secured: m.after, wants: wanted}
		if m.left {
			k.goneAt = "then"
		}
		s.known[m.name] = k
	}
	if plant.forgetsLeavers {
		members = members[:len(subs)]
	}
	return s.end, s.confirmed, members
}

// depart is Relay.depart without Postgres.
func (p *modelProcess) depart(m member) error {
	if p.dead.Err() != nil {
		return errDead
	}
	if p.server.refuses() {
		return errFull
	}
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	p.server.known[m.name] = stored{secured: m.wants.end(1), goneAt: "then"}
	return nil
}

// rename is Relay.carryOver without Postgres.
func (s *modelServer) rename(before, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, known := s.known[before]; known { // else there is nothing to carry over
		s.known[name] = k
		delete(s.known, before)
	}
	s.debt.Rename(before, name)
}

// startProcess is Relay.run without Postgres.
func startProcess(server *modelServer, subs []*modelSubscriber, budget int64, plant *plant, log *slog.Logger) *modelProcess {
	dead, crash := context.WithCancel(context.Background())
	run, end := context.WithCancelCause(dead)
	stop := func() { end(nil) }
	horizon, confirmed, members := server.findOrMakeSlot(subs, plant)
	p := &modelProcess{server: server, crash: crash, stop: stop, yield: func() { end(&changed{reason: "the slot is gone"}) }, dead: dead, ended: make(chan struct{}), budget: budget,
		plant: plant, subs: subs, members: members, run: run}
	p.tracker = ack.New(server.window, len(members), confirmed)
	var received event.LSN
	var mu sync.Mutex
	at := func() event.LSN { mu.Lock(); defer mu.Unlock(); return received }
	reg := prometheus.NewRegistry()
	vectors := lane.NewVectors(reg, reg)
	var lanes []*lane.Lane
	var routes []dispatch.Route
	var names []string
	for i, sub := range subs {
		sub.mu.Lock()
		sub.lives = append(sub.lives, len(sub.got))
		sub.mu.Unlock()
		p.tracker.AwaitOwes(i)
		options := server.lane
		options.Ordering = sub.ordering
		if plant.neverOwes {
			options.StallAfter = 10 * time.Hour
		}
		var outlet subscriber.Subscriber = modelOutlet{sub, p}
		if sub.pipes {
			outlet = newModelPipeline(modelOutlet{sub, p}, plant)
		}
		l := lane.New(i, outlet, options, p.tracker, mortal{server.debt, p, plant}, lane.Stream{
			Term:   func() int64 { return 1 },
			Passed: at, Horizon: horizon,
			Crowds:  func() bool { return !plant.neverOwes && p.tracker.Crowds(i) },
			Pressed: func() bool { return !plant.neverOwes && p.tracker.Pressed(i) },
			Refuse:  func(*event.Event) error { return nil },
			Secured: members[i].after,
		}, vectors.For(sub.name), log)
		lanes = append(lanes, l)
		names = append(names, sub.name)
		routes = append(routes, dispatch.Route{Lane: l, Wants: sub.filter.Takes, Earlier: members[i].wants.earlier(1, anything), After: members[i].after})
	}
	var leavers []*leaver
	for i, m := range members[len(subs):] {
		l := newLeaver(m.name, len(subs)+i, p.tracker, mortal{server.debt, p, plant}, log)
		l.passed = func() bool { return at() >= horizon }
		l.depart = func(context.Context) error { return p.depart(m) }
		leavers = append(leavers, l)
		routes = append(routes, dispatch.Route{Lane: l, Wants: nothing, Earlier: m.wants.earlier(1, anything), After: m.after})
	}
	d := dispatch.New(nil, []*outbox.Source{{Name: "model", Messages: "m"}}, routes, p.tracker, 1, 1<<20, dispatch.NewMetrics(reg), log)
	rec := newRecorder(recorderOptions{ledger: modelLedger{p, plant}, tracker: p.tracker, log: log, metrics: newMetrics(reg, reg),
		names: names, budget: budget, received: at, recorded: confirmed, epoch: 1})

	var lanesDone, others sync.WaitGroup
	p.lanes, p.received, p.replaying = lanes, at, new(tasks)
	for _, l := range lanes {
		lanesDone.Go(func() { _ = l.Run(run, 5*time.Second) })
	}
	for _, l := range leavers {
		lanesDone.Go(func() { _ = l.run(run, dead) })
	}
	recording, recorded := context.WithCancel(context.Background())
	others.Go(func() { rec.run(recording, context.Background()) })
	streaming := make(chan struct{})
	go func() { // the owner of the replication connection
		defer close(streaming)
		server.stream(run, d, p, func(lsn event.LSN) { mu.Lock(); received = max(received, lsn); mu.Unlock() }, plant)
	}()
	go func() {
		defer close(p.ended)
		<-streaming
		p.replaying.endAndWait()
		lanesDone.Wait()
		recorded()
		others.Wait()
		if dead.Err() == nil {
			server.setConfirmed(p.tracker.Confirmed())
		}
	}()
	return p
}

// tasks are what people have begun with a process. It can end while another one is begun, which sync.WaitGroup does not
// allow: a task that comes too late is not begun.
type tasks struct {
	mu    sync.Mutex
	ended bool // guarded by mu
	under sync.WaitGroup
}

// Go begins a task.
func (t *tasks) Go(task func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.under.Go(task)
	}
}

// endAndWait lets no other task begin and waits for those that have.
func (t *tasks) endAndWait() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.under.Wait()
}

func (s *modelServer) setConfirmed(confirmed event.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed = max(s.confirmed, min(confirmed, s.end))
}

// stream sends every transaction whose commit is not below the slot, then what comes, and keepalives.
func (s *modelServer) stream(ctx context.Context, d *dispatch.Dispatcher, p *modelProcess, received func(event.LSN), plant *plant) {
	s.mu.Lock()
	begin := s.confirmed
	s.mu.Unlock()
	next := 0
	for ctx.Err() == nil {
		confirmed := p.tracker.Confirmed()
		if plant.confirmsTooFar {
			confirmed += 4000
		}
		s.setConfirmed(confirmed)
		s.mu.Lock()
		for next < len(s.commits) && s.commits[next].commit < begin {
			next++
		}
		var txn *modelTxn
		if next < len(s.commits) {
			txn = &s.commits[next]
			next++
		}
		end := s.end
		s.mu.Unlock()
		if txn == nil {
			received(end)
			d.KeepAlive(end)
			wait(ctx, 200*time.Millisecond)
			continue
		}
		for _, frame := range frames(txn) {
			for !d.HasRoom() {
				d.HandOver()
				select {
				case <-d.Room():
				case <-time.After(time.Second):
				case <-ctx.Done():
					return
				}
			}
			received(txn.commit)
			if err := d.Receive(frame); err != nil {
				panic(err)
			}
			if rand.IntN(3) == 0 { // the stream would have to wait for the next frame
				d.HandOver()
			}
		}
		d.HandOver()
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// frames writes a transaction as pgoutput does.
func frames(txn *modelTxn) [][]byte {
	u64 := binary.BigEndian.AppendUint64
	begin := append(u64(u64([]byte{'B'}, uint64(txn.commit)), 0), 0, 0, 0, 1)
	all := [][]byte{begin}
	for _, e := range txn.events {
		content := e.content()
		m := append(u64([]byte{'M', 1}, uint64(txn.commit)), 'm', 0)
		m = binary.BigEndian.AppendUint32(m, uint32(len(content)))
		all = append(all, append(m, content...))
	}
	commit := u64(u64(u64([]byte{'C', 0}, uint64(txn.commit)), uint64(txn.end)), 0)
	return append(all, commit)
}

// event is the event as the relay sees it.
func (e modelEvent) event() *event.Event {
	ev := (&outbox.Source{Name: "model", Messages: "m"}).EventFromMessage(e.content())
	ev.Source = "model"
	return ev
}

// content is the message of an event.
func (e modelEvent) content() []byte {
	return fmt.Appendf(nil, `{"id":%q,"type":%q,"key":%q,"occurred_at":%q,"payload":{}}`, e.used, e.eventType, e.key, e.id)
}
