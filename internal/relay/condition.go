package relay

import (
	"log/slog"
	"sync"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
)

// condition is what the parts of a relay say of how it is. Health makes an answer of it.
type condition struct {
	log      *slog.Logger
	received func() event.LSN // how far the stream has come

	mu        sync.Mutex
	state     State                       // guarded by mu
	ending    bool                        // a stop has begun, so state is Stopping or Stopped; guarded by mu
	problem   string                      // why it does not stream; guarded by mu
	stuckAt   event.LSN                   // where the stream is stuck, 0 while it is not; guarded by mu
	trouble   string                      // what is wrong with the publication; guarded by mu
	held      string                      // that the server holds the stream back; guarded by mu
	silent    string                      // that it sends nothing and shows no sign of work; guarded by mu
	awaited   string                      // what a creation or repair waits for; guarded by mu
	strangers []store.Stranger            // at the relay's advisory locks; guarded by mu
	waits     []postgres.LockWait         // statements of ours; guarded by mu
	lost      map[string]int64            // events that no one can send any more, by subscriber; guarded by mu
	absent    map[string]map[string]int64 // what waits for a source that is not configured, by subscriber and source; guarded by mu
}

// report is a copy of what condition knows at one moment.
type report struct {
	state     State
	problem   string
	found     []string // problems for which the relay is not ready
	awaited   string
	strangers []store.Stranger
	waits     []postgres.LockWait
	lost      map[string]int64
	absent    map[string]map[string]int64
}

// report returns what is known now.
func (c *condition) report() report {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaveStuckLocked()
	r := report{state: c.state, problem: c.problem, awaited: c.awaited, strangers: c.strangers, waits: c.waits, lost: c.lost, absent: c.absent}
	for _, problem := range []string{c.trouble, c.held, c.silent} {
		if problem != "" {
			r.found = append(r.found, problem)
		}
	}
	return r
}

// setState says what the relay is doing, and why where err is one. Once a stop has begun, only how it goes on counts.
func (c *condition) setState(state State, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending && state != Stopping && state != Stopped {
		return // what the drain meets is no news for the one who waits for the end
	}
	c.state, c.problem, c.stuckAt = state, "", 0
	if err != nil {
		c.problem = err.Error()
	}
}

// beginStop makes Stopping the state, whatever the drain meets.
func (c *condition) beginStop() {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	c.setState(Stopping, nil)
}

// setStuck makes Stuck the state, until the stream has come further than at.
func (c *condition) setStuck(problem string, at event.LSN) {
	c.mu.Lock()
	known := c.state == Stuck && c.problem == problem
	c.state, c.problem, c.stuckAt = Stuck, problem, at
	c.mu.Unlock()
	if !known {
		c.log.Error("the stream is stuck", "problem", problem)
	}
}

// leaveStuckLocked ends the state when the stream has come further.
func (c *condition) leaveStuckLocked() {
	if c.state == Stuck && c.received() > c.stuckAt {
		c.state, c.problem, c.stuckAt = Streaming, "", 0
	}
}

// isStuck reports whether the stream came no further than where it was stuck.
func (c *condition) isStuck() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaveStuckLocked()
	return c.stuckAt > 0
}

func (c *condition) setTrouble(problem string) { c.setProblem(&c.trouble, problem) }
func (c *condition) setHeld(problem string)    { c.setProblem(&c.held, problem) }

// setSilent logs the beginning of a silence alone: its figures grow with each look.
func (c *condition) setSilent(problem string) {
	if before := c.replace(&c.silent, problem); problem != "" && before == "" {
		c.log.Error("the relay is not well", "problem", problem)
	}
}

// setProblem replaces a problem for which the relay is not ready, "" for none, and logs it once.
func (c *condition) setProblem(shown *string, problem string) {
	if before := c.replace(shown, problem); problem != "" && problem != before {
		c.log.Error("the relay is not well", "problem", problem)
	}
}

func (c *condition) replace(shown *string, problem string) (before string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = *shown
	*shown = problem
	return before
}

func (c *condition) setAwaited(problem string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaited = problem
}

func (c *condition) setStrangers(found []store.Stranger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.strangers = found
}

func (c *condition) setWaits(waits []postgres.LockWait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = waits
}

// setAbsent takes what waits for sources that are not configured, and logs it when that is another than before.
func (c *condition) setAbsent(absent map[string]map[string]int64) {
	c.mu.Lock()
	before := c.absent
	c.absent = absent
	c.mu.Unlock()
	for name, sources := range absent {
		for source, n := range sources {
			if _, known := before[name][source]; !known {
				c.log.Warn("events are owed by reference to rows of a source that is not in the configuration: they wait until it is put back, or discarded",
					"subscriber", name, "source", source, "events", n)
			}
		}
	}
}

func (c *condition) setLost(lost map[string]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = lost
}
