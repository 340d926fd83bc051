package relay

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

// What people do in the model, next to what happens by itself: they add, redrive, discard and replay, and put a
// subscriber into the configuration that begins with all rows. Retention deletes rows, and a process dies before or
// after any one of its writes.

// act lets one of these things happen, now and then. It has random numbers of its own, so that the rest of a history
// is the same with and without it.
func (h *history) act() {
	kind := h.people.IntN(9)
	switch often := h.plant.byPeople(); {
	case !often && h.people.IntN(4) > 0:
		return
	case h.plant.forgetsBound: // to find a bug they do what meets it
		kind = 0
	case h.plant.confirmsFirst:
		kind = 8
	}
	sub := h.subs[h.people.IntN(len(h.subs))]
	h.log.Debug("world: a person acts, or the process is about to die", "kind", kind, "subscriber", sub.name)
	switch kind {
	case 0, 1:
		h.add(sub, lane.StateWaiting)
	case 2:
		h.add(sub, lane.StateDead)
	case 3:
		h.redrive(sub)
	case 4:
		h.discard(sub)
	case 5:
		h.retain()
	case 6:
		h.replay(sub)
	case 7, 8:
		h.unclean = true // what was written and not answered for comes again
		h.server.mu.Lock()
		h.server.crashIn = 1 + h.people.IntN(40)
		h.server.mu.Unlock()
	}
}

// anyEvent is one that has committed, often one of the last, and often one that a subscriber has not had yet.
func (h *history) anyEvent(sub *modelSubscriber) modelEvent {
	commits := h.server.commits
	of := func(i int) modelEvent { return commits[i].events[h.people.IntN(len(commits[i].events))] }
	switch h.people.IntN(4) {
	case 0:
		return of(h.people.IntN(len(commits)))
	case 1:
		return of(len(commits) - 1 - h.people.IntN(min(len(commits), 20)))
	}
	e := of(len(commits) - 1)
	for i := len(commits) - 2; i >= 0 && i > len(commits)-20; i-- {
		if _, had := sub.had.Load(e.id); !had && h.people.IntN(4) == 0 {
			break
		}
		e = of(i)
	}
	return e
}

// freePosition is debt.FreePosition, and the end of the WAL.
func (s *modelServer) freePosition() (at event.Position, end event.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.added++
	return event.Position{Epoch: 1, Commit: max(s.recorded, 1) - 1, Ordinal: 1<<32 + s.added}, s.end
}

// add is `walpost owed add`. What the subscriber has had by then may come again. What has not come yet comes in its
// place, or, where it was made dead, not at all, if it is not in its handler.
func (h *history) add(sub *modelSubscriber, state lane.State) {
	if len(h.server.commits) == 0 {
		return
	}
	e := h.anyEvent(sub)
	if h.server.deleted[e.id] {
		return
	}
	ev := e.event()
	ev.Position, ev.Bound = h.server.freePosition()
	ev.Row = e.id
	sub.repaired[e.id], sub.again[e.id] = true, true
	if state == lane.StateDead {
		sub.ended[e.id] = true
	}
	h.log.Debug("world: a person adds", "subscriber", sub.name, "id", e.id, "state", state, "at", ev.Position)
	h.server.debt.Add(sub.name, ev, state)
}

// redrive is that of all dead letters. They come after later ones of their key.
func (h *history) redrive(sub *modelSubscriber) {
	for _, letter := range h.server.debt.Owed(sub.name, lane.StateDead) {
		sub.moved[letter.Event.OccurredAt] = true
	}
	h.server.debt.Redrive(sub.name)
}

// discard gives up one that waits or is dead.
func (h *history) discard(sub *modelSubscriber) {
	owed := slices.Concat(h.server.debt.Owed(sub.name, lane.StateDead), h.server.debt.Owed(sub.name, lane.StateWaiting))
	if len(owed) == 0 {
		return
	}
	ev := owed[h.people.IntN(len(owed))].Event
	sub.moved[ev.OccurredAt], sub.ended[ev.OccurredAt] = true, true // it may be in its handler
	sub.had.Store(ev.OccurredAt, true)
	h.log.Debug("world: a person discards", "subscriber", sub.name, "id", ev.OccurredAt)
	h.server.debt.Discard(sub.name, ev)
}

