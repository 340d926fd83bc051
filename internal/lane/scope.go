package lane

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

// scope says which events stand behind debt, because something before them is owed. All of it is guarded by
// Lane.mu.
//
// Invariant: live and owed events are never given out for one key at the same time. What is in scope is
// given out only after it was read from the debt; what stands behind debt is recorded, or released when nothing
// before it is owed any more.
type scope struct {
	mode    debtMode
	keys    map[string]int  // with debtByKey: keys in debt and how many recorded deliveries of each wait
	blocked map[string]bool // keys behind a dead letter, where the subscriber wants that
	// lookUp: an earlier process or a person may have recorded what the stream brings, so it is looked up first.
	lookUp    bool
	unchecked []*item // offered while lookUp
	// unread: nothing is read from the debt, because something older may come to it.
	unread bool

	behindDebt []*item // offered and in scope
	urgent     bool    // some of behindDebt stand still and must leave the window
	// before: what stands behind debt up to this position may be older than what is recorded of its key. So it is
	// recorded before anything is read.
	before event.Position

	inHand      int                // read from the debt; neither removed there nor given up here
	inHandBytes int64              // of them
	counted     map[uint64]int     // by hash of the identity: failures that count of what was given up
	paid        []*item            // of them: delivered, to be removed from the debt
	failed      map[*item]struct{} // of them: failed, to be noted there
}

// unknown is the count of a key of which something is recorded, but it is not known how much: it is in debt
// until a read finds nothing more.
const unknown = 1 << 30

func (l *Lane) inScopeLocked(it *item) bool {
	s := &l.scope
	switch {
	case s.mode.whole():
		return true
	case len(s.keys) == 0 && len(s.blocked) == 0:
		return false
	}
	key := l.keyOf(it.ev)
	_, owed := s.keys[key]
	return owed || s.blocked[key]
}

func (l *Lane) keepBehindDebtLocked(it *item) {
	l.scope.behindDebt = append(l.scope.behindDebt, it)
	signal(l.readerWake)
}

// admitLocked lets the first n of the events that were looked up into the lane. known has those that are recorded.
func (l *Lane) admitLocked(n int, known map[*item]Recorded) {
	s := &l.scope
	for _, it := range s.unchecked[:n] {
		switch recorded, ok := known[it]; {
		case ok:
			l.endRecordedLocked(it, recordedIn(recorded.State))
			l.oweKeyLocked(it, recorded.State)
		case l.inScopeLocked(it):
			l.keepBehindDebtLocked(it)
			if known != nil { // it can be older than what is recorded of its key
				s.recordBeforeReading(it)
			}
		default:
			l.backlog.push(l.keyOf(it.ev), it)
		}
	}
	s.unchecked = rest(s.unchecked, n)
	l.metrics.open.Set(float64(l.open))
	l.startCallsLocked()
}

// recordBeforeReading lets nothing be read from the debt before what stands behind it up to an event is recorded.
func (s *scope) recordBeforeReading(it *item) {
	if it.ev.Position.Compare(s.before) > 0 {
		s.before = it.ev.Position
	}
}

// mustRecordFirst reports whether something that stands behind debt has to be recorded before the debt is read.
func (s *scope) mustRecordFirst() bool {
	if s.before == (event.Position{}) {
		return false
	}
	for _, it := range s.behindDebt {
		if it.ev.Position.Compare(s.before) <= 0 {
			return true
		}
	}
	s.before = event.Position{}
	return false
}

// liveLocked lists the live deliveries of the lane, but for those that are still to be looked up.
func (l *Lane) liveLocked() []*item {
	live := slices.Clone(l.scope.behindDebt)
	add := func(items []*item) {
		for _, it := range items {
			if it.isLive() && !it.abandoned {
				live = append(live, it)
			}
		}
	}
	for _, q := range l.backlog.keys {
		add(q.items)
	}
	for c := range l.calls {
		add(c.items)
	}
	return live
}

