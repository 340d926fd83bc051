package lane

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// look asks what people have changed, and how far the debt reaches back.
func (d *desk) look(ctx context.Context) error {
	l := d.l
	d.looked = time.Now()
	if err := d.pauseAsked(ctx); err != nil {
		return err
	}
	look, err := l.ower.Look(ctx, l.Name())
	if err != nil {
		return fmt.Errorf("look at what is owed: %w", err)
	}
	oldest := (*event.Position)(nil)
	if look.Any {
		oldest = &look.Oldest
	}
	l.acks.Owes(l.number, oldest)
	if err := d.lookForBlocked(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	if look.Paused {
		d.pause()
	}
	l.scope.paused = look.Paused
	l.stats.OwesSince, l.stats.OwesSinceAt = oldest, look.OldestAt
	// A person has sent again, added or discarded something; or, by hand, without a note of it.
	changed := look.Change != d.change || look.Any && !d.waiting && len(l.scope.blocked) == 0
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
	l.widen(debt)
	for _, q := range l.keys {
		l.giveUp(q) // it may have been discarded, or be dead now
	}
	d.again, d.waiting = true, true
	return nil
}

// pauseAsked pauses the subscriber on its own word; what follows is as if a person had done it.
func (d *desk) pauseAsked(ctx context.Context) error {
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
	l.unwanted = nil
	return nil
}

// pause puts the subscriber in debt and gives up what was read from it. The caller holds mu.
func (d *desk) pause() {
	l := d.l
	if l.scope.paused {
		return
	}
	if !l.scope.all {
		l.enterAll("it is paused")
	}
	for _, q := range l.keys {
		l.giveUp(q)
	}
	d.again = true
}

// lookForBlocked keeps the keys that wait behind a dead letter, and begins a new pass when a person has
// dealt with one.
func (d *desk) lookForBlocked(ctx context.Context) error {
	l := d.l
	if !l.options.BlockKey {
		return nil
	}
	l.mu.Lock()
	before := maps.Clone(l.scope.blocked) // one that is added meanwhile is not in the answer
	l.mu.Unlock()
	keys, err := l.ower.Blocked(ctx, l.Name())
	if err != nil {
		return fmt.Errorf("look at blocked keys: %w", err)
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
			d.again, d.waiting = true, true
		}
	}
	for key := range now {
		if !before[key] {
			l.block(key)
		}
	}
	return nil
}
