package ack

import "github.com/backendstart/walpost/internal/event"

// Open is a delivery that is neither finished nor secured.
type Open struct {
	Subscriber int
	Event      event.Identity
}

// OpenFor returns the open deliveries of the events with an id. It looks at everything in the window, so it is
// for people and not for each event.
func (t *Tracker) OpenFor(eventID string) []Open {
	t.mu.Lock()
	defer t.mu.Unlock()
	var open []Open
	for i := range t.subs {
		for d := t.subs[i].oldest; d != nil; d = d.newer {
			if d.Event.ID == eventID {
				open = append(open, Open{i, d.Event.Identity()})
			}
		}
	}
	return open
}
