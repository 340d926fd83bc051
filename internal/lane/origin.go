package lane

import (
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/subscriber"
)

// origin is where an item comes from: the stream, the debt or a replay. It says what differs between them. Each
// implementation is one pointer or nothing, so that an item holds it without an allocation.
type origin interface {
	// labelLocked notes on a delivery where it comes from.
	labelLocked(d *subscriber.Delivery)
	// finishLocked ends an item: delivered when err is nil, else recorded as a dead letter.
	finishLocked(l *Lane, it *item, err error, now time.Time)
	// oweLocked is called when the key of a queued item falls into debt. It reports whether the item stays queued.
	oweLocked(l *Lane, it *item) (stays bool)
	// giveUpLocked is called when what is read from the debt of the key goes back there. It reports whether the item
	// stays queued.
	giveUpLocked(l *Lane, it *item) (stays bool)
}

// liveOrigin is of an item that the stream brought: it is in the window until it is finished or recorded as owed.
type liveOrigin struct{ *ack.Delivery }

func (liveOrigin) labelLocked(*subscriber.Delivery) {}

func (o liveOrigin) finishLocked(l *Lane, it *item, err error, now time.Time) {
	l.noteCommitToAckLocked(it, now)
	l.open--
	l.ends = append(l.ends, ack.End{Delivery: o.Delivery, Recorded: err != nil, Attempts: it.attempts()})
	if it.recorded == recordedWaiting && err == nil { // what a person has added meanwhile is paid with it
		added := &item{ev: it.ev, origin: owedOrigin{}}
		l.scope.takeInHand(added)
		l.scope.paid = append(l.scope.paid, added)
	}
}

func (liveOrigin) oweLocked(l *Lane, it *item) bool {
	l.scope.behindDebt = append(l.scope.behindDebt, it)
	return false
}

func (liveOrigin) giveUpLocked(*Lane, *item) bool { return true }

// owedOrigin is of an item that was read from the debt: it stays recorded there until it is paid.
type owedOrigin struct{}

func (owedOrigin) labelLocked(d *subscriber.Delivery) { d.Owed = true }

func (owedOrigin) finishLocked(l *Lane, it *item, err error, now time.Time) {
	l.noteCommitToAckLocked(it, now)
	if err == nil {
		l.scope.paid = append(l.scope.paid, it)
		return
	}
	// Its row is dead now and waits no more.
	l.scope.dropFromHand(it)
	l.scope.forget(l.options.Ordering.keyOf(it.ev))
}

func (owedOrigin) oweLocked(*Lane, *item) bool { return true }

func (owedOrigin) giveUpLocked(l *Lane, it *item) bool {
	l.scope.dropFromHand(it)
	l.scope.keepCount(it)
	return false
}

// replayOrigin is of an item that a replay hands over again.
type replayOrigin struct{ *replay }

func (o replayOrigin) labelLocked(d *subscriber.Delivery) { d.Replay, d.Again = true, o.again }

// finishLocked tells no lag: the event happened long ago.
func (o replayOrigin) finishLocked(_ *Lane, _ *item, err error, _ time.Time) { o.finished(err) }

func (replayOrigin) oweLocked(l *Lane, it *item) bool {
	l.giveBackLocked(it)
	return false
}

func (replayOrigin) giveUpLocked(l *Lane, it *item) bool {
	l.giveBackLocked(it)
	return false
}

// isLive reports whether the stream brought the item.
func (it *item) isLive() bool {
	_, is := it.origin.(liveOrigin)
	return is
}

// fromDebt reports whether the item was read from the debt.
func (it *item) fromDebt() bool {
	_, is := it.origin.(owedOrigin)
	return is
}

// replay returns the replay that hands the item over, and whether one does.
func (it *item) replay() (*replay, bool) {
	o, is := it.origin.(replayOrigin)
	return o.replay, is
}

// delivery is that of a live item in the tracker.
func (it *item) delivery() *ack.Delivery { return it.origin.(liveOrigin).Delivery }

// noteCommitToAckLocked observes how long after its commit an event was finished.
func (l *Lane) noteCommitToAckLocked(it *item, now time.Time) {
	l.metrics.commitToAck.Observe(max(0, now.Sub(it.ev.CommittedAt).Seconds()))
}
