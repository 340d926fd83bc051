package ack

// OpenFor returns the numbers of the subscribers for which an event is open. It looks at everything in the
// window, so it is for people and not for each event.
func (t *Tracker) OpenFor(eventID string) []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	var subscribers []int
	for i := range t.subs {
		for d := t.subs[i].oldest; d != nil; d = d.newer {
			if d.Event.ID == eventID {
				subscribers = append(subscribers, i)
				break
			}
		}
	}
	return subscribers
}
