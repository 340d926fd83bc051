//go:build !race

package relay

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
)

// Small-scope exhaustion: two subscribers, two keys, three events, and every order in which the calls of tracker,
// dispatcher, lanes with their payers, leaver and recorder can go through, with a crash between any two of them.
//
// The parts are the real ones. What they call is here: subscriber, debt and ledger keep each call waiting until the
// search lets it through. So a step is one call through the small interfaces, or one message of the stream. The
// search goes depth first. A state that it cannot return to is reached again by the same steps in a new world; a
// state that was seen before, by its hash, is not searched again. What changes nothing that lasts, which is all that
// reads, is let through at once, and between two steps time passes until every part waits for one.
//
// It is a search of orders and has no data race to find: the race detector would make it ten times as long, and gives
// up itself over so many short lives ("ThreadSanitizer: CHECK failed"). "make test" runs it apart.

// scope says what may happen in the worlds of one search, apart from what always may.
type scope struct {
	name     string
	budget   int64
	fails    int        // so many attempts of b fail: its key falls into debt
	refusals int        // so many events b never takes: dead letters, which a person redrives or discards
	crashes  int        // of the relay
	leaves   bool       // b may be gone from the configuration after a crash
	adds     lane.State // a person owes b the third event by its row, at a made-up position; "" for no one does
	allAgain bool       // after a crash all orders are searched again; else the next life does first things first
	events   int        // 3, or 2 of one key
	plant    smallPlant
}

// smallPlant is a bug that the search has to find.
type smallPlant struct {
	marksWhatIsOwed    bool // before the last debt is paid
	marksBeforeBound   bool // what has a made-up position, before the stream has brought it
	confirmsOneTooFar  bool
	paysBeforeReturned bool // removes a debt before the handler has returned
}

// smallWorld is one world, in one life of the relay after the other.
type smallWorld struct {
	scope   *scope
	server  *modelServer
	metrics *smallMetrics

	mu       sync.Mutex
	waiting  map[string]*stepGate // guarded by mu
	trace    map[string]int       // calls that went through in this life; guarded by mu
	had      map[string][]string  // by subscriber, event ids in the order of their effects; guarded by mu
	marked   map[string]bool      // guarded by mu
	everDead map[string]bool      // "subscriber event" of dead letters; guarded by mu
	given    map[string]bool      // "subscriber event" that a person discarded; guarded by mu
	broken   []string             // guarded by mu

	life                   *smallLife
	lives, failed, refused int
	added                  bool
	people                 int // redrives and discards
	steps                  []string
}

// stepGate is a call that waits to be let through.
type stepGate struct {
	outcomes []string
	choice   chan string
}

// smallLife is one life of the relay.
type smallLife struct {
	dead     context.Context
	crash    context.CancelFunc
	subs     []string
	tracker  *ack.Tracker
	dispatch *dispatch.Dispatcher
	recorder *recorder
	frames   [][]byte
	ends     []event.LSN // received with each frame
	next     int
	received event.LSN
	horizon  event.LSN
	busy     bool // the recorder is in a call; guarded by smallWorld.mu
	ended    sync.WaitGroup
}

type smallMetrics struct {
	lanes    map[string]*lane.Metrics
	dispatch *dispatch.Metrics
	relay    *metrics
}

func newSmallMetrics() *smallMetrics {
	reg := prometheus.NewRegistry()
	vectors := lane.NewVectors(reg, reg)
	return &smallMetrics{map[string]*lane.Metrics{"a": vectors.For("a"), "b": vectors.For("b")}, dispatch.NewMetrics(reg), newMetrics(reg, reg)}
}

// wait keeps a call until the search lets it through, and returns its outcome, or false when the process dies.
func (w *smallWorld) wait(l *smallLife, call string, outcomes ...string) (string, bool) {
	g := &stepGate{outcomes, make(chan string)}
	w.mu.Lock()
	if w.waiting[call] != nil {
		w.complainLocked("P3: %q is under way twice", call)
	}
	w.waiting[call] = g
	w.mu.Unlock()
	select {
	case outcome := <-g.choice:
		return outcome, true
	case <-l.dead.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waiting, call)
		return "", false
	}
}

