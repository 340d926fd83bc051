package relay

import (
	"context"
	"time"
)

// announceStop says that a stop begins, as soon as ctx ends, and returns the function that says what came of it. From
// the begin on the relay is Stopping, whatever the drain meets.
func (v *view) announceStop(ctx context.Context) (ended func(err error)) {
	var (
		begun  time.Time
		before uint64
	)
	announced := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(announced)
		begun = time.Now()
		v.condition.beginStop()
		before = finished(v.Progress())
		v.Log.Info("stopping: what is in hand is finished", "open", v.openDeliveries(), "drain", v.Drain)
	})
	return func(err error) {
		if cancel() {
			return // it ended by itself, and its error says why
		}
		<-announced
		after := v.Progress()
		v.Log.Info("stopped", "finished", finished(after)-before, "left_open", v.openDeliveries(),
			"confirmed", after.ConfirmedLSN, "took", time.Since(begun), "clean", err == nil)
	}
}

// openDeliveries counts what is neither finished nor owed: the next start sends it.
func (v *view) openDeliveries() int {
	if p := v.current.Load(); p != nil {
		return p.tracker.OpenDeliveries()
	}
	return 0
}

// finished counts the deliveries that have ended since the process started.
func finished(p Progress) (n uint64) {
	for _, s := range p.Subscribers {
		n += s.Delivered + s.Dead
	}
	return n
}
