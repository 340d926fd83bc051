package lane

import (
	"context"
	"errors"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// settlement is the end of a call: of a whole attempt, or of what a pipeline has of one key. All of it is guarded by
// Lane.mu.
type settlement struct {
	*core
	call      *call
	outcome   []error // of the items, nil for delivered
	suspended bool    // it ended because the lane was suspended, which says nothing about its events
	now       time.Time
}

// settleLocked ends a call that began under a leadership: what is delivered or recorded as dead is finished, the rest
// goes back to the front of its key. unbegun tells that nothing was handed over. afterSettlingLocked follows, perhaps
// after several.
func (c *core) settleLocked(under context.Context, ended *call, outcome []error, unbegun bool, now time.Time) {
	s := settlement{core: c, call: ended, outcome: outcome, now: now,
		suspended: unbegun || errors.Is(context.Cause(under), errSuspended)}
	s.settleCall()
}

func (s *settlement) settleCall() {
	s.calls.end(s.call)
	if s.call.overdue {
		s.metrics.overdue.Set(float64(s.calls.overdue))
	}
	s.observe()
	if !s.suspended {
		s.judgeLocked(s.call, s.outcome, s.now)
	}
	// The last key first, so that those that go back to the front are in order again.
	items := s.call.items
	for end := len(items); end > 0; {
		begin := end - 1
		for begin > 0 && items[begin-1].queue == items[begin].queue {
			begin--
		}
		s.settleKey(items[begin:end], s.outcome[begin:end])
		end = begin
	}
}

// observe tells Stream.Observe how the call ended, before anything is settled.
func (s *settlement) observe() {
	if s.stream.Observe == nil {
		return
	}
	var stopped *keyQueue // the key of the last failure: what is behind it was not tried
	for i, it := range s.call.items {
		err := s.outcome[i]
		_, replayed := it.replay()
		a := Attempt{Event: it.ev, Number: it.attempts() + 1, Outcome: Failed, Err: err, Replay: replayed}
		switch {
		case it.dead: // counted when that was found
			a.Number = it.attempts()
			if it.finished {
				a.Outcome = Dead
			}
		case err == nil:
			a.Outcome = Delivered
		case errors.As(err, new(wholeBatch)):
		case stopped == it.queue:
			continue
		default:
			stopped = it.queue
		}
		s.seen = append(s.seen, a)
	}
	if len(s.seen) > 0 {
		s.stream.Observe(s.call.begun, s.now.Sub(s.call.begun), s.seen)
	}
	clear(s.seen) // or the last large batch would stay in memory
	s.seen = s.seen[:0]
}

// settleKey settles the items of one key, in commit order.
func (s *settlement) settleKey(items []*item, outcome []error) {
	q := items[0].queue
	var left []*item
	var wait time.Duration
	failed := false
	for i, it := range items {
		it.queue = nil
		err := outcome[i]
		of, replayed := it.replay()
		switch {
		case it.abandoned: // recorded as owed meanwhile; it is sent again from there
			continue
		case it.recorded != notRecorded && err != nil && !it.finished:
			s.endRecordedLocked(it, it.recorded)
			failed = true
			continue
		case err == nil || it.finished:
			if err == nil {
				s.noteKeyDelivered(q)
			}
			s.finish(it, err, s.now)
			continue
		case s.suspended:
		case errors.Is(err, subscriber.ErrHeld): // says nothing about the event
			wait = max(wait, s.options.Backoff.Initial)
		case !failed && !errors.As(err, new(wholeBatch)):
			wait = s.noteFailureLocked(it, err, s.now)
			if !replayed {
				s.noteKeyFails(q, err, s.now)
			}
		}
		if replayed {
			of.wait = max(of.wait, wait)
			s.giveBackLocked(replayOrigin{of}, it)
			s.dropReplaysLocked(q)
			if !failed {
				wait = 0 // live events of the key need not wait for it
			}
			failed = true
			continue
		}
		failed = true
		switch {
		case it.isLive() && s.inScopeLocked(it):
			s.keepBehindDebtLocked(it) // the key fell into debt while it was in work
		case s.scope.mode == debtPaused && s.giveUpItemLocked(it): // it stays in the debt until a person resumes
		default:
			left = append(left, it)
		}
	}
	if len(left) == 0 {
		s.backlog.release(q)
		return
	}
	q.putBack(left)
	switch {
	case wait > 0 || q.fails():
		s.backlog.retryAt(q, s.now.Add(wait))
	default: // of a batch that failed whole, and nothing says that the key does
		q.state = ready
		s.backlog.ready.pushFront(q)
	}
}