func (w *smallWorld) complainLocked(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// smallSubscriber is one of the two.
type smallSubscriber struct {
	w    *smallWorld
	l    *smallLife
	name string
}

func (s smallSubscriber) Name() string    { return s.name }
func (smallSubscriber) Wants(string) bool { return true }

func (s smallSubscriber) Handle(_ context.Context, d subscriber.Delivery) error {
	outcomes := []string{"ok"}
	w := s.w
	w.mu.Lock()
	if s.name == "b" && w.failed < w.scope.fails {
		outcomes = append(outcomes, "fails")
	}
	if s.name == "b" && w.refused < w.scope.refusals {
		outcomes = append(outcomes, "is refused")
	}
	w.mu.Unlock()
	outcome, alive := w.wait(s.l, s.name+" handles "+d.OccurredAt, outcomes...)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !alive:
		return errDead
	case outcome == "fails":
		w.failed++
		return errors.New("not now")
	case outcome == "is refused":
		w.refused++
		return subscriber.Permanent(errors.New("never"))
	}
	w.had[s.name] = append(w.had[s.name], d.OccurredAt)
	return nil
}

// smallDebt is the debt as one life reaches it.
type smallDebt struct {
	*debttest.Memory
	w *smallWorld
	l *smallLife
}

func namesOf(owed []lane.Owed) string {
	var names []string
	for _, o := range owed {
		names = append(names, o.Event.OccurredAt)
	}
	sort.Strings(names)
	return strings.Join(names, ",")
}

func (d smallDebt) Record(ctx context.Context, sub string, owed []lane.Owed) ([]int, error) {
	if len(owed) == 0 {
		return nil, nil
	}
	if _, alive := d.w.wait(d.l, sub+" is owed "+namesOf(owed), "ok"); !alive {
		return nil, errDead
	}
	return d.Memory.Record(ctx, sub, owed)
}

func (d smallDebt) Dead(ctx context.Context, sub string, letter lane.Owed) (bool, error) {
	if _, alive := d.w.wait(d.l, sub+" has a dead letter "+letter.Event.OccurredAt, "ok"); !alive {
		return false, errDead
	}
	d.w.mu.Lock()
	d.w.everDead[sub+" "+letter.Event.OccurredAt] = true
	d.w.mu.Unlock()
	return d.Memory.Dead(ctx, sub, letter)
}

func (d smallDebt) Paid(ctx context.Context, sub string, paid []lane.Paid, secured event.Position) error {
	var names []string
	for _, p := range paid {
		names = append(names, p.Event.OccurredAt)
	}
	sort.Strings(names)
	if _, alive := d.w.wait(d.l, sub+" is paid "+strings.Join(names, ","), "ok"); !alive {
		return errDead
	}
	d.w.server.raise(sub, secured)
	return d.Memory.Paid(ctx, sub, paid, secured)
}

func (d smallDebt) Failed(ctx context.Context, sub string, owed []lane.Owed) error {
	if d.l.dead.Err() != nil {
		return errDead
	}
	return d.Memory.Failed(ctx, sub, owed)
}

func (d smallDebt) Waiting(ctx context.Context, sub string, q lane.Query) (lane.WaitingPage, error) {
	page, err := d.Memory.Waiting(ctx, sub, q)
	if d.w.scope.plant.paysBeforeReturned {
		for _, o := range page.Owed {
			_ = d.Memory.Paid(ctx, sub, []lane.Paid{{Event: o.Event}}, event.Position{})
		}
	}
	return page, err
}

// smallLedger is where the recorder of one life writes.
type smallLedger struct {
	w *smallWorld
	l *smallLife
}

func (s smallLedger) write(_ context.Context, finished []*ack.Entry, confirm event.LSN, at *positions) (int, error) {
	var names []string
	for _, e := range finished {
		names = append(names, e.Event.OccurredAt)
	}
	sort.Strings(names)
	w := s.w
	secured := ""
	if at != nil {
		secured = fmt.Sprint(at.secured)
	}
	if _, alive := w.wait(s.l, fmt.Sprintf("recorder writes %s, %v, %s", strings.Join(names, ","), confirm, secured), "ok"); !alive {
		return 0, errDead
	}
	for _, e := range finished {
		if w.scope.plant.marksWhatIsOwed {
			w.mark(e.Event.OccurredAt)
			continue
		}
		w.server.debt.Mark(e.Event, e.Attempts)
	}
	if at != nil {
		for i, name := range at.names {
			w.server.raise(name, at.secured[i])
		}
	}
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.server.recorded = max(w.server.recorded, confirm)
	return 0, nil
}

