package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// origin is where an item comes from: the stream, the debt or a replay. Each implementation is one pointer or nothing, so
// that an item holds it without an allocation. Where items of different origins part ways, a switch over it says so:
// when one is finished (finish.go), when its key falls into debt, and when what was read from the debt goes back there
// (in_debt.go).
type origin interface {
	// labelLocked notes on a delivery where it comes from.
	labelLocked(d *subscriber.Delivery)
}

// liveOrigin is of an item that the stream brought: it is in the window until it is finished or recorded as owed.
type liveOrigin struct{ *ack.Delivery }

func (liveOrigin) labelLocked(*subscriber.Delivery) {}

// owedOrigin is of an item that was read from the debt: it stays recorded there until it is paid.
type owedOrigin struct{}

func (owedOrigin) labelLocked(d *subscriber.Delivery) { d.Owed = true }

// replayOrigin is of an item that a replay hands over again.
type replayOrigin struct{ *replay }

func (o replayOrigin) labelLocked(d *subscriber.Delivery) { d.Replay, d.Again = true, o.again }

// replay is one call of Lane.Replay, and what has become of its items. All of it is guarded by Lane.mu.
type replay struct {
	again           time.Time     // what subscriber.Delivery.Again says
	open            int           // items neither finished nor given back, and one while they are queued
	ended           chan struct{} // closed when none is open; never changes
	delivered, dead int
	wait            time.Duration // how long to leave alone what was given back
	left            []leftItem    // given back
}

// leftItem is an item that was given back, with its number in the call of Replay.
type leftItem struct {
	number int32
	ev     *event.Event
}

// giveBack returns an item that is not finished.
func (r *replay) giveBack(number int32, ev *event.Event) {
	r.left = append(r.left, leftItem{number, ev})
	r.endOne()
}

// finish counts an item that was delivered or recorded as dead.
func (r *replay) finish(err error) {
	if err == nil {
		r.delivered++
	} else {
		r.dead++
	}
	r.endOne()
}

func (r *replay) endOne() {
	if r.open--; r.open == 0 {
		close(r.ended)
	}
}
