package lane

import "time"

// call is what a subscriber has in hand: an attempt, or what one Send of a pipeline has of one key. The rest of the lane
// knows of them as much as stands here. All of it is guarded by Lane.mu but for items, which belong to the attempt.
type call struct {
	items    []*item // never changes while it is under way
	begun    time.Time
	slot     slot     // a part of a sending has none, and only tells whether it is a retry
	probe    turn     // whose turn it was, while the breaker was open
	doubted  bool     // it waits until it is known whether we lead
	returned bool     // it has ended
	overdue  bool     // its time is over: its keys wait for it, and nothing else does
	verdict  *verdict // its own, or that of its sending
}

// verdict is what a call says of the subscriber when all of its parts have ended. It has one part, or that of a pipeline
// one per key. All of it is guarded by Lane.mu.
type verdict struct {
	open      int  // parts that have neither ended nor become overdue
	delivered bool // something
	failed    bool // something
	known     bool // all keys that failed had failed before the last success
}

// setDoubtedLocked notes whether it is in doubt that we lead. Time in doubt is no time of its handler.
func (c *call) setDoubtedLocked(doubted bool) { c.doubted, c.begun = doubted, time.Now() }

// A doubter is told when it begins and ends to be in doubt whether we lead.
type doubter interface{ setDoubtedLocked(doubted bool) }

// calls are those under way, overdue ones included. All of it is guarded by Lane.mu.
type calls struct {
	all     map[*call]struct{}
	overdue int // of them
	slots   slots
}

// inTime is how many calls are under way and not overdue.
func (cs *calls) inTime() int { return len(cs.all) - cs.overdue }

func (cs *calls) add(c *call) { cs.all[c] = struct{}{} }

// end takes out a call that has returned.
func (cs *calls) end(c *call) {
	c.returned = true
	delete(cs.all, c)
	if c.overdue {
		cs.overdue--
	}
}

// markOverdue lets nothing but its keys wait for a call.
func (cs *calls) markOverdue(c *call) {
	c.overdue = true
	cs.overdue++
}

// ids are those of the events that certain calls have in hand.
func (cs *calls) ids(which func(*call) bool) []string {
	var ids []string
	for c := range cs.all {
		if which(c) {
			for _, it := range c.items {
				ids = append(ids, it.ev.ID)
			}
		}
	}
	return ids
}