func (s smallLedger) markRows(ctx context.Context, query debt.MarkQuery) (debt.MarkRound, error) {
	if _, alive := s.w.wait(s.l, fmt.Sprintf("recorder marks what is passed at %v", query.Passed.Commit), "ok"); !alive {
		return debt.MarkRound{}, errDead
	}
	if s.w.scope.plant.marksBeforeBound {
		query.Passed.Commit = 1 << 40
	}
	return s.w.server.debt.MarkRows(ctx, query)
}

func (smallLedger) lockedBy(context.Context, debt.LockedRow) (string, error) { return "", nil }

// mark checks P12 at the moment of a mark.
func (w *smallWorld) mark(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marked[id] = true
	for _, sub := range []string{"a", "b"} {
		if !slices.Contains(w.had[sub], id) && !w.given[sub+" "+id] {
			w.complainLocked("P12: %s is marked, and %s has not had it", id, sub)
		}
	}
}

var discardLog = slog.New(slog.DiscardHandler)

func newSmallWorld(s *scope, m *smallMetrics) *smallWorld {
	w := &smallWorld{scope: s, metrics: m, waiting: make(map[string]*stepGate), trace: make(map[string]int),
		had: make(map[string][]string), marked: make(map[string]bool), given: make(map[string]bool), everDead: make(map[string]bool)}
	w.server = &modelServer{end: 8000, confirmed: 8000, recorded: 8000, known: make(map[string]stored), debt: debttest.NewMemory(),
		window: ack.Window{Events: 60, Bytes: 1 << 20}, log: discardLog}
	w.server.debt.EveryEventHasARow(func(of event.Identity) { w.mark(of.Occurrence) })
	w.begin("a", "b")
	w.server.commits = []modelTxn{
		{commit: 8000, end: 8080, events: []modelEvent{{"e1", "1", "k0", "t"}, {"e2", "2", "k1", "t"}}},
		{commit: 8080, end: 8160, events: []modelEvent{{"e3", "3", "k0", "t"}}},
	}
	if s.events == 2 {
		w.server.commits[0].events = w.server.commits[0].events[:1]
	}
	w.server.end = 8160
	w.life.send(w.server)
	return w
}

// send lists what the server sends in this life.
func (l *smallLife) send(s *modelServer) {
	for i := range s.commits {
		if txn := &s.commits[i]; txn.commit >= s.confirmed {
			for _, frame := range frames(txn) {
				l.frames, l.ends = append(l.frames, frame), append(l.ends, txn.commit)
			}
		}
	}
}

// begin begins a life with those subscribers in the configuration: Relay.run without Postgres.
func (w *smallWorld) begin(names ...string) {
	dead, crash := context.WithCancel(context.Background())
	l := &smallLife{dead: dead, crash: crash, subs: names}
	w.life, w.trace = l, make(map[string]int)
	w.lives++
	var subs []*modelSubscriber
	for _, name := range names {
		subs = append(subs, &modelSubscriber{name: name})
	}
	horizon, confirmed, members := w.server.startPositions(subs, &plant{})
	l.horizon = horizon
	l.tracker = ack.New(w.server.window, len(members), confirmed)
	at := func() event.LSN { w.mu.Lock(); defer w.mu.Unlock(); return l.received }
	ower := smallDebt{w.server.debt, w, l}
	var routes []dispatch.Route
	for i, m := range members {
		route := dispatch.Route{Wants: event.Filter{}.Takes, Earlier: m.wants.earlier(1, anything), After: m.after}
		if m.left {
			gone := newLeaver(m.name, i, l.tracker, ower, discardLog)
			gone.passed = func() bool { return at() >= horizon }
			gone.depart = func(context.Context) error {
				if _, alive := w.wait(l, m.name+" has left", "ok"); !alive {
					return errDead
				}
				w.server.mu.Lock()
				defer w.server.mu.Unlock()
				w.server.known[m.name] = stored{secured: m.wants.end(1), goneAt: "then"}
				return nil
			}
			route.Lane, route.Wants = gone, nothing
			l.ended.Go(func() { _ = gone.run(dead, dead) })
		} else {
			l.tracker.AwaitOwes(i)
			options := lane.Options{Ordering: lane.ByKey, Concurrency: 2, Timeout: 1000 * time.Hour, Backoff: lane.Backoff{Initial: 2500 * time.Millisecond, Max: 2500 * time.Millisecond}}
			room := lane.New(i, smallSubscriber{w, l, m.name}, options, l.tracker, ower, lane.Stream{
				Term:   func() int64 { return 1 },
				Passed: at, Horizon: horizon,
				Crowds:  func() bool { return false },
				Pressed: func() bool { return false },
				Refuse:  func(*event.Event) error { return nil },
				Secured: m.after,
			}, w.metrics.lanes[m.name], discardLog)
			route.Lane = room
			l.ended.Go(func() { _ = room.Run(dead, 0) })
		}
		routes = append(routes, route)
	}
	l.dispatch = dispatch.New(nil, []*outbox.Source{{Name: "model", Messages: "m"}}, routes, l.tracker, 1, 1<<20, w.metrics.dispatch, discardLog)
	l.recorder = newRecorder(recorderOptions{ledger: smallLedger{w, l}, tracker: l.tracker, log: discardLog, metrics: w.metrics.relay, names: names,
		budget: w.scope.budget, received: at, recorded: confirmed, epoch: 1})
	l.send(w.server)
	w.quiet()
}

