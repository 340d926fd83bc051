package lane

import "github.com/backendstart/walpost/internal/event"

// Ordering says which events of a subscriber wait for each other.
type Ordering string

// The orderings that a subscriber can ask for.
const (
	ByKey Ordering = "key"   // events of one key, one at a time, in commit order
	Total Ordering = "total" // all events, one at a time, in commit order
	None  Ordering = "none"  // no event waits for another one
)

// keyOf is what order is kept within. Without an ordering every event is a key of its own.
func (o Ordering) keyOf(ev *event.Event) string {
	switch o {
	case ByKey:
		return ev.Key
	case None:
		return ev.Source + "\x00" + ev.ID + "\x00" + ev.Occurrence
	}
	return ""
}
