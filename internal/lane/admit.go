package lane

import "slices"

// admitLocked lets the first n of the events that were looked up into the lane. known has those that are recorded.
func (l *holdings) admitLocked(n int, known map[*item]Recorded) {
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
			l.backlog.push(l.options.Ordering.keyOf(it.ev), it)
		}
	}
	s.unchecked = rest(s.unchecked, n)
	l.metrics.open.Set(float64(l.open))
}

// liveLocked lists the live deliveries of the lane, but for those that are still to be looked up.
func (l *holdings) liveLocked() []*item {
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
	for c := range l.calls.all {
		add(c.items)
	}
	return live
}

// yieldToDebtLocked ends the live deliveries that the debt turns out to have already, because a person has added
// them: what is recorded is the truth. One that is in its handler ends when the handler returns.
func (l *holdings) yieldToDebtLocked(known map[*item]Recorded) {
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
	for c := range l.calls.all {
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
