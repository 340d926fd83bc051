package lane

import (
	"context"
	"fmt"
	"slices"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/printable"
)

// lookUpUnchecked looks up whether what the stream brings is recorded already, after a restart or after a person's change.
func (d *debtReader) lookUpUnchecked(ctx context.Context) error {
	l := d.l
	passed := l.stream.Passed() // before the list is read: everything up to that point is in it
	l.mu.Lock()
	lookUp, unchecked := l.scope.lookUp, l.scope.unchecked
	l.mu.Unlock()
	if !lookUp {
		return nil
	}
	known, finished := make(map[*item]Recorded), unchecked
	if d.lookUps.marksOnly {
		finished = d.belowConfirmed(unchecked)
	} else {
		var err error
		if known, err = d.lookUp(ctx, unchecked); err != nil {
			return err
		}
	}
	if err := d.addMarked(ctx, finished, known); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admitLocked(len(unchecked), known)
	d.passedLocked(passed)
	l.startCallsLocked()
	return nil
}

// belowConfirmed are those of the items, which are in the order of the stream, that the leader before had recorded: a mark
// of their rows is its own, and not that of another program.
func (d *debtReader) belowConfirmed(items []*item) []*item {
	n := slices.IndexFunc(items, func(it *item) bool { return it.ev.Position.Commit >= d.l.stream.Confirmed })
	if n < 0 {
		return items
	}
	return items[:n]
}

// lookUp returns what is recorded of live deliveries. Those that stand at a made-up position take their real one: so
// the debt gives them out in the order of their keys.
func (d *debtReader) lookUp(ctx context.Context, items []*item) (map[*item]Recorded, error) {
	l := d.l
	known := make(map[*item]Recorded)
	if len(items) == 0 {
		return known, nil
	}
	events := make([]*event.Event, len(items))
	for i, it := range items {
		events[i] = it.ev
	}
	found, err := l.ower.Known(ctx, l.Name(), events)
	if err != nil {
		return nil, fmt.Errorf("look up what is owed: %w", err)
	}
	var added []Owed
	l.mu.Lock()
	for i, recorded := range found {
		if recorded.Other {
			continue // says nothing of this row: it is sent, or meets the other one when it is recorded
		}
		known[items[i]] = recorded
		if recorded.State == StateWaiting {
			d.waiting, d.pass.unread = true, true
		}
		if recorded.MadeUp && recorded.State != StatePaid {
			added = append(added, items[i].owedLocked())
			d.count.noteRecorded(items[i].ev)
		}
	}
	l.mu.Unlock()
	if len(added) > 0 {
		if _, err := l.ower.Record(ctx, l.Name(), added); err != nil {
			return nil, fmt.Errorf("record where %s stand: %w", printable.Count(len(added), "added delivery"), err)
		}
		d.pass.again = true // one may stand before the cursor now
	}
	return known, nil
}

// addMarked adds those of the items that are not known to the debt and whose rows are marked, as paid: the stream brings
// them again, and they would come behind later ones of their keys that are owed.
func (d *debtReader) addMarked(ctx context.Context, items []*item, known map[*item]Recorded) error {
	var others []*item
	var events []*event.Event
	for _, it := range items {
		if _, ok := known[it]; !ok {
			others, events = append(others, it), append(events, it.ev)
		}
	}
	if len(events) == 0 {
		return nil
	}
	marked, err := d.l.ower.FindMarked(ctx, events)
	if err != nil {
		return fmt.Errorf("look up marks: %w", err)
	}
	for _, n := range marked {
		known[others[n]] = Recorded{State: StatePaid}
	}
	return nil
}

// passedLocked is called when everything that the stream had handed over at a position is looked up.
func (d *debtReader) passedLocked(passed event.LSN) {
	l := d.l
	for key, bound := range d.lookUps.keys {
		if passed >= bound {
			delete(d.lookUps.keys, key)
			d.readAgain()
		}
	}
	if passed >= d.lookUps.until {
		l.admitLocked(len(l.scope.unchecked), nil) // it came later
		l.scope.lookUp, l.scope.unread = false, false
	}
}

// expectLocked prepares for what was added to the debt although the stream may still bring it, or has brought it and
// it is open here: what is recorded is the truth. What is open is looked up next, and what comes is looked up until
// the stream has passed the bound of what was added. Its key is not read before: earlier events of it may come.
func (d *debtReader) expectLocked(debt Debt) {
	s := &d.l.scope
	if debt.Bound == 0 {
		return
	}
	d.lookUps.open = true
	passed := d.l.stream.Passed()
	if passed >= debt.Bound {
		return
	}
	s.lookUp, d.lookUps.marksOnly = true, false
	d.lookUps.until = max(d.lookUps.until, debt.Bound)
	if debt.More {
		s.unread = true
	}
	for key, bound := range debt.Bounds {
		switch d.l.options.Ordering {
		case None: // nothing waits for what is owed
			continue
		case Total:
			key = ""
		case ByKey:
		}
		if bound > passed {
			d.lookUps.keys[key] = max(d.lookUps.keys[key], bound)
		}
	}
	if len(d.lookUps.keys) > maxKeys {
		s.unread = true
		clear(d.lookUps.keys)
	}
}

// lookUpOpen looks up whether the debt has what is open here.
func (d *debtReader) lookUpOpen(ctx context.Context) error {
	l := d.l
	if !d.lookUps.open {
		return nil
	}
	l.mu.Lock()
	open := l.liveLocked()
	l.mu.Unlock()
	known, err := d.lookUp(ctx, open)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d.lookUps.open = false
	if len(known) > 0 {
		l.yieldToDebtLocked(known)
		l.startCallsLocked()
	}
	return nil
}
