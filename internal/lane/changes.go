package lane

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/backendstart/walpost/internal/event"
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
	changed := changes.Change != d.change || changes.Any && !d.waiting && len(l.scope.blocked) == 0 && !l.scope.manyBlocked
	l.mu.Unlock()
	if !changed {
		return nil
	}
	debt, err := l.ower.Load(ctx, l.Name(), l.acks.Secured(l.number), readLimit)
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

// refreshBlocked keeps the keys that wait behind a dead letter, and begins a new pass when a person has
// dealt with one. Of more than maxKeys it keeps none: the subscriber is in debt as a whole, and the reads of the debt
// leave them out by what is recorded.
func (d *debtReader) refreshBlocked(ctx context.Context) error {
	l := d.l
	if !l.options.BlockKey {
		return nil
	}
	l.mu.Lock()
	before := maps.Clone(l.scope.blocked) // one that is added meanwhile is not in the answer
	l.mu.Unlock()
	keys, err := l.ower.Blocked(ctx, l.Name(), maxKeys)
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
	s := &l.scope
	if len(now) > maxKeys && l.options.Ordering == ByKey {
		for key := range before {
			delete(s.blocked, key)
		}
		if !s.manyBlocked {
			s.manyBlocked = true
			if !s.mode.whole() {
				l.oweAllLocked("too many of its keys wait behind dead letters")
			}
			for _, q := range l.backlog.keys {
				l.giveUpLocked(q) // it may be one of them
			}
			d.readAgain()
		}
		return nil
	}
	if s.manyBlocked {
		s.manyBlocked = false
		d.readAgain()
	}
	for key := range before {
		if !now[key] {
			delete(s.blocked, key)
			if l.options.Ordering != None {
				l.oweUnknownLocked(key) // what waited behind the dead letter goes first
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

// Refresh lets the lane ask at once what people have changed, and not only at the next interval.
func (l *Lane) Refresh() {
	l.mu.Lock()
	l.refreshNow = true
	l.mu.Unlock()
	signal(l.readerWake)
}

// refreshDue reports whether it is time to ask what people have changed.
func (d *debtReader) refreshDue() bool {
	l := d.l
	l.mu.Lock()
	defer l.mu.Unlock()
	due := l.refreshNow || time.Since(d.refreshedAt) >= refreshInterval
	l.refreshNow = false
	return due
}
