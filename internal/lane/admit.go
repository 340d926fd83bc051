package lane

import "slices"

// admitLocked lets the first n of the events that were looked up into the lane. known has those that are recorded.
func (h *holdings) admitLocked(n int, known map[*item]Recorded) {
	s := &h.scope
	for _, it := range s.unchecked[:n] {
		switch recorded, ok := known[it]; {
		case ok:
			h.endRecordedLocked(it, recordedIn(recorded.State))
			h.oweKeyLocked(it, recorded.State)
		case h.inScopeLocked(it):
			h.keepBehindDebtLocked(it)
			if known != nil { // it can be older than what is recorded of its key
				s.recordBeforeReading(it)
			}
		default:
			h.backlog.push(h.options.Ordering.keyOf(it.ev), it)
		}
	}
	s.unchecked = rest(s.unchecked, n)
	h.metrics.open.Set(float64(h.open))
}

// liveLocked lists the live deliveries of the lane, but for those that are still to be looked up.
func (h *holdings) liveLocked() []*item {
	live := slices.Clone(h.scope.behindDebt)
	add := func(items []*item) {
		for _, it := range items {
			if it.isLive() && !it.abandoned {
				live = append(live, it)
			}
		}
	}
	for _, q := range h.backlog.keys {
		add(q.items)
	}
	for c := range h.calls.all {
		add(c.items)
	}
	return live
}

// yieldToDebtLocked ends the live deliveries that the debt turns out to have already, because a person has added
// them: what is recorded is the truth. One that is in its handler ends when the handler returns.
func (h *holdings) yieldToDebtLocked(known map[*item]Recorded) {
	s := &h.scope
	recorded := func(it *item) bool {
		r, ok := known[it]
		if ok {
			h.endRecordedLocked(it, recordedIn(r.State))
		}
		return ok
	}
	for _, q := range h.backlog.keys {
		before := len(q.items)
		if q.items = slices.DeleteFunc(q.items, recorded); len(q.items) == before || q.state != retrying {
			continue
		}
		if len(q.items) == 0 {
			h.backlog.releaseEmpty(q)
			continue
		}
		h.backlog.makeReady(q) // what has failed may be gone
	}
	s.behindDebt = slices.DeleteFunc(s.behindDebt, recorded)
	for c := range h.calls.all {
		for _, it := range c.items {
			it.recorded = recordedIn(known[it].State)
		}
	}
	for it, r := range known {
		h.oweKeyLocked(it, r.State)
	}
	h.abandonOverdueLocked()
	h.metrics.open.Set(float64(h.open))
}