// quiet lets time pass until every part waits for a step.
func (w *smallWorld) quiet() {
	time.Sleep(110 * time.Millisecond)
	synctest.Wait()
	for range 40 { // a payer comes back to what has failed after its backoff
		if !w.payerRests() {
			return
		}
		time.Sleep(110 * time.Millisecond)
		synctest.Wait()
	}
}

// payerRests reports whether a payer that has something to pay waits for nothing but the time.
func (w *smallWorld) payerRests() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life.received < w.life.horizon {
		return false // nothing is read from the debt yet
	}
	return slices.ContainsFunc(w.life.subs, func(sub string) bool {
		for call := range w.waiting {
			if strings.HasPrefix(call, sub+" ") {
				return false
			}
		}
		return len(w.server.debt.Owed(sub, lane.StateWaiting)) > 0
	})
}

// end ends this life as a crash does.
func (w *smallWorld) end() {
	w.life.crash()
	w.life.ended.Wait()
	synctest.Wait()
}

// choices lists the steps that are possible, in an order that depends on the state alone.
func (w *smallWorld) choices() []string {
	l := w.life
	var steps []string
	w.mu.Lock()
	for call, g := range w.waiting {
		for _, outcome := range g.outcomes {
			steps = append(steps, call+": "+outcome)
		}
	}
	busy := l.busy
	w.mu.Unlock()
	slices.Sort(steps)
	if l.next < len(l.frames) {
		steps = append(steps, fmt.Sprintf("the stream brings message %d", l.next))
	} else if l.received < w.server.end {
		steps = append(steps, "a keepalive")
	}
	if !busy && l.tracker.Pending() {
		steps = append(steps, "the recorder takes")
	}
	if !busy && w.server.debt.Unmarked() > 0 {
		steps = append(steps, "the recorder looks for marks")
	}
	if w.scope.adds != "" && !w.added {
		steps = append(steps, "a person owes e3 to b")
	}
	if w.people < 1 && len(w.server.debt.Owed("b", lane.StateDead)) > 0 {
		steps = append(steps, "a person redrives", "a person discards")
	}
	if w.lives <= w.scope.crashes {
		// When the server is told what is confirmed makes a difference only here.
		steps = append(steps, "crash, and the server is told")
		if l.tracker.Confirmed() > w.server.confirmed {
			steps = append(steps, "crash")
		}
		if w.scope.leaves {
			steps = append(steps, "crash, and b leaves")
		}
	}
	return steps
}

