package relay

import (
	"context"
	"time"
)

// announceStop says that a stop begins, as soon as ctx ends, and returns the function that says what came of it. From
// the begin on the relay is Stopping, whatever the drain meets.
func (r *Relay) announceStop(ctx context.Context) (ended func(err error)) {
	var (
		begun  time.Time
		before uint64
	)
	announced := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(announced)
		begun = time.Now()
		r.mu.Lock()
		r.ending = true
		r.mu.Unlock()
		r.setState(Stopping, nil)
		before = finished(r.Progress())
		r.Log.Info("stopping: what is in hand is finished", "open", r.openDeliveries(), "drain", r.Drain)
	})
	return func(err error) {
		if cancel() {
			return // it ended by itself, and its error says why
		}
		<-announced
		after := r.Progress()
		r.Log.Info("stopped", "finished", finished(after)-before, "left_open", r.openDeliveries(),
			"confirmed", after.ConfirmedLSN, "took", time.Since(begun), "clean", err == nil)
	}
}

// openDeliveries counts what is neither finished nor owed: the next start sends it.
func (r *Relay) openDeliveries() int {
	r.mu.Lock()
	tracker := r.tracker
	r.mu.Unlock()
	if tracker == nil {
		return 0
	}
	return tracker.OpenDeliveries()
}

// finished counts the deliveries that have ended since the process started.
func finished(p Progress) (n uint64) {
	for _, s := range p.Subscribers {
		n += s.Delivered + s.Dead
	}
	return n
}
