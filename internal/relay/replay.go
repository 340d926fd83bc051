package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/store"
)

const (
	// replayLook is how often the leader looks for replays, and whether one was cancelled.
	replayLook = 2 * time.Second
	// replaySave is how often it writes how far one is: a crash repeats no more than that.
	replaySave = time.Second
	// replayPause is how long events that were given back are left alone.
	replayPause = time.Second
	// replayPoll is how often it looks whether the stream has caught up with a page.
	replayPoll = 20 * time.Millisecond
)

// replayer sends what people have asked for again: of each subscriber one replay at a time, in the order in
// which they were asked for. It reads the rows page by page and hands them to the subscriber's lane, along
// with live events.
//
// Of a key nothing is sent again before its live events up to there are through: a page with rows that are
// not marked is not handed over before its subscriber has finished, or is owed, everything that committed
// before the page was read. What is owed then is left out: it is sent by the debt, or by a redrive.
type replayer struct {
	*base
	store   *replay.Store
	tables  func() map[string]*outbox.Table
	tracker *ack.Tracker
	lanes   []*lane.Lane
	// reading has a token while no one reads a page. To find a few rows among millions can take minutes,
	// and the recorder and the debt need the other connections of the pool.
	reading chan struct{}
}

func newReplayer(b *base, p *parts) *replayer {
	reading := make(chan struct{}, 1)
	reading <- struct{}{}
	return &replayer{b, replay.NewStore(b.Pool, b.Slot, nil, nil), p.ledger.tables.BySource, p.tracker, p.lanes, reading}
}

// run looks for replays until ctx ends, and returns when none is under way. What a lane has in hand by then
// it finishes; lanes ends when no lane runs any more.
func (r *replayer) run(ctx, lanes context.Context) {
	type underWay struct {
		id     int64
		cancel context.CancelCauseFunc
		ended  chan struct{}
	}
	active := make(map[string]underWay)
	free := make(chan struct{}, 1) // gets a token when one has ended: the next may be waiting
	ticker := time.NewTicker(replayLook)
	defer ticker.Stop()
	for ctx.Err() == nil {
		look, cancel := context.WithTimeout(ctx, statementLimit)
		open, err := r.store.Open(look)
		cancel()
		if err == nil { // else it is Postgres' trouble, which others tell of
			for name, u := range active {
				select {
				case <-u.ended:
					delete(active, name)
				default:
					if !slices.ContainsFunc(open, func(o replay.Replay) bool { return o.ID == u.id }) {
						u.cancel(replay.ErrOver)
					}
				}
			}
			for _, o := range open {
				number := slices.Index(r.names(), o.Subscriber)
				if _, busy := active[o.Subscriber]; busy || number < 0 {
					continue
				}
				work, cancel := context.WithCancelCause(ctx)
				u := underWay{o.ID, cancel, make(chan struct{})}
				active[o.Subscriber] = u
				w := r.newWork(o, number)
				go func() {
					defer cancel(nil)
					w.run(work, lanes)
					close(u.ended)
					select {
					case free <- struct{}{}:
					default:
					}
				}()
			}
		}
		select {
		case <-ticker.C:
		case <-free:
		case <-ctx.Done():
		}
	}
	for _, u := range active {
		<-u.ended
	}
}

// replayWork is one replay under way. One goroutine has it.
type replayWork struct {
	*replayer
	replay.Replay
	lane     *lane.Lane
	number   int // of the subscriber
	log      *slog.Logger
	limiter  *rate.Limiter
	page     int            // events that the lane gets at once
	position event.Position // of the next event
	savedAt  time.Time
	warned   time.Time
}

func (r *replayer) newWork(asked replay.Replay, number int) *replayWork {
	w := &replayWork{
		replayer: r, Replay: asked, lane: r.lanes[number], number: number,
		log: r.Log.With("subscriber", asked.Subscriber, "replay", asked.ID),
	}
	w.page = w.lane.ReplayPage()
	limit := rate.Inf
	if asked.Rate > 0 {
		limit = rate.Limit(asked.Rate)
		w.page = min(w.page, max(1, asked.Rate/10)) // small steps, so that it is a rate and no bursts
	}
	w.limiter = rate.NewLimiter(limit, w.page)
	return w
}

