package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// count finds out which keys are in debt where a subscriber is in debt as a whole: a page at a time, so that a long debt
// takes neither the memory nor the time of a round. It belongs to the goroutine of the debt reader.
//
// Invariant: while it is under way, a key of which something waits is in keys, or is read by a page to come.
type count struct {
	at   time.Time     // when the last page was read
	took time.Duration // by it

	keys   map[string]int // nil while no count is under way
	cursor event.Position // of the pages
	change int64          // by people, when the count began
}

func (c *count) end() { c.keys, c.cursor = nil, event.Position{} }

// noteRecorded is told of a delivery that was recorded, or got another position: a page may have passed that.
func (c *count) noteRecorded(ev *event.Event) {
	if c.keys != nil && ev.Position.Compare(c.cursor) <= 0 {
		c.keys[ev.Key] = unknown
	}
}