// doStep does one step and checks the invariants.
func (w *smallWorld) doStep(step string) {
	w.steps = append(w.steps, step)
	l := w.life
	switch step {
	case "a keepalive":
		w.mu.Lock()
		l.received = w.server.end
		w.mu.Unlock()
		l.dispatch.KeepAlive(w.server.end)
	case "the recorder takes":
		w.startRecorder(func() {
			l.recorder.positionsAt = time.Time{} // positions are written with it
			l.recorder.record(l.dead, false)
		})
	case "the recorder takes what is left": // as at a stop; otherwise an idle relay writes nothing
		w.startRecorder(func() { l.recorder.record(l.dead, true) })
	case "the recorder looks for marks":
		w.startRecorder(func() { l.recorder.marker.markOnce(l.dead) })
	case "a person owes e3 to b":
		w.added = true
		ev := (&outbox.Source{Name: "model", Messages: "m"}).EventFromMessage(w.server.commits[1].events[0].content())
		ev.Source, ev.Position, ev.Bound = "model", event.Position{Epoch: 1, Commit: 7999}, w.server.end
		if w.scope.adds == lane.StateDead && !slices.Contains(w.had["b"], "e3") {
			w.mu.Lock()
			w.everDead["b e3"] = true
			w.mu.Unlock()
		}
		w.server.debt.Add("b", ev, w.scope.adds)
		w.server.end += 8 // that is WAL as well
	case "a person redrives":
		w.people++
		w.server.debt.Redrive("b")
	case "a person discards":
		w.people++
		letter := w.server.debt.Owed("b", lane.StateDead)[0].Event
		w.mu.Lock()
		w.given["b "+letter.OccurredAt] = true
		w.mu.Unlock()
		w.server.debt.Discard("b", letter)
	case "crash", "crash, and the server is told":
		w.end()
		if step != "crash" {
			w.server.setConfirmed(w.confirmed())
		}
		w.begin("a", "b")
	case "crash, and b leaves":
		w.end()
		w.server.setConfirmed(w.confirmed())
		w.begin("a")
	default:
		if strings.HasPrefix(step, "the stream") {
			w.mu.Lock()
			l.received = l.ends[l.next]
			w.mu.Unlock()
			if err := l.dispatch.Receive(l.frames[l.next]); err != nil {
				panic(err)
			}
			l.next++
			if l.frames[l.next-1][0] == 'B' { // nothing can be told apart before the first event
				if err := l.dispatch.Receive(l.frames[l.next]); err != nil {
					panic(err)
				}
				l.next++
			}
			l.dispatch.HandOver()
			break
		}
		call, outcome, _ := cutLast(step, ": ")
		w.mu.Lock()
		g := w.waiting[call]
		delete(w.waiting, call)
		if !strings.HasPrefix(call, "recorder") { // it keeps nothing in mind that is not hashed
			w.trace[step]++
		}
		w.mu.Unlock()
		g.choice <- outcome
	}
	if strings.HasSuffix(step, ": fails") {
		time.Sleep(2200 * time.Millisecond) // until the lane sees that the key stands still
	}
	w.quiet()
	w.check()
}

// confirmed is what the server is told.
func (w *smallWorld) confirmed() event.LSN {
	confirmed := max(w.life.tracker.Confirmed(), w.server.confirmed)
	if w.scope.plant.confirmsOneTooFar {
		for _, txn := range w.server.commits {
			if txn.commit >= confirmed {
				return txn.end
			}
		}
	}
	return confirmed
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	return s[:i], s[i+len(sep):], i >= 0
}

func (w *smallWorld) startRecorder(f func()) {
	l := w.life
	w.mu.Lock()
	l.busy = true
	w.mu.Unlock()
	l.ended.Go(func() {
		f()
		w.mu.Lock()
		l.busy = false
		w.mu.Unlock()
	})
}