// yieldToDebtLocked ends the live deliveries that the debt turns out to have already, because a person has added
// them: what is recorded is the truth. One that is in its handler ends when the handler returns.
func (l *Lane) yieldToDebtLocked(known map[*item]Recorded) {
	s := &l.scope
	recorded := func(it *item) bool {
		r, ok := known[it]
		if ok {
			l.endRecordedLocked(it, recordedIn(r.State))
		}
		return ok
	}
	for _, q := range l.backlog.keys {
		before := len(q.items)
		if q.items = slices.DeleteFunc(q.items, recorded); len(q.items) == before || q.state != retrying {
			continue
		}
		if len(q.items) == 0 {
			l.backlog.releaseEmpty(q)
			continue
		}
		l.backlog.makeReady(q) // what has failed may be gone
	}
	s.behindDebt = slices.DeleteFunc(s.behindDebt, recorded)
	for c := range l.calls {
		for _, it := range c.items {
			it.recorded = recordedIn(known[it].State)
		}
	}
	for it, r := range known {
		l.oweKeyLocked(it, r.State)
	}
	l.abandonOverdueLocked()
	l.metrics.open.Set(float64(l.open))
}

// endRecordedLocked ends a live delivery that the debt has already: it is sent from there, or not at all.
func (l *Lane) endRecordedLocked(it *item, as recordedAs) {
	l.open--
	if as == recordedEnded { // finished
		l.acks.Finish(ack.End{Delivery: it.delivery(), Recorded: true})
		return
	}
	l.acks.Secure([]*ack.Delivery{it.delivery()})
	l.scope.recordBeforeReading(it)
}

// oweKeyLocked puts the key of a delivery that waits in the debt in debt, if it is not.
func (l *Lane) oweKeyLocked(it *item, state State) {
	s := &l.scope
	key := l.keyOf(it.ev)
	if _, ok := s.keys[key]; ok || state != StateWaiting || s.mode.whole() || l.options.Ordering == None {
		return
	}
	s.keys[key] = unknown
	if q := l.backlog.keys[key]; q != nil {
		l.moveBehindDebtLocked(q)
	}
}

// assessLocked decides whether something has stood still for too long, or holds too much of the window, and
// puts it in debt: some keys where some stand still, everything where the subscriber does.
func (l *Lane) assessLocked(now time.Time) {
	s := &l.scope
	if s.mode.whole() || l.open == 0 {
		return
	}
	crowded := l.stream.Crowds()
	switch {
	case l.breaker.open() && (crowded || now.Sub(l.breaker.since) >= l.options.StallAfter):
		l.oweAllLocked("it is away")
		return
	case crowded && l.standsStillLocked(now):
		l.oweAllLocked("its handlers do not return")
		return
	case l.pressedForLongLocked(now):
		l.oweAllLocked("the others would have to wait for it")
		return
	}
	var stalled []*keyQueue
	for _, q := range l.backlog.retries {
		if len(q.items) > 0 && q.items[0].isLive() && (crowded || now.Sub(q.stoodSince(l.made)) >= l.options.StallAfter) {
			stalled = append(stalled, q)
		}
	}
	for c := range l.calls {
		if !c.overdue || !crowded && now.Sub(c.begun) < l.options.StallAfter {
			continue
		}
		for _, it := range c.items {
			if it.isLive() && !it.abandoned {
				stalled = append(stalled, it.queue)
			}
		}
	}
	if len(stalled) > 0 {
		l.oweKeysLocked(stalled)
	}
}

// patience is how long the others may wait for a subscriber that is slower than they are, while the stream
// is behind anyway.
const patience = 10 * time.Second

// pressedForLongLocked reports whether the others have waited for this subscriber for too long. While the stream
// keeps up they do not wait at all. While it is behind, after a stop or a burst, they wait for as long as it
// is behind, up to patience: to record a short backlog and read it again would take longer than that.
func (l *Lane) pressedForLongLocked(now time.Time) bool {
	if !l.stream.Pressed() {
		l.pressed = time.Time{}
		return false
	}
	if l.pressed.IsZero() {
		l.pressed = now
	}
	return now.Sub(l.pressed) >= min(l.behind, patience)
}

// standsStillLocked reports whether all workers are busy and none has ended a call for a while, or a pipeline has
// reported nothing for a while.
func (l *Lane) standsStillLocked(now time.Time) bool {
	if l.pipe != nil {
		return len(l.calls) > l.overdue && l.pipe.standsStillLocked(now)
	}
	if l.slots.taken < l.options.Concurrency {
		return false
	}
	for c := range l.calls {
		if c.doubted || now.Sub(c.begun) < l.options.Standstill {
			return false
		}
	}
	return true
}