// retain deletes the oldest rows that are marked and of which nothing is owed.
func (h *history) retain() {
	owed := make(map[string]bool)
	for _, sub := range h.subs {
		for _, state := range []lane.State{lane.StateWaiting, lane.StateDead} {
			for _, o := range h.server.debt.Owed(sub.name, state) {
				owed[o.Event.OccurredAt] = true
			}
		}
	}
	for _, txn := range h.server.commits[:len(h.server.commits)/2] {
		for _, e := range txn.events {
			if _, marked := h.server.debt.Marked(e.event()); marked && !owed[e.id] {
				h.server.deleted[e.id] = true
			}
		}
	}
}

// replay is `walpost replay` of a few rows, as replayWork sends them.
func (h *history) replay(sub *modelSubscriber) {
	i := slices.IndexFunc(h.process.subs, func(s *modelSubscriber) bool { return s == sub })
	if i < 0 || len(h.server.commits) == 0 {
		return
	}
	from := h.people.IntN(len(h.server.commits))
	var events []*event.Event
	for _, txn := range h.server.commits[from:min(from+8, len(h.server.commits))] {
		for _, e := range txn.events {
			if !h.server.deleted[e.id] && sub.filter.Takes("model", e.eventType) && len(events) < h.process.lanes[i].ReplayPage() {
				sub.again[e.id], sub.repaired[e.id] = true, true
				ev := e.event()
				ev.Position, ev.Bound = h.server.freePosition()
				events = append(events, ev)
			}
		}
	}
	h.process.replay(i, events)
}

// replay sends a page of events again, unless one is under way.
func (p *modelProcess) replay(i int, events []*event.Event) {
	if p.replays == nil {
		p.replays = make([]sync.Mutex, len(p.lanes))
	}
	if len(events) == 0 {
		return
	}
	end := events[0].Bound
	p.replaying.Go(func() {
		if !p.replays[i].TryLock() {
			return
		}
		defer p.replays[i].Unlock()
		for p.received() < end || !p.past(i, end) {
			if wait(p.run, 100*time.Millisecond); p.run.Err() != nil {
				return
			}
		}
		known, err := p.server.debt.Known(p.run, p.subs[i].name, events)
		if err != nil {
			return // a person asks again
		}
		var left []*event.Event
		for n, ev := range events {
			if state := known[n].State; state != lane.StateWaiting && state != lane.StateDead {
				left = append(left, ev)
			}
		}
		for len(left) > 0 {
			result := p.lanes[i].Replay(p.dead, left, time.Time{})
			if left = result.Left; p.run.Err() != nil {
				return
			}
			wait(p.run, max(time.Second, result.Wait))
		}
	})
}

// past reports whether nothing of a subscriber is open that committed before end.
func (p *modelProcess) past(i int, end event.LSN) bool {
	_, oldest := p.tracker.OpenOf(i)
	return oldest == nil || oldest.Position.Commit >= end
}

// join puts a subscriber into the configuration that begins with all rows.
func (h *history) join() {
	if len(h.subs) > 4 || h.people.IntN(4) > 0 {
		return
	}
	sub := newModelSubscriber("b", lane.ByKey)
	sub.beginning = true
	sub.filter = []event.Filter{{}, {Events: []string{"t0"}}, {Events: []string{"t1", "t2"}}}[h.people.IntN(3)]
	h.subs = append(h.subs, sub)
}

func newModelSubscriber(name string, ordering lane.Ordering) *modelSubscriber {
	set := func() map[string]bool { return make(map[string]bool) }
	return &modelSubscriber{name: name, ordering: ordering, bad: set(), keys: make(map[string]string), busy: set(), repeats: set(), repaired: set(),
		tried: make(map[string]time.Time), again: set(), moved: set(), ended: set(), lacks: set()}
}

// dies is called before and after each write of a process, and ends it where that is to happen.
func (p *modelProcess) dies() bool {
	p.server.mu.Lock()
	if p.server.crashIn > 0 {
		if p.server.crashIn--; p.server.crashIn == 0 {
			p.crash()
		}
	}
	p.server.mu.Unlock()
	return p.dead.Err() != nil
}

// unmarked names the events of which nothing is owed and that have no mark in the end: a repair would send them again.
func (h *history) unmarked() (broken []string) {
	owed := make(map[string]bool)
	for _, sub := range h.subs {
		for _, o := range h.server.debt.Owed(sub.name, lane.StateDead) {
			owed[o.Event.OccurredAt] = true
		}
	}
	for _, txn := range h.server.commits {
		for _, e := range txn.events {
			if _, marked := h.server.debt.Marked(e.event()); !marked && !owed[e.id] {
				broken = append(broken, fmt.Sprintf("P12: nothing of %s of %v is owed, and it has no mark", e.id, txn.commit))
			}
		}
	}
	return broken
}
