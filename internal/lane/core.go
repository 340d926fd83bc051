package lane

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// core is what the attempts of a lane, its pipeline and its debt reader share: everything that its lock guards.
type core struct {
	mu sync.Mutex
	holdings
	stage      stage     // guarded by mu
	lead       lead      // guarded by mu
	sizes      sizes     // guarded by mu
	flight     flight    // of a pipeline; guarded by mu
	refreshNow bool      // a person has changed something; guarded by mu
	backAgain  bool      // the subscriber came back: what waits in the debt is due; guarded by mu
	unwanted   error     // why the subscriber asks to be paused, until that is written; guarded by mu
	seen       []Attempt // scratch of a settlement; guarded by mu
	warned     time.Time // when a failure was last logged; guarded by mu

	late     error          // why the context of a handler has ended; never changes
	deadSaid *rate.Limiter  // lets lines of the log about dead letters through
	idle     chan struct{}  // gets a token when a drain may be over
	handler  sync.WaitGroup // calls under way, overdue ones included, and what a pipeline has not reported

	// startCalls starts what may start now: every change of state ends with it. It is Lane.startCallsLocked, and a
	// field for what ends by itself and later, an attempt that is overdue and what a pipeline reports: these stand below
	// it, because it starts them.
	startCalls func()
}

// sizes are how many events go into the next call. All of it is guarded by Lane.mu.
type sizes struct {
	batch      int  // below Options.Batch after a batch failed
	retryBatch int  // the same for calls of keys that fail
	retryTurn  bool // a retry goes before what is ready
}

// mayCallLocked reports whether a call may begin at all at this moment.
func (c *core) mayCallLocked() bool {
	return c.stage.handsOver() && !c.lead.suspended && !c.flight.aborting() && c.scope.mode != debtPaused
}

// afterSettlingLocked acknowledges what has ended, and lets follow what waited for it.
func (c *core) afterSettlingLocked() {
	c.acknowledge()
	c.metrics.open.Set(float64(c.open))
	c.startCalls()
	signal(c.idle)
	if len(c.scope.paid) >= payLimit/4 || len(c.scope.behindDebt) > 0 {
		signal(c.readerWake)
	}
}

// afterOverdueLocked lets follow what waited for calls that have become overdue. What of them is in debt by now is
// recorded before anything newer of its key is read.
func (c *core) afterOverdueLocked() {
	c.abandonOverdueLocked()
	c.startCalls()
	signal(c.idle)
	signal(c.readerWake)
}