// oweAllLocked puts the subscriber as a whole in debt: it gives out nothing that is not owed, and everything
// behind debt leaves the window as soon as the handlers at work have ended.
func (l *Lane) oweAllLocked(why string) {
	s := &l.scope
	s.mode.oweAll()
	s.urgent = true
	clear(s.keys)
	for _, q := range l.backlog.keys {
		l.moveBehindDebtLocked(q)
	}
	l.abandonOverdueLocked()
	l.metrics.inDebt.Set(1)
	l.log.Warn("subscriber falls into debt; its events are recorded and sent later, in order", "why", why, "events", len(s.behindDebt))
}

// oweKeysLocked puts some keys in debt; the others stay live.
func (l *Lane) oweKeysLocked(queues []*keyQueue) {
	s := &l.scope
	if len(s.keys)+len(queues) > maxKeys {
		l.oweAllLocked("too many of its keys stand still")
		return
	}
	s.urgent = true
	first := queues[0].key // a queue that has given everything away has none any more
	for _, q := range queues {
		s.keys[q.key] += 0 // in scope even before anything is recorded
		l.moveBehindDebtLocked(q)
	}
	l.abandonOverdueLocked()
	l.metrics.keysInDebt.Set(float64(len(s.keys)))
	l.log.Warn("keys fall into debt; their events are recorded and sent later, in order", "keys", len(queues), "first", first, "events", len(s.behindDebt))
}

// blockKeyLocked keeps everything of a key behind its dead letter: live events stand behind debt, and owed ones stay recorded.
func (l *Lane) blockKeyLocked(key string) {
	l.scope.blocked[key] = true
	if q := l.backlog.keys[key]; q != nil {
		l.moveBehindDebtLocked(q)
		l.giveUpLocked(q)
	}
}

// moveBehindDebtLocked moves the live events of a key that are not in work behind its debt.
func (l *Lane) moveBehindDebtLocked(q *keyQueue) {
	stay := q.items[:0:0]
	for _, it := range q.items {
		if it.origin.oweLocked(l, it) {
			stay = append(stay, it)
		}
	}
	q.items = stay
	l.backlog.releaseEmpty(q)
}

// abandonOverdueLocked lets events of calls that do not return be recorded, where they are in scope. Their
// keys stay in work until the handlers return, so nothing of them is handed over meanwhile.
func (l *Lane) abandonOverdueLocked() {
	for c := range l.calls {
		if !c.overdue {
			continue
		}
		for _, it := range c.items {
			switch {
			case !it.isLive() || it.abandoned || it.finished:
			case it.recorded != notRecorded:
				it.abandoned = true
				l.endRecordedLocked(it, it.recorded)
			case l.inScopeLocked(it):
				it.abandoned = true
				copied, past := *it, it.past()
				copied.abandoned, copied.queue, copied.failure = false, nil, &past
				l.scope.behindDebt = append(l.scope.behindDebt, &copied)
				l.scope.recordBeforeReading(&copied)
			}
		}
	}
}

// liveAtWorkLocked reports whether a handler has a live event in scope in hand. Until it ends, or is overdue,
// nothing behind debt is recorded and nothing owed is read: it is older than all of that.
func (l *Lane) liveAtWorkLocked() bool {
	for c := range l.calls {
		if c.overdue {
			continue
		}
		for _, it := range c.items {
			if it.isLive() && (it.recorded != notRecorded || l.inScopeLocked(it)) {
				return true
			}
		}
	}
	return false
}

// leaveDebtLocked lets go of keys of which nothing is recorded any more, and releases what stood behind
// them, in order.
func (l *Lane) leaveDebtLocked() {
	s := &l.scope
	if s.urgent {
		return
	}
	s.sortBehindDebt()
	for key, waiting := range s.keys {
		if waiting <= 0 {
			delete(s.keys, key)
		}
	}
	l.metrics.keysInDebt.Set(float64(len(s.keys)))
	var still []*item
	for _, it := range s.behindDebt {
		if l.inScopeLocked(it) {
			still = append(still, it)
			continue
		}
		l.backlog.push(l.keyOf(it.ev), it)
	}
	s.behindDebt = still
	l.startCallsLocked()
}

// narrowLocked turns a debt of the whole subscriber into one of the keys that still have something in hand;
// everything that is recorded must be in hand.
func (l *Lane) narrowLocked() {
	s := &l.scope
	if s.mode != debtOfAll || s.urgent {
		return // what stands behind debt must be recorded first: it is older than what comes now
	}
	s.mode.narrow()
	clear(s.keys)
	for _, it := range l.owedItemsLocked() {
		s.keys[l.keyOf(it.ev)]++
	}
	l.metrics.inDebt.Set(0)
	l.log.Info("subscriber has caught up with its debt", "keys_left", len(s.keys))
	l.leaveDebtLocked() // at once: an event that comes now must not overtake one that stands behind debt
}