// check looks whether the promises hold in this state.
func (w *smallWorld) check() {
	s := w.server
	w.mu.Lock()
	defer w.mu.Unlock()
	confirmed := w.confirmed()
	if confirmed > s.recorded {
		w.complainLocked("P2: %v is confirmed, and %v is recorded", confirmed, s.recorded)
	}
	for _, sub := range []string{"a", "b"} {
		owed := make(map[string]bool)
		for _, state := range []lane.State{lane.StateWaiting, lane.StateDead} {
			for _, o := range s.debt.Owed(sub, state) {
				owed[o.Event.OccurredAt] = true
				if w.scope.budget == Unlimited && w.people == 0 && slices.Contains(w.life.subs, sub) && state == lane.StateWaiting &&
					o.Event.Bound == 0 && o.Event.Position.Commit < confirmed {
					w.complainLocked("P2: %s waits for %s, and %v is confirmed without a need", o.Event.OccurredAt, sub, confirmed)
				}
			}
		}
		has := func(id string) bool {
			return owed[id] || slices.Contains(w.had[sub], id) || w.given[sub+" "+id]
		}
		for _, txn := range s.commits {
			for _, e := range txn.events {
				if txn.commit < confirmed && !has(e.id) {
					w.complainLocked("P2: %s is lost to %s: %v is confirmed, and it has neither had it nor is owed it", e.id, sub, confirmed)
				}
				if k := s.known[sub]; !has(e.id) && k.goneAt == "" && (event.Position{Epoch: 1, Commit: txn.commit, Ordinal: txn.ordinal(e)}).Compare(k.secured) <= 0 {
					w.complainLocked("P2: %s is lost to %s: its position is %v, and it has neither had it nor is owed it", e.id, sub, k.secured)
				}
			}
		}
		if first, third := slices.Index(w.had[sub], "e1"), slices.Index(w.had[sub], "e3"); third >= 0 && (first < 0 || first > third) &&
			!w.everDead[sub+" e1"] { // a dead letter lets the later ones by
			w.complainLocked("P3: %s had e3 before e1: %v", sub, w.had[sub])
		}
		if w.lives == 1 && !w.added && w.people == 0 && len(slices.Compact(slices.Sorted(slices.Values(w.had[sub])))) < len(w.had[sub]) {
			w.complainLocked("P11: %s had %v without a crash", sub, w.had[sub])
		}
	}
}

func (t modelTxn) ordinal(e modelEvent) int64 { return int64(slices.Index(t.events, e)) }

