package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// pass is one reading of the debt, from its oldest delivery on.
type pass struct {
	number  int
	cursor  event.Position  // everything up to it was read or left out
	without map[string]bool // keys left out
	again   bool            // something waits behind the cursor: the pass begins again before anything more is read
	unread  bool            // something may wait beyond the cursor
	leftOut bool            // something may wait that this pass did not take in hand
	dueBy   time.Time       // what failed and is due later is left out; zero: nothing is
	allDue  bool            // nothing waits for its backoff: the first pass, and that of a subscriber that is back
	began   time.Time
	took    time.Duration // by its reads
}

// begin begins the next pass. longest is how far away the next attempt of what failed can be, where backAgain says that
// the subscriber has come back: then that is due.
func (p *pass) begin(now time.Time, backAgain bool, longest time.Duration) {
	first := p.number == 0
	*p = pass{number: p.number + 1, without: p.without, unread: true, allDue: first || backAgain, began: now}
	switch {
	case first:
	case backAgain:
		p.dueBy = now.Add(longest)
	default:
		p.dueBy = now
	}
	clear(p.without)
}

// goOn makes of a pass the next one, which begins where it has ended: nothing waits before that but keys behind their
// dead letters, and a person who deals with one lets it begin again.
func (p *pass) goOn(now time.Time) {
	*p = pass{number: p.number + 1, cursor: p.cursor, without: p.without, unread: true, began: now}
	clear(p.without)
}

// leaveOut leaves a key out of the pass.
func (p *pass) leaveOut(key string) { p.without[key], p.leftOut = true, true }