// narrowToLocked makes the debt one of the keys that were counted: how many deliveries of each wait, in hand or not.
func (l *Lane) narrowToLocked(counts map[string]int) {
	s := &l.scope
	if l.breaker.open() || s.urgent || s.mode == debtPaused {
		return
	}
	if s.mode.whole() {
		s.mode.narrow()
		l.metrics.inDebt.Set(0)
		l.log.Info("subscriber has caught up with its debt, but for some keys", "keys_left", len(counts))
	}
	clear(s.keys)
	for key, n := range counts {
		switch l.options.Ordering {
		case ByKey:
			s.keys[key] = n
		case Total:
			s.keys[""] += n
		case None: // nothing waits for what is owed
		}
	}
	// A dead letter may have been recorded before the count, and will be taken off it: count it once more.
	for c := range l.calls {
		for _, it := range c.items {
			if _, ok := s.keys[l.keyOf(it.ev)]; ok && it.dead && it.fromDebt() {
				s.keys[l.keyOf(it.ev)]++
			}
		}
	}
	l.leaveDebtLocked()
}

// widenLocked puts in debt what else turns out to be recorded. It never lets anything out of the scope.
func (l *Lane) widenLocked(debt Debt) {
	s := &l.scope
	if s.mode.whole() {
		return
	}
	if debt.More {
		l.oweAllLocked("so much is recorded")
		return
	}
	for key := range debt.Keys {
		switch l.options.Ordering {
		case None: // nothing waits for what is owed
			continue
		case Total:
			key = ""
		case ByKey:
		}
		s.keys[key] = unknown
		if q := l.backlog.keys[key]; q != nil {
			l.moveBehindDebtLocked(q)
		}
	}
	l.abandonOverdueLocked()
}

// owedItemsLocked lists everything that was read from the debt and is neither removed there nor given up.
func (l *Lane) owedItemsLocked() []*item {
	var items []*item
	for _, q := range l.backlog.keys {
		for _, it := range q.items {
			if it.fromDebt() {
				items = append(items, it)
			}
		}
	}
	for c := range l.calls {
		for _, it := range c.items {
			if it.fromDebt() {
				items = append(items, it)
			}
		}
	}
	return append(items, l.scope.paid...)
}

// giveUpLocked drops what was read from the debt of a key and is not in work: it stays recorded and is read
// again later. What is only replayed is given back.
func (l *Lane) giveUpLocked(q *keyQueue) {
	stay := q.items[:0:0]
	for _, it := range q.items {
		if it.origin.giveUpLocked(l, it) {
			stay = append(stay, it)
		}
	}
	q.items = stay
	l.backlog.releaseEmpty(q)
}

// takeInHand and dropFromHand count what was read from the debt.
func (s *scope) takeInHand(it *item) {
	s.inHand++
	s.inHandBytes += int64(it.ev.Size())
	if len(s.counted) == 0 {
		return
	}
	if counted := s.counted[hashOf(it)]; counted > 0 {
		it.failing().counted = counted
		delete(s.counted, hashOf(it))
	}
}

// countedLimit bounds scope.counted to a few megabytes. Who finds no room starts to count again, until those
// that have room are dead letters or delivered.
const countedLimit = 100_000

// keepCount remembers the failures that count of an item that is given up.
func (s *scope) keepCount(it *item) {
	if counted := it.past().counted; counted > 0 && len(s.counted) < countedLimit {
		s.counted[hashOf(it)] = counted
	}
}

func hashOf(it *item) uint64 { return maphash.Comparable(keySeed, it.ev.Identity()) }

func (s *scope) dropFromHand(it *item) {
	s.inHand--
	s.inHandBytes -= int64(it.ev.Size())
}

// sortBehindDebt puts it in the order of the stream: what came back from a handler is older than
// what was offered meanwhile.
func (s *scope) sortBehindDebt() {
	byPosition := func(a, b *item) int { return a.ev.Position.Compare(b.ev.Position) }
	if !slices.IsSortedFunc(s.behindDebt, byPosition) {
		slices.SortStableFunc(s.behindDebt, byPosition)
	}
}
