package relay

import (
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

// What the model asks of time: a key that does not fail is tried within the bound of docs/GUARANTEES.md ("Isolation"),
// whatever came before, and a confirmed position that stands still is someone's, by name and in bytes.

const (
	// calmAfter is how long after trouble has ended everything may still wait for a backoff, or for a handler that hangs.
	calmAfter = 30 * time.Second
	// askedFor is what a receiver asks for in a Retry-After: more than the bound, and less than the time to recover.
	askedFor = 4 * time.Minute
	// failingKeys is how many keys fail at most: of those that the model uses, and some events that cannot be read.
	failingKeys = 8 + 3
)

// tryLimit is how long an event of a key that does not fail waits at most for its first attempt: the bound for failing
// keys whose calls fail at once, and what passes before those that stand still leave the window.
func (s *modelServer) tryLimit() time.Duration {
	return 3*(failingKeys+5)*time.Second + s.lane.StallAfter + calmAfter
}

// beFair lets a random set of keys fail, one of them with a Retry-After, and everything else be well. Events of keys that
// no one has seen before must be tried in time.
func (h *history) beFair() {
	h.endTrouble()
	for _, sub := range h.subs {
		sub.mu.Lock()
		for range h.people.IntN(8) {
			sub.bad[fmt.Sprintf("k%d", h.people.IntN(8))] = true
		}
		sub.asks = fmt.Sprintf("k%d", h.people.IntN(8))
		sub.mu.Unlock()
	}
	time.Sleep(calmAfter)
	type good struct {
		id        string
		eventType string
		commit    event.LSN
		at        time.Time
	}
	var all []good
	for n := range 10 {
		for range h.people.IntN(4) {
			h.server.commit(h.people, 1+h.people.IntN(4), 8)
		}
		e, commit := h.server.commitOne(fmt.Sprintf("good%d", n), h.people.IntN(3))
		all = append(all, good{e.id, e.eventType, commit, time.Now()})
		time.Sleep(time.Duration(h.people.IntN(int(3 * time.Second))))
	}
	limit := h.server.tryLimit()
	time.Sleep(limit)
	if h.process.dead.Err() != nil {
		return
	}
	for _, sub := range h.process.subs {
		if sub.ordering != lane.ByKey {
			continue // there each event, or all of them together, is a key
		}
		sub.mu.Lock()
		for _, e := range all {
			tried, ok := sub.tried[e.id]
			if must, _ := sub.due(e.commit, modelEvent{id: e.id, eventType: e.eventType}); must && (!ok || tried.Sub(e.at) > limit) {
				h.late = append(h.late, fmt.Sprintf("P6: %s: %s of a key that does not fail was tried (%v) after %v, want at most %v", sub.name, e.id, ok, tried.Sub(e.at), limit))
			}
		}
		sub.mu.Unlock()
	}
}

// endTrouble lets nothing fail any more.
func (h *history) endTrouble() {
	for _, sub := range h.subs {
		sub.mu.Lock()
		sub.down, sub.hang, sub.asks, sub.silent = false, false, "", 0
		clear(sub.bad)
		sub.mu.Unlock()
		h.server.debt.Pause(sub.name, false)
	}
	h.server.mu.Lock()
	h.server.crashIn = 0
	h.server.mu.Unlock()
	if h.process.dead.Err() != nil {
		h.end(crashes)
		h.start(Unlimited)
	}
	for _, l := range h.process.lanes { // what is never reported ends with the leadership
		l.Suspend()
		l.Resume()
	}
}

// watched is what the history saw of the confirmed position.
type watched struct {
	process   *modelProcess
	confirmed event.LSN
	since     time.Time // it has stood still, without trouble of the database
}

// watchConfirm asks which subscriber holds the confirmed position, where it stands still.
func (h *history) watchConfirm() {
	s, p := h.server, h.process
	s.mu.Lock()
	troubled := s.refuse > 0
	s.mu.Unlock()
	confirmed, received := p.tracker.Confirmed(), p.received()
	if w := &h.confirm; p != w.process || confirmed != w.confirmed || troubled || s.debt.Fails() || p.dead.Err() != nil || confirmed >= received {
		*w = watched{p, confirmed, time.Now()}
	}
	if time.Since(h.confirm.since) < calmAfter {
		return
	}
	running := parts{tracker: p.tracker, recorder: newRecorder(recorderOptions{received: p.received})}
	for i := range p.members {
		if running.holding(i) > 0 {
			return
		}
	}
	h.late = append(h.late, fmt.Sprintf("P6: nothing is confirmed beyond %v for %v, %v was received, and no subscriber holds any WAL",
		confirmed, time.Since(h.confirm.since), received))
	h.confirm.since = time.Now()
}

// commitOne commits one event of a key.
func (s *modelServer) commitOne(key string, eventType int) (modelEvent, event.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids++
	s.used++
	e := modelEvent{fmt.Sprintf("e%07d", s.ids), fmt.Sprint(s.used), key, fmt.Sprintf("t%d", eventType)}
	commit := s.end
	s.end += 800
	s.commits = append(s.commits, modelTxn{commit: commit, end: s.end, events: []modelEvent{e}})
	s.log.Debug("world: committed", "lsn", commit, "event", e)
	return e, commit
}
