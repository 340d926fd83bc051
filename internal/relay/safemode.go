package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/store"
)

const (
	// uncleanLimit is after how many unclean ends in a row, each soon after the start, the relay starts in safe mode.
	uncleanLimit = 3
)

// safeMode counts the unclean ends of the process, and knows when safe mode is over.
type safeMode struct{ *base }

// forgetStarts takes the count of unclean ends back when the process has lived long enough. Neither a confirm nor an
// event that was delivered does: the event that ends the process may be in a debt or a replay, while the stream
// is well.
func (m *safeMode) forgetStarts(ctx context.Context) {
	pause(ctx, m.settledAfter())
	if ctx.Err() == nil {
		m.endClean(ctx)
	}
}

// countStart counts the start of a process that leads. A clean stop, and a life that is long enough, take the count back.
// A process that has been overtaken changes nothing of the count: it is that of its successor.
func (m *safeMode) countStart(ctx context.Context) (unclean int, found *quarantined, err error) {
	var text json.RawMessage
	err = m.inTerm(ctx, func(tx pgx.Tx) error {
		unclean, text, err = store.CountUncleanStart(ctx, tx, m.Slot)
		return err
	})
	switch {
	case err != nil:
		return 0, nil, err
	case text == nil || unclean < uncleanLimit:
		return unclean, nil, nil
	}
	found = new(quarantined)
	if err := json.Unmarshal(text, found); err != nil {
		return unclean, nil, fmt.Errorf("read the event that was in hand: %w", err)
	}
	return unclean, found, nil
}

// awaitEnd ends safe mode when the process has lived long enough and everything has been handed over that earlier
// processes can have had in hand: the event that ended them is among that. The process may have been ended by
// something else, too, and one event at a time is slow.
func (m *safeMode) awaitEnd(ctx context.Context, s *session, p *parts, stop context.CancelCauseFunc) {
	pause(ctx, m.settledAfter())
	for ctx.Err() == nil {
		over, err := m.handedOver(ctx, s, p)
		if err != nil && ctx.Err() == nil {
			m.Log.Warn("cannot look what safe mode still has to hand over, will try again", "err", err)
		}
		if over && err == nil {
			stop(&changed{safeModeOver, "everything that can have been in hand when the process ended is handed over"})
			return
		}
		pause(ctx, time.Second)
	}
}

// handedOver reports whether a window of live events, 1,000 deliveries of each debt and a page of each replay have
// been handed over, or as many as there are. A paused subscriber is handed nothing.
func (m *safeMode) handedOver(ctx context.Context, s *session, p *parts) (bool, error) {
	counts, err := m.owed.Counts(ctx)
	if err != nil {
		return false, err
	}
	waiting := make(map[string]int)
	for _, c := range counts {
		if c.State == string(lane.StateWaiting) {
			waiting[c.Subscriber] = int(c.Number)
		}
	}
	replays, err := replay.NewStore(m.Pool, m.Slot, nil, nil).Open(ctx)
	if err != nil {
		return false, err
	}
	for i, l := range p.lanes {
		if l.Stats().Paused {
			continue
		}
		handed := p.guard.handedTo(l.Name())
		_, oldest := p.tracker.OpenOf(i)
		caughtUp := m.progress.Received() >= s.horizon && (oldest == nil || oldest.Position.Commit >= s.horizon)
		if !caughtUp && handed.live < m.Window.Events || handed.owed < min(debtInHand, waiting[l.Name()]) {
			return false, nil
		}
		for _, open := range replays {
			if open.Subscriber == l.Name() && handed.replayed < l.ReplayPage() {
				return false, nil
			}
		}
	}
	return true, nil
}

// endClean notes that the process ended as it was told to.
func (m *safeMode) endClean(ctx context.Context) {
	err := m.inTerm(ctx, func(tx pgx.Tx) error { return store.ForgetStarts(ctx, tx, m.Slot) })
	if err != nil && !errors.Is(err, store.ErrFenced) { // the count is that of the process which leads now
		m.Log.Warn("cannot note that this was a clean stop", "err", err)
	}
}
