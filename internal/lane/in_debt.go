package lane

import (
	"slices"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

func (l *holdings) inScopeLocked(it *item) bool {
	s := &l.scope
	switch {
	case s.mode.whole():
		return true
	case len(s.keys) == 0 && len(s.blocked) == 0:
		return false
	}
	key := l.options.Ordering.keyOf(it.ev)
	_, owed := s.keys[key]
	return owed || s.blocked[key]
}

func (l *holdings) keepBehindDebtLocked(it *item) {
	l.scope.behindDebt = append(l.scope.behindDebt, it)
	signal(l.readerWake)
}

// oweAllLocked puts the subscriber as a whole in debt: it gives out nothing that is not owed, and everything
// behind debt leaves the window as soon as the handlers at work have ended.
func (l *holdings) oweAllLocked(why string) {
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
func (l *holdings) oweKeysLocked(queues []*keyQueue) {
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

// oweKeyLocked puts the key of a delivery that waits in the debt in debt, if it is not.
func (l *holdings) oweKeyLocked(it *item, state State) {
	s := &l.scope
	key := l.options.Ordering.keyOf(it.ev)
	if _, ok := s.keys[key]; ok || state != StateWaiting || s.mode.whole() || l.options.Ordering == None {
		return
	}
	l.oweUnknownLocked(key)
}

// oweUnknownLocked puts a key in debt of which something is recorded, but it is not known how much.
func (l *holdings) oweUnknownLocked(key string) {
	s := &l.scope
	if s.mode.whole() {
		return
	}
	s.keys[key] = unknown
	if len(s.keys) > maxKeys {
		l.oweAllLocked("too much is recorded")
		return
	}
	if q := l.backlog.keys[key]; q != nil {
		l.moveBehindDebtLocked(q)
	}
}

// blockKeyLocked keeps everything of a key behind its dead letter: live events stand behind debt, and owed ones stay recorded.
func (l *holdings) blockKeyLocked(key string) {
	l.scope.blocked[key] = true
	if q := l.backlog.keys[key]; q != nil {
		l.moveBehindDebtLocked(q)
		l.giveUpLocked(q)
	}
}

// moveBehindDebtLocked moves the live events of a key that are not in work behind its debt. What is replayed is given
// back, and what was read from the debt stays: it is recorded already.
func (l *holdings) moveBehindDebtLocked(q *keyQueue) {
	l.backlog.remove(q, func(it *item) bool {
		switch o := it.origin.(type) {
		case liveOrigin:
			l.scope.behindDebt = append(l.scope.behindDebt, it)
		case replayOrigin:
			l.giveBackLocked(o, it)
		case owedOrigin:
			return false
		}
		return true
	})
}

// abandonOverdueLocked lets events of calls that do not return be recorded, where they are in scope. Their
// keys stay in work until the handlers return, so nothing of them is handed over meanwhile.
func (l *holdings) abandonOverdueLocked() {
	for c := range l.calls.all {
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
func (l *holdings) liveAtWorkLocked() bool {
	for c := range l.calls.all {
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
func (l *holdings) leaveDebtLocked() {
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
		l.backlog.push(l.options.Ordering.keyOf(it.ev), it)
	}
	s.behindDebt = still
}

// narrowLocked turns a debt of the whole subscriber into one of the keys that still have something in hand;
// everything that is recorded must be in hand.
func (l *holdings) narrowLocked() {
	s := &l.scope
	if s.mode != debtOfAll || s.urgent || s.manyBlocked {
		return // what stands behind debt must be recorded first: it is older than what comes now
	}
	s.mode.narrow()
	clear(s.keys)
	for _, it := range l.owedItemsLocked() {
		s.keys[l.options.Ordering.keyOf(it.ev)]++
	}
	l.metrics.inDebt.Set(0)
	l.log.Info("subscriber has caught up with its debt", "keys_left", len(s.keys))
	l.leaveDebtLocked() // at once: an event that comes now must not overtake one that stands behind debt
}

// narrowToLocked makes the debt one of the keys that were counted: how many deliveries of each wait, in hand or not.
func (l *holdings) narrowToLocked(counts map[string]int) {
	s := &l.scope
	if l.breaker.open() || s.urgent || s.mode == debtPaused || s.manyBlocked {
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
	for c := range l.calls.all {
		for _, it := range c.items {
			if _, ok := s.keys[l.options.Ordering.keyOf(it.ev)]; ok && it.dead && it.fromDebt() {
				s.keys[l.options.Ordering.keyOf(it.ev)]++
			}
		}
	}
	l.leaveDebtLocked()
}

// widenLocked puts in debt what else turns out to be recorded. It never lets anything out of the scope.
func (l *holdings) widenLocked(debt Debt) {
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
		l.oweUnknownLocked(key)
	}
	l.abandonOverdueLocked()
}

// owedItemsLocked lists everything that was read from the debt and is neither removed there nor given up.
func (l *holdings) owedItemsLocked() []*item {
	var items []*item
	for _, q := range l.backlog.keys {
		for _, it := range q.items {
			if it.fromDebt() {
				items = append(items, it)
			}
		}
	}
	for c := range l.calls.all {
		for _, it := range c.items {
			if it.fromDebt() {
				items = append(items, it)
			}
		}
	}
	return append(items, l.scope.paid...)
}

// giveUpLocked drops what was read from the debt of a key and is not in work: it stays recorded and is read
// again later. What is replayed is given back.
func (l *holdings) giveUpLocked(q *keyQueue) {
	l.backlog.remove(q, l.giveUpItemLocked)
}

// giveUpTailLocked is giveUpLocked for what a key has more than its first delivery and so much of its debt. It returns what
// it has given up.
func (l *holdings) giveUpTailLocked(q *keyQueue, room int, roomBytes int64) (number int, bytes int64) {
	first := true
	l.backlog.remove(q, func(it *item) bool {
		head := first
		first = false
		if !it.fromDebt() {
			return false
		}
		size := int64(it.ev.Size())
		room, roomBytes = room-1, roomBytes-size
		if head || room >= 0 && roomBytes >= 0 || !l.giveUpItemLocked(it) {
			return false
		}
		number, bytes = number+1, bytes+size
		return true
	})
	return number, bytes
}

// giveUpItemLocked does it for one item, and reports whether it leaves the lane: a live one stays.
func (l *holdings) giveUpItemLocked(it *item) bool {
	switch o := it.origin.(type) {
	case owedOrigin:
		l.scope.dropFromHand(it)
		l.scope.keepCount(it)
	case replayOrigin:
		l.giveBackLocked(o, it)
	case liveOrigin:
		return false
	}
	return true
}

// giveBackLocked returns an item of a replay to its caller, and remembers how it has failed.
func (l *holdings) giveBackLocked(of replayOrigin, it *item) {
	if it.attempts() > 0 {
		if l.tried == nil {
			l.tried = make(map[*event.Event]*item)
		}
		l.tried[it.ev] = it
	}
	of.giveBack(it.number, it.ev)
}

// dropReplaysLocked gives back what replays have queued of a key.
func (l *holdings) dropReplaysLocked(q *keyQueue) {
	q.items = slices.DeleteFunc(q.items, func(it *item) bool {
		of, replayed := it.origin.(replayOrigin)
		if replayed {
			l.giveBackLocked(of, it)
		}
		return replayed
	})
}

// pauseLocked puts the subscriber in debt and gives up what was read from it. No call begins before it is resumed.
func (l *holdings) pauseLocked(why string) {
	if l.scope.mode == debtPaused {
		return
	}
	if !l.scope.mode.whole() {
		l.oweAllLocked(why)
	}
	l.scope.mode.pause()
	for _, q := range l.backlog.keys {
		l.giveUpLocked(q)
	}
}

// endRecordedLocked ends a live delivery that the debt has already: it is sent from there, or not at all.
func (l *holdings) endRecordedLocked(it *item, as recordedAs) {
	l.open--
	if as == recordedEnded { // finished
		l.acks.Finish(ack.End{Delivery: it.delivery(), Recorded: true})
		return
	}
	l.acks.Secure([]*ack.Delivery{it.delivery()})
	l.scope.recordBeforeReading(it)
}
