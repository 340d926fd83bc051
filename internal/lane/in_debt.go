package lane

import (
	"slices"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

func (h *holdings) inScopeLocked(it *item) bool {
	s := &h.scope
	switch {
	case s.mode.whole():
		return true
	case len(s.keys) == 0 && len(s.blocked) == 0:
		return false
	}
	key := h.options.Ordering.keyOf(it.ev)
	_, owed := s.keys[key]
	return owed || s.blocked[key]
}

func (h *holdings) keepBehindDebtLocked(it *item) {
	h.scope.behindDebt = append(h.scope.behindDebt, it)
	signal(h.readerWake)
}

// oweAllLocked puts the subscriber as a whole in debt: it gives out nothing that is not owed, and everything
// behind debt leaves the window as soon as the handlers at work have ended.
func (h *holdings) oweAllLocked(why string) {
	s := &h.scope
	s.mode.oweAll()
	s.urgent = true
	clear(s.keys)
	for _, q := range h.backlog.keys {
		h.moveBehindDebtLocked(q)
	}
	h.abandonOverdueLocked()
	h.metrics.inDebt.Set(1)
	h.log.Warn("subscriber falls into debt; its events are recorded and sent later, in order", "why", why, "events", len(s.behindDebt))
}

// oweKeysLocked puts some keys in debt; the others stay live.
func (h *holdings) oweKeysLocked(queues []*keyQueue) {
	s := &h.scope
	if len(s.keys)+len(queues) > maxKeys {
		h.oweAllLocked("too many of its keys stand still")
		return
	}
	s.urgent = true
	first := queues[0].key // a queue that has given everything away has none any more
	for _, q := range queues {
		s.keys[q.key] += 0 // in scope even before anything is recorded
		h.moveBehindDebtLocked(q)
	}
	h.abandonOverdueLocked()
	h.metrics.keysInDebt.Set(float64(len(s.keys)))
	h.log.Warn("keys fall into debt; their events are recorded and sent later, in order", "keys", len(queues), "first", first, "events", len(s.behindDebt))
}

// oweKeyLocked puts the key of a delivery that waits in the debt in debt, if it is not.
func (h *holdings) oweKeyLocked(it *item, state State) {
	s := &h.scope
	key := h.options.Ordering.keyOf(it.ev)
	if _, ok := s.keys[key]; ok || state != StateWaiting || s.mode.whole() || h.options.Ordering == None {
		return
	}
	h.oweUnknownLocked(key)
}

// oweUnknownLocked puts a key in debt of which something is recorded, but it is not known how much.
func (h *holdings) oweUnknownLocked(key string) {
	s := &h.scope
	if s.mode.whole() {
		return
	}
	s.keys[key] = unknown
	if len(s.keys) > maxKeys {
		h.oweAllLocked("too much is recorded")
		return
	}
	if q := h.backlog.keys[key]; q != nil {
		h.moveBehindDebtLocked(q)
	}
}

// blockKeyLocked keeps everything of a key behind its dead letter: live events stand behind debt, and owed ones stay recorded.
func (h *holdings) blockKeyLocked(key string) {
	h.scope.blocked[key] = true
	if q := h.backlog.keys[key]; q != nil {
		h.moveBehindDebtLocked(q)
		h.giveUpLocked(q)
	}
}

// moveBehindDebtLocked moves the live events of a key that are not in work behind its debt. What is replayed is given
// back, and what was read from the debt stays: it is recorded already.
func (h *holdings) moveBehindDebtLocked(q *keyQueue) {
	h.backlog.remove(q, func(it *item) bool {
		switch o := it.origin.(type) {
		case liveOrigin:
			h.scope.behindDebt = append(h.scope.behindDebt, it)
		case replayOrigin:
			h.giveBackLocked(o, it)
		case owedOrigin:
			return false
		}
		return true
	})
}

// abandonOverdueLocked lets events of calls that do not return be recorded, where they are in scope. Their
// keys stay in work until the handlers return, so nothing of them is handed over meanwhile.
func (h *holdings) abandonOverdueLocked() {
	for c := range h.calls.all {
		if !c.overdue {
			continue
		}
		for _, it := range c.items {
			switch {
			case !it.isLive() || it.abandoned || it.finished:
			case it.recorded != notRecorded:
				it.abandoned = true
				h.endRecordedLocked(it, it.recorded)
			case h.inScopeLocked(it):
				it.abandoned = true
				copied, past := *it, it.past()
				copied.abandoned, copied.queue, copied.failure = false, nil, &past
				h.scope.behindDebt = append(h.scope.behindDebt, &copied)
				h.scope.recordBeforeReading(&copied)
			}
		}
	}
}

// liveAtWorkLocked reports whether a handler has a live event in scope in hand. Until it ends, or is overdue,
// nothing behind debt is recorded and nothing owed is read: it is older than all of that.
func (h *holdings) liveAtWorkLocked() bool {
	for c := range h.calls.all {
		if c.overdue {
			continue
		}
		for _, it := range c.items {
			if it.isLive() && (it.recorded != notRecorded || h.inScopeLocked(it)) {
				return true
			}
		}
	}
	return false
}

// leaveDebtLocked lets go of keys of which nothing is recorded any more, and releases what stood behind
// them, in order.
func (h *holdings) leaveDebtLocked() {
	s := &h.scope
	if s.urgent {
		return
	}
	s.sortBehindDebt()
	for key, waiting := range s.keys {
		if waiting <= 0 {
			delete(s.keys, key)
		}
	}
	h.metrics.keysInDebt.Set(float64(len(s.keys)))
	var still []*item
	for _, it := range s.behindDebt {
		if h.inScopeLocked(it) {
			still = append(still, it)
			continue
		}
		h.backlog.push(h.options.Ordering.keyOf(it.ev), it)
	}
	s.behindDebt = still
}

// narrowLocked turns a debt of the whole subscriber into one of the keys that still have something in hand;
// everything that is recorded must be in hand.
func (h *holdings) narrowLocked() {
	s := &h.scope
	if s.mode != debtOfAll || s.urgent || s.manyBlocked {
		return // what stands behind debt must be recorded first: it is older than what comes now
	}
	s.mode.narrow()
	clear(s.keys)
	for _, it := range h.owedItemsLocked() {
		s.keys[h.options.Ordering.keyOf(it.ev)]++
	}
	h.metrics.inDebt.Set(0)
	h.log.Info("subscriber has caught up with its debt", "keys_left", len(s.keys))
	h.leaveDebtLocked() // at once: an event that comes now must not overtake one that stands behind debt
}

// narrowToLocked makes the debt one of the keys that were counted: how many deliveries of each wait, in hand or not.
func (h *holdings) narrowToLocked(counts map[string]int) {
	s := &h.scope
	if h.breaker.open() || s.urgent || s.mode == debtPaused || s.manyBlocked {
		return
	}
	if s.mode.whole() {
		s.mode.narrow()
		h.metrics.inDebt.Set(0)
		h.log.Info("subscriber has caught up with its debt, but for some keys", "keys_left", len(counts))
	}
	clear(s.keys)
	for key, n := range counts {
		switch h.options.Ordering {
		case ByKey:
			s.keys[key] = n
		case Total:
			s.keys[""] += n
		case None: // nothing waits for what is owed
		}
	}
	// A dead letter may have been recorded before the count, and will be taken off it: count it once more.
	for c := range h.calls.all {
		for _, it := range c.items {
			if _, ok := s.keys[h.options.Ordering.keyOf(it.ev)]; ok && it.dead && it.fromDebt() {
				s.keys[h.options.Ordering.keyOf(it.ev)]++
			}
		}
	}
	h.leaveDebtLocked()
}

// widenLocked puts in debt what else turns out to be recorded. It never lets anything out of the scope.
func (h *holdings) widenLocked(debt Debt) {
	s := &h.scope
	if s.mode.whole() {
		return
	}
	if debt.More {
		h.oweAllLocked("so much is recorded")
		return
	}
	for key := range debt.Keys {
		switch h.options.Ordering {
		case None: // nothing waits for what is owed
			continue
		case Total:
			key = ""
		case ByKey:
		}
		h.oweUnknownLocked(key)
	}
	h.abandonOverdueLocked()
}

// owedItemsLocked lists everything that was read from the debt and is neither removed there nor given up.
func (h *holdings) owedItemsLocked() []*item {
	var items []*item
	for _, q := range h.backlog.keys {
		for _, it := range q.items {
			if it.fromDebt() {
				items = append(items, it)
			}
		}
	}
	for c := range h.calls.all {
		for _, it := range c.items {
			if it.fromDebt() {
				items = append(items, it)
			}
		}
	}
	return append(items, h.scope.paid...)
}

// giveUpLocked drops what was read from the debt of a key and is not in work: it stays recorded and is read
// again later. What is replayed is given back.
func (h *holdings) giveUpLocked(q *keyQueue) {
	h.backlog.remove(q, h.giveUpItemLocked)
}

// giveUpTailLocked is giveUpLocked for what a key has more than its first delivery and so much of its debt. It returns what
// it has given up.
func (h *holdings) giveUpTailLocked(q *keyQueue, room int, roomBytes int64) (number int, bytes int64) {
	first := true
	h.backlog.remove(q, func(it *item) bool {
		head := first
		first = false
		if !it.fromDebt() {
			return false
		}
		size := int64(it.ev.Size())
		room, roomBytes = room-1, roomBytes-size
		if head || room >= 0 && roomBytes >= 0 || !h.giveUpItemLocked(it) {
			return false
		}
		number, bytes = number+1, bytes+size
		return true
	})
	return number, bytes
}

// giveUpItemLocked does it for one item, and reports whether it leaves the lane: a live one stays.
func (h *holdings) giveUpItemLocked(it *item) bool {
	switch o := it.origin.(type) {
	case owedOrigin:
		h.scope.dropFromHand(it)
		h.scope.keepCount(it)
	case replayOrigin:
		h.giveBackLocked(o, it)
	case liveOrigin:
		return false
	}
	return true
}

// giveBackLocked returns an item of a replay to its caller, and remembers how it has failed.
func (h *holdings) giveBackLocked(of replayOrigin, it *item) {
	if it.attempts() > 0 {
		if h.tried == nil {
			h.tried = make(map[*event.Event]*item)
		}
		h.tried[it.ev] = it
	}
	of.giveBack(it.number, it.ev)
}

// dropReplaysLocked gives back what replays have queued of a key.
func (h *holdings) dropReplaysLocked(q *keyQueue) {
	q.items = slices.DeleteFunc(q.items, func(it *item) bool {
		of, replayed := it.origin.(replayOrigin)
		if replayed {
			h.giveBackLocked(of, it)
		}
		return replayed
	})
}

// pauseLocked puts the subscriber in debt and gives up what was read from it. No call begins before it is resumed.
func (h *holdings) pauseLocked(why string) {
	if h.scope.mode == debtPaused {
		return
	}
	if !h.scope.mode.whole() {
		h.oweAllLocked(why)
	}
	h.scope.mode.pause()
	for _, q := range h.backlog.keys {
		h.giveUpLocked(q)
	}
}

// endRecordedLocked ends a live delivery that the debt has already: it is sent from there, or not at all.
func (h *holdings) endRecordedLocked(it *item, as recordedAs) {
	h.open--
	if as == recordedEnded { // finished
		h.acks.Finish(ack.End{Delivery: it.delivery(), Recorded: true})
		return
	}
	h.acks.Secure([]*ack.Delivery{it.delivery()})
	h.scope.recordBeforeReading(it)
}