// run does the replay until it is over or ctx ends. Trouble with the database makes it wait.
func (w *replayWork) run(ctx, lanes context.Context) {
	w.log.Info("replay begins", "rows", w.Estimated, "seen", w.Seen(), "again", w.Again)
	for failures := 1; ; failures++ {
		seen := w.Seen()
		err := w.work(ctx, lanes)
		switch {
		case err == nil:
			w.log.Info("replay is done", "delivered", w.Delivered, "dead", w.Dead, "owed", w.Owed, "unwanted", w.Unwanted, "invalid", w.Invalid)
			return
		case errors.Is(err, store.ErrFenced):
			<-ctx.Done() // the next leader goes on; to try again here would be refused as often
			return
		case errors.Is(err, replay.ErrOver), errors.Is(context.Cause(ctx), replay.ErrOver):
			w.last(ctx)
			w.log.Info("replay is cancelled", "delivered", w.Delivered, "dead", w.Dead)
			return
		case ctx.Err() != nil:
			w.last(ctx)
			return
		}
		if w.Seen() > seen {
			failures = 1
		}
		wait := reconnect.Wait(failures)
		w.Problem = err.Error()
		if now := time.Now(); now.Sub(w.warned) >= time.Minute {
			w.warned = now
			w.log.Warn("replay stands still, will go on", "wait", wait, "err", err)
		}
		_ = w.save(ctx) // where people look; it is in the log anyway
		pause(ctx, wait)
	}
}

// last writes how far it came at a stop, so that a clean restart repeats nothing.
func (w *replayWork) last(ctx context.Context) {
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRecord)
	defer cancel()
	if err := w.save(writing); err != nil && !errors.Is(err, replay.ErrOver) {
		w.log.Warn("cannot write how far the replay is; some of it will be sent once more", "err", err)
	}
}

// work goes through the sources and returns nil when the replay is done.
func (w *replayWork) work(ctx, lanes context.Context) (err error) {
	w.State = replay.Running
	if w.position, err = w.store.Position(ctx, w.Subscriber); err != nil {
		return err
	}
	if err := w.save(ctx); err != nil {
		return err
	}
	var tables []*outbox.Table
	for name, table := range w.tables() {
		if name >= w.AtSource && w.Last(name) != nil {
			tables = append(tables, table)
		}
	}
	slices.SortFunc(tables, func(a, b *outbox.Table) int { return strings.Compare(a.Source.Name, b.Source.Name) })
	for _, table := range tables {
		for {
			page, err := w.next(ctx, table)
			if err != nil {
				return err
			}
			if len(page.Rows) == 0 {
				break
			}
			if err := w.send(ctx, lanes, table.Source.Name, page); err != nil {
				return err
			}
		}
	}
	w.State, w.Problem = replay.Done, ""
	if err := w.save(ctx); err != nil {
		w.State = replay.Running
		return err
	}
	return nil
}

func (w *replayWork) next(ctx context.Context, table *outbox.Table) (replay.Page, error) {
	select {
	case <-w.reading:
		defer func() { w.reading <- struct{}{} }()
		return w.store.Next(ctx, table, &w.Replay)
	case <-ctx.Done():
		return replay.Page{}, context.Cause(ctx)
	}
}

// sending is an event that is to be sent, and how far the replay is before it.
type sending struct {
	event  *event.Event
	before replay.Progress
}

// reach notes what is dealt with. What was sent, hand has counted.
func (w *replayWork) reach(p replay.Progress) {
	p.Delivered, p.Dead = w.Delivered, w.Dead
	w.Progress = p
}

