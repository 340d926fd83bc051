package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
)

// leftSuffix is what a leader that leaves adds to the slot's name in its last notification.
const leftSuffix = "/left"

const (
	// A change by a person is a notification for each thousand deliveries, a handover is one. More than this is no
	// work of people: reading it would cost a core, and reading it slowly would fill the queue of the server.
	notificationBurst = 1000
	notificationEvery = 10 * time.Millisecond
	// floodPause is how long nothing is listened to after a flood.
	floodPause = time.Minute
)

// errFlood means that notifications came faster than people and relays send them.
var errFlood = errors.New("notifications come faster than walpost sends them")

// listen hears notifications until ctx ends, on a session of its own. Any role that can connect can send any number of
// them, and a session answers nothing until it has sent them all: on the session of the lease they would end the lead.
// What a notification announces is found without it, too, within seconds.
// (PostgreSQL manual, "NOTIFY")
func (l *Lease) listen(ctx context.Context) {
	for failures := 0; ; failures++ {
		begun := time.Now()
		err := l.hear(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) > longest {
			failures = 0
		}
		wait := pauseAfter(failures)
		if errors.Is(err, errFlood) {
			wait = floodPause
			l.Log.Warn("not listening for changes for a while; they are found by looking, every few seconds", "err", err, "pause", wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// hear listens until the session or ctx ends, or notifications come too fast.
func (l *Lease) hear(ctx context.Context) error {
	conn, err := l.dial(ctx)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, `LISTEN walpost`); err != nil {
		return fmt.Errorf("listen for changes: %w", err)
	}
	l.notify() // of what was changed before
	allowed := rate.NewLimiter(rate.Every(notificationEvery), notificationBurst)
	for {
		note, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("listen for changes: %w", err)
		}
		if !allowed.Allow() {
			return errFlood
		}
		switch note.Payload {
		case l.Slot:
			l.notify()
		case l.Slot + leftSuffix:
			select {
			case l.freed <- struct{}{}:
			default: // one wakes as well as two
			}
		}
	}
}

func (l *Lease) notify() {
	if l.Notified != nil {
		l.Notified()
	}
}
