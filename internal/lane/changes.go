package lane

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/printable"
)

// refresh asks what people have changed, and how far the debt reaches back.
func (d *debtReader) refresh(ctx context.Context) error {
	l := d.l
	d.refreshedAt = time.Now()
	changes, err := l.ower.Changes(ctx, l.Name())
	if err != nil {
		return fmt.Errorf("ask what people have changed: %w", err)
	}
	oldest := (*event.Position)(nil)
	if changes.Any {
		oldest = &changes.Oldest
	}
	l.acks.Owes(l.number, oldest, changes.Holds)
	if err := d.refreshBlocked(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	switch {
	case changes.Paused:
		l.pauseLocked("it is paused")
	case l.scope.mode == debtPaused && l.unwanted == nil:
		l.scope.mode.resume()
		d.readAgain() // what was in hand was given up, and stands before the cursor
	}
	l.stats.OwesSince, l.stats.OwesSinceAt = oldest, changes.OldestAt
	// A person has sent again, added or discarded something; or, by hand, without a note of it.
	changed := changes.Change != d.change || changes.Any && !d.waiting && len(l.scope.blocked) == 0
	l.mu.Unlock()
	if !changed {
		return nil
	}
	debt, err := l.ower.Load(ctx, l.Name(), l.acks.Secured(l.number), maxKeys)
	if err != nil {
		return fmt.Errorf("learn what is owed: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d.change = debt.Change
	l.widenLocked(debt)
	d.expectLocked(debt)
	for _, q := range l.backlog.keys {
		l.giveUpLocked(q) // it may have been discarded, or be dead now
	}
	d.readAgain()
	return nil
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
		known[items[i]] = recorded
		if recorded.State == StateWaiting {
			d.waiting, d.pass.unread = true, true
		}
		if recorded.MadeUp && recorded.State != StatePaid {
			added = append(added, items[i].owedLocked())
		}
	}
	l.mu.Unlock()
	if len(added) > 0 {
		if err := l.ower.Record(ctx, l.Name(), added); err != nil {
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

// pauseOnItsWord writes down that the subscriber is paused on its own word, until that has worked; what follows is as
// if a person had done it. The lane has stopped already.
func (d *debtReader) pauseOnItsWord(ctx context.Context) error {
	l := d.l
	l.mu.Lock()
	why := l.unwanted
	l.mu.Unlock()
	if why == nil {
		return nil
	}
	if err := l.ower.Unwanted(ctx, l.Name(), why.Error()); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	l.log.Error("the subscriber wants nothing any more and is paused until a person resumes it", "err", why)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unwanted, l.refreshNow = nil, true
	return nil
}

// pauseLocked puts the subscriber in debt and gives up what was read from it. No call begins before it is resumed.
func (l *Lane) pauseLocked(why string) {
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

// refreshBlocked keeps the keys that wait behind a dead letter, and begins a new pass when a person has
// dealt with one.
func (d *debtReader) refreshBlocked(ctx context.Context) error {
	l := d.l
	if !l.options.BlockKey {
		return nil
	}
	l.mu.Lock()
	before := maps.Clone(l.scope.blocked) // one that is added meanwhile is not in the answer
	l.mu.Unlock()
	keys, err := l.ower.Blocked(ctx, l.Name())
	if err != nil {
		return fmt.Errorf("ask for blocked keys: %w", err)
	}
	now := make(map[string]bool, len(keys))
	for _, key := range keys {
		if l.options.Ordering == Total {
			key = ""
		}
		now[key] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range before {
		if !now[key] {
			delete(l.scope.blocked, key)
			if l.options.Ordering != None {
				l.scope.keys[key] = unknown // what waited behind the dead letter goes first
			}
			d.readAgain()
		}
	}
	for key := range now {
		if !before[key] {
			l.blockKeyLocked(key)
		}
	}
	return nil
}