// send deals with all rows of a page.
func (w *replayWork) send(ctx, lanes context.Context, source string, page replay.Page) error {
	if err := w.awaitLive(ctx, page.End); err != nil {
		return err
	}
	events := make([]*event.Event, len(page.Rows))
	for i, row := range page.Rows {
		events[i] = row.Event
		row.Event.Source = source
		row.Event.Limit(w.MaxEvent)
	}
	owed, err := w.owed.Known(ctx, w.Subscriber, events)
	if err != nil {
		return err
	}
	var batch []sending
	reached := w.Progress
	if reached.AtSource != source {
		reached.AtSource, reached.At = source, nil
	}
	flush := func() error {
		if err := w.hand(ctx, lanes, batch); err != nil {
			return err
		}
		batch = batch[:0]
		w.reach(reached)
		return w.saveIfDue(ctx)
	}
	for i, row := range page.Rows {
		ev := row.Event
		switch state := owed[i].State; {
		case state == lane.StateWaiting || state == lane.StateDead:
			reached.Owed++
		case ev.Invalid != "" && !row.Unreadable: // what cannot be read becomes a dead letter in the lane
			reached.Name(ev.ID, ev.Invalid)
			w.log.Warn("a row of the replay is no valid event and is left out", "source", source, "event", ev.ID,
				"correlation_id", ev.CorrelationID(), "row", ev.Row, "why", ev.Invalid)
		case !w.Subscriptions[w.number].wants(source, ev.Type):
			reached.Unwanted++
		default:
			// Every row of a page that is marked is behind the stream, whatever its bound.
			ev.Position, ev.Bound = w.position, max(page.End, w.position.Commit+1)
			w.position.Ordinal++
			batch = append(batch, sending{ev, reached})
		}
		reached.At = row.Place
		if len(batch) == w.page {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// awaitLive waits until nothing of the subscriber is open that committed before end.
func (w *replayWork) awaitLive(ctx context.Context, end event.LSN) error {
	for ctx.Err() == nil {
		// In this order: what is received before the look at what is open is there to be seen.
		if w.progress.Received() >= end {
			if _, oldest := w.tracker.OpenOf(w.number); oldest == nil || oldest.Position.Commit >= end {
				w.Problem = ""
				return nil
			}
		}
		w.Problem = "waits until the subscriber has what came live before"
		if err := w.saveIfDue(ctx); err != nil {
			return err
		}
		pause(ctx, replayPoll)
	}
	return context.Cause(ctx)
}

// hand gives events to the lane until each is delivered or a dead letter. After an error the replay is
// where the first stands that is neither.
func (w *replayWork) hand(ctx, lanes context.Context, batch []sending) error {
	if len(batch) == 0 {
		return nil
	}
	var again time.Time
	if w.Again {
		again = w.AskedAt
	}
	left := make([]*event.Event, len(batch))
	for i := range batch {
		left[i] = batch[i].event
	}
	if err := w.limiter.WaitN(ctx, len(batch)); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	// A stop does not end what is in a handler, but a person who cancels waits for no one.
	call, stop := context.WithCancel(lanes)
	defer stop()
	defer context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), replay.ErrOver) {
			stop()
		}
	})()
	for {
		result := w.lane.Replay(call, left, again)
		w.Delivered += int64(result.Delivered)
		w.Dead += int64(result.Dead)
		if left = result.Left; len(left) == 0 {
			w.Problem = ""
			return nil
		}
		w.reach(batch[slices.IndexFunc(batch, func(s sending) bool { return s.event == left[0] })].before)
		w.Problem = fmt.Sprintf("waits with %s whose keys are in debt, blocked, paused or failing; the first is %s of key %q", printable.Count(int64(len(left)), "event"), left[0].ID, left[0].Key)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.saveIfDue(ctx); err != nil {
			return err
		}
		pause(ctx, max(replayPause, result.Wait))
	}
}

func (w *replayWork) saveIfDue(ctx context.Context) error {
	if time.Since(w.savedAt) < replaySave {
		return nil
	}
	return w.save(ctx)
}

func (w *replayWork) save(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	if err := w.store.Save(limited, w.fence, &w.Replay); err != nil {
		return err
	}
	w.savedAt = time.Now()
	return nil
}
