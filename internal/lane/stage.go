package lane

import "context"

// stage is how far the life of a lane is. docs/ARCHITECTURE.md ("How it stops") tells what it does at each.
type stage int

const (
	loading  stage = iota // it does not know yet what is owed: nothing is handed over
	working               // events are handed over, and the debt is read
	draining              // Run has been told to stop: what is in memory is still handed over, and no debt is read
	ended                 // nothing is handed over any more; what is open is recorded as owed
)

func (s stage) String() string { return [...]string{"loading", "working", "draining", "ended"}[s] }

// handsOver reports whether calls may begin.
func (s stage) handsOver() bool { return s == working || s == draining }

// begin is when the lane knows what is owed.
func (s *stage) begin() { *s = working }

// drain is when it is told to stop. Where what is in memory yields to the database, nothing more is handed over.
func (s *stage) drain(yield bool) {
	*s = draining
	if yield {
		*s = ended
	}
}

// end is when the time for that is over, or everything is done.
func (s *stage) end() { *s = ended }

// lead is the leadership under which the lane calls its subscriber. All of it is guarded by Lane.mu.
type lead struct {
	deliver   context.Context         // of handlers, from the stage working on
	ctx       context.Context         // of handlers too, and ends when the lane is suspended
	end       context.CancelCauseFunc // ends ctx
	suspended bool
}

// begin lets calls begin, under a context that the next suspension ends. Before the lane works there is none.
func (ld *lead) begin() {
	ld.suspended = false
	if ld.deliver != nil {
		ld.ctx, ld.end = context.WithCancelCause(ld.deliver)
	}
}