// ids are the events of the world.
func (w *smallWorld) ids() (ids []string) {
	for _, txn := range w.server.commits {
		for _, e := range txn.events {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// idle reports whether nothing but the recorder has something to do, unless people act or the relay dies.
func (w *smallWorld) idle(choices []string) bool {
	return !slices.ContainsFunc(choices, func(step string) bool {
		return !strings.HasPrefix(step, "the recorder") && !strings.HasPrefix(step, "crash") && !strings.HasPrefix(step, "a person")
	})
}

// finish lets everything happen that still can, but for people and crashes, and then the recorder as at a stop.
func (w *smallWorld) finish() {
	for range 3 {
		time.Sleep(5 * time.Second) // a lane looks every two seconds for what people have changed
		synctest.Wait()
		for n := 0; n < 30 && w.takeFirst(); n++ {
		}
		w.doStep("the recorder takes what is left")
		for n := 0; n < 30 && w.takeFirst(); n++ {
		}
	}
}

func (w *smallWorld) takeFirst() bool {
	for _, choice := range w.choices() {
		if !strings.HasPrefix(choice, "crash") && !strings.HasPrefix(choice, "a person") && choice != "the recorder takes" {
			w.doStep(choice)
			return true
		}
	}
	return false
}

// checkEnd looks whether everything has come to its end when nothing more can happen but a crash.
func (w *smallWorld) checkEnd() {
	s := w.server
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, sub := range w.life.subs {
		waiting := s.debt.Owed(sub, lane.StateWaiting)
		if len(waiting) > 0 {
			w.complainLocked("P2: %s waits for %s for ever", namesOf(waiting), sub)
		}
		dead := namesOf(s.debt.Owed(sub, lane.StateDead))
		for _, id := range w.ids() {
			if !slices.Contains(w.had[sub], id) && !w.given[sub+" "+id] && !strings.Contains(dead, id) {
				w.complainLocked("P2: %s never comes to %s", id, sub)
			}
		}
	}
	for _, id := range w.ids() {
		open := len(s.debt.Owed("b", lane.StateDead)) + len(s.debt.Owed("b", lane.StateWaiting))
		if !w.marked[id] && open == 0 {
			w.complainLocked("%s is never marked", id)
		}
	}
	if confirmed := w.confirmed(); confirmed < s.end && len(s.debt.Owed("b", lane.StateDead)) == 0 {
		w.complainLocked("the slot stands at %v for ever, the WAL ends at %v", confirmed, s.end)
	}
}

// hash is of everything that decides what can happen from here: what lasts, what is in memory as far as it can be
// read, and, for the rest of what is in memory, which calls went through in this life.
func (w *smallWorld) hash(seed maphash.Seed) uint64 {
	l, s := w.life, w.server
	var h maphash.Hash
	h.SetSeed(seed)
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(&h, s.confirmed, s.recorded, w.lives, w.failed, w.refused, w.people, w.added, l.subs, l.next, l.received, l.busy)
	fmt.Fprintln(&h, l.tracker, l.tracker.Passed(), s.debt)
	for i, sub := range []string{"a", "b"} {
		fmt.Fprintln(&h, s.known[sub], w.had[sub], i < len(l.subs) && l.tracker.OwesSince(i) != nil)
	}
	for _, m := range []map[string]bool{w.marked, w.given, w.everDead} {
		fmt.Fprintln(&h, slices.Sorted(maps.Keys(m)))
	}
	fmt.Fprintln(&h, slices.Sorted(maps.Keys(w.waiting)))
	for _, step := range slices.Sorted(maps.Keys(w.trace)) {
		fmt.Fprintln(&h, step, w.trace[step])
	}
	return h.Sum64()
}

// found is what a search has found.
type found struct {
	states, steps, worlds int
	broken                []string // of the last world
	history               []string // its steps
}

// search goes through all worlds of a scope, or ends with the first in which a promise is broken.
func search(s *scope) (f found) {
	seed, m := maphash.MakeSeed(), newSmallMetrics()
	seen := make(map[uint64]bool)
	branches := [][]string{nil}
	for len(branches) > 0 && f.broken == nil {
		path := branches[len(branches)-1]
		branches = branches[:len(branches)-1]
		w := newSmallWorld(s, m)
		f.worlds++
		for _, step := range path {
			w.doStep(step)
		}
		for len(w.broken) == 0 {
			state := w.hash(seed)
			if seen[state] {
				break
			}
			seen[state] = true
			choices := w.choices()
			idle := w.idle(choices)
			if w.lives > 1 && !s.allAgain && !idle {
				choices = choices[:1]
			}
			for _, step := range choices {
				branches = append(branches, append(slices.Clone(w.steps), step))
			}
			if idle {
				w.finish()
				w.checkEnd()
				break
			}
			branches = branches[:len(branches)-1] // the last one is gone on with here
			w.doStep(choices[len(choices)-1])
		}
		f.steps += len(w.steps)
		f.broken, f.history = w.broken, w.steps
		w.end()
	}
	f.states = len(seen)
	return f
}

// smallScopes are searched in every test run, largeScopes by the soak.
var smallScopes = []scope{
	{name: "a crash", budget: Unlimited, crashes: 1, events: 3},
	{name: "a key fails, a crash, debt holds no WAL", fails: 1, crashes: 1, events: 2},
}

func TestSmallScope_keepsThePromisesInEveryOrder(t *testing.T) {
	for _, s := range smallScopes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			searchAll(t, &s)
		})
	}
}

func searchAll(t *testing.T, s *scope) {
	began := time.Now()
	var f found
	synctest.Test(t, func(*testing.T) { f = search(s) })
	t.Logf("%d states in %d worlds of %d steps, %v", f.states, f.worlds, f.steps, time.Since(began).Round(time.Millisecond))
	if len(f.broken) > 0 {
		t.Errorf("%s\nafter: %s", strings.Join(f.broken, "\n"), strings.Join(f.history, "\n       "))
	}
}

func TestSmallScope_findsPlantedBugs(t *testing.T) {
	for name, s := range map[string]scope{
		"marks before the last debt is paid":           {fails: 1, plant: smallPlant{marksWhatIsOwed: true}},
		"marks at a made-up position before its bound": {adds: lane.StateDead, plant: smallPlant{marksBeforeBound: true}},
		"confirms one too far":                         {plant: smallPlant{confirmsOneTooFar: true}},
		"pays before the handler has returned":         {fails: 1, crashes: 1, plant: smallPlant{paysBeforeReturned: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.budget, s.events = Unlimited, 2
			var f found
			synctest.Test(t, func(*testing.T) { f = search(&s) })
			if len(f.broken) == 0 {
				t.Errorf("%d states did not show that the relay %s", f.states, name)
			}
			t.Logf("%d states, %d worlds: %q", f.states, f.worlds, f.broken)
		})
	}
}
