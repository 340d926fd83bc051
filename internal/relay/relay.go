// Package relay runs the pipeline: it opens the slot, hands what package wal reads to package dispatch, records what
// package ack reports as finished, and lets package wal confirm what is recorded. It holds no queue, knows no protocol
// and has no SQL.
//
// Read Relay.run first, then opener.open (how a session begins), builder.build (which parts there are) and
// recorder.record (what is written before a position is confirmed). Package app starts and stops a relay; package ops
// shows its Health and Progress. The files:
//
//   - Its life: relay.go, changed.go (why everything is built again), stop.go, wait.go, options.go, base.go (what all parts
//     share).
//   - A session: session.go, open.go, lead.go (claim, term, whether it still leads), positions.go and wants.go (the
//     subscribers), rename.go, marked_tables.go, writers.go (transactions that wrote before a snapshot).
//   - A repair: repair.go (facts, plan, what is kept), create.go (a slot is made), rows.go (rows become debt).
//   - The parts of a lifetime: build.go, parts.go, routing.go; leaver.go (a subscriber that left), replay.go.
//   - What is recorded: recorder.go, ledger.go (one transaction), marker.go (marks that come late).
//   - Safe mode: safemode.go, guard.go.
//   - Watches: watch_stream.go, watch_server.go, silence.go, stuck.go, reach.go, clean.go (retention).
//   - What people see: health.go, condition.go, status.go, attempts.go, gauges.go, leaderseries.go, metrics.go.
package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/store"
	"github.com/backendstart/walpost/internal/wal"
)

const (
	// Leave is how long a stop may take after Drain, whatever hangs.
	Leave = 5 * time.Second
	// recordLimit is the part of Leave in which what is finished or open is recorded and confirmed. Then the
	// contexts of all that is under way are cancelled. The rest is for giving the lease back, and for package app.
	recordLimit = 2800 * time.Millisecond
)

// errOutOfTime is the cause of every context that is cancelled because a stop took too long.
var errOutOfTime = errors.New("the time for the stop is over")

// withTimeForStop returns a context that ends when ctx has ended and the time for a stop is over.
func (r *Relay) withTimeForStop(ctx context.Context) (context.Context, context.CancelFunc) {
	hard, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		pause(hard, r.Drain+recordLimit)
		cancel(errOutOfTime)
	})
	return hard, func() {
		stop()
		cancel(nil)
	}
}

// Relay delivers the events of one slot. Run may be called once; Health and Progress at any time.
type Relay struct {
	*view
	lead     *leadership
	opener   *opener
	builder  *builder
	safeMode *safeMode
}

// New makes a relay and registers its metrics.
func New(o Options) *Relay {
	b := &base{Options: o, fence: store.NewFence(o.Slot), progress: new(wal.Progress), saidGone: new(sync.Map)}
	lead := &leadership{base: b, reach: newReach(o.Pool)}
	leader := leaderSeries{o.Registry, lead.leads}
	b.slotMetrics, b.metrics = wal.NewMetrics(o.Registry, leader, b.progress), newMetrics(o.Registry, leader)
	b.owed = debt.NewStore(o.Pool, o.Slot).Within(b.fence).Limit(o.MaxEvent)
	b.condition = &condition{log: o.Log.With("slot", o.Slot), received: b.progress.Received, state: Starting}
	rows := &rowDebts{b}
	members := &membership{base: b, rows: rows}
	repairs := &repairer{base: b, members: members, rows: rows, maker: &slotMaker{base: b, members: members, rows: rows}}
	shown := &view{base: b, reach: lead.reach, routing: newRouting(o.Subscriptions, o.Log), attempts: NewAttempts(remembered, time.Now())}
	r := &Relay{
		view:   shown,
		lead:   lead,
		opener: &opener{base: b, lead: lead, members: members, renames: &renamer{b}, repairs: repairs},
		builder: &builder{
			base: b, lead: lead, members: members, vectors: lane.NewVectors(o.Registry, leader), dispatch: dispatch.NewMetrics(o.Registry),
			attempts: shown.attempts, routing: shown.routing,
		},
		safeMode: &safeMode{b},
	}
	for _, source := range o.Sources {
		b.metrics.gone.WithLabelValues(source.Name) // there before the first one
	}
	r.registerGauges(lead.leads, leader)
	if o.Lease != nil {
		o.Lease.Notified, o.Lease.Check, o.Lease.Works = r.refreshLanes, lead.checkLease, lead.reach.works
		o.Lease.Doubted = b.metrics.doubts.Inc
	}
	return r
}

// refreshLanes lets the lanes see at once what a person has changed.
func (r *Relay) refreshLanes() {
	if p := r.current.Load(); p != nil {
		for _, l := range p.lanes {
			l.Refresh()
		}
	}
}

// Leads tells whether this relay leads the slot: clients of its hubs are at the right one. A connection that has broken is
// made again under the same lead; a stop ends it, and so does a lease that is not held.
func (r *Relay) Leads() bool {
	if r.current.Load() == nil || !r.lead.leads() {
		return false
	}
	switch r.condition.report().state {
	case Streaming, Reconnecting, Repairing, Stuck:
		return true
	}
	return false
}

// Run streams until ctx ends and everything in hand is finished, or the drain is over. It recovers from every loss of
// Postgres by itself, and returns an error only when a person must act.
func (r *Relay) Run(ctx context.Context) error {
	// The lease and the watches of the server last until the relay has ended, and not only until it is told to stop.
	var lasting sync.WaitGroup
	keep, end := context.WithCancel(context.WithoutCancel(ctx))
	defer lasting.Wait()
	defer end()
	server := &serverWatch{r.base}
	lasting.Go(func() { server.watchStrangers(keep) })
	lasting.Go(func() { server.watchSlot(keep) })
	lasting.Go(func() { server.watchWaits(keep) })
	if r.Lease != nil {
		lasting.Go(func() { r.lead.watchReach(keep) })
		lasting.Go(func() { r.Lease.Run(keep) })
	}
	ended := r.announceStop(ctx)
	err := r.run(ctx)
	r.condition.setState(Stopped, err)
	ended(err)
	return err
}

// run opens a session, builds the parts and lets them run. When the slot or the database turns out to be another one, it
// throws them away and begins again from what the database says.
func (r *Relay) run(ctx context.Context) error {
	hard, cancel := r.withTimeForStop(ctx)
	defer cancel()
	var counting sync.WaitGroup
	defer counting.Wait()
	process, end := context.WithCancel(ctx)
	defer end()
	var (
		why      *changed
		safeMode bool
		found    *quarantined
		short    int // runs of the parts in a row that ended soon
	)
	for first := true; ; first = false {
		counted := false
		s, err := r.opener.openUntilReady(ctx, func(ctx context.Context) (*session, error) {
			s, err := r.opener.open(ctx, why)
			if err == nil && first {
				counted = true
				var unclean int
				if unclean, found, err = r.safeMode.countStart(ctx); err != nil {
					s.conn.Close()
				}
				safeMode = unclean >= uncleanLimit
			}
			if c := asChanged(err); c != nil { // under our hands; there is nothing in memory yet that would not fit
				err = fmt.Errorf("%w: %s", errChangedMeanwhile, c.reason)
			}
			return s, err
		})
		if err != nil || s == nil {
			if counted {
				r.endCleanly(hard)
			}
			if first { // nothing was ever handed over, so nothing is under way
				r.lead.release()
			}
			return err
		}
		if first && !safeMode {
			counting.Go(func() { r.safeMode.forgetStarts(process) })
		}
		begun := time.Now()
		if why, err = r.live(ctx, s, safeMode, found); why == nil {
			r.endCleanly(hard) // with an error, too: this was no crash
			if err == nil {
				r.lead.release()
			}
			return err
		}
		switch why.kind {
		case safeModeOver:
			r.Log.Info("what can have been in hand when the process ended is handed over; safe mode is over")
			safeMode, found = false, nil
			r.safeMode.endClean(ctx)
		case misfit, unreadable:
			r.Log.Warn("what is in memory does not fit the database any more; everything is read again", "reason", why.reason)
			if short++; time.Since(begun) > steady {
				short = 0
			}
			if short > 1 { // it may be the same again
				pause(ctx, rebuild.Wait(short-1))
			}
		}
	}
}

// endCleanly notes that this was no crash.
func (r *Relay) endCleanly(hard context.Context) {
	last, cancel := context.WithTimeout(hard, lastRecord)
	defer cancel()
	r.safeMode.endClean(last)
}

// live runs the parts until ctx ends, a person must act, or the database has changed; then it returns the change.
func (r *Relay) live(ctx context.Context, first *session, safeMode bool, found *quarantined) (*changed, error) {
	// Whatever ends the run, what is in hand is still finished and recorded.
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	hard, cancel := r.withTimeForStop(run)
	defer cancel()
	parts := r.builder.build(first, safeMode, found, stop)
	r.current.Store(parts)
	ended := r.builder.start(run, hard, parts, func(ctx context.Context) {
		var watching sync.WaitGroup
		watch := &streamWatch{r.base}
		if safeMode {
			watching.Go(func() { r.safeMode.awaitEnd(ctx, first, parts, stop) })
		}
		watching.Go(func() { watch.awaitSecondPass(ctx, first, stop) })
		watch.run(ctx, first, parts, stop)
		watching.Wait()
	}, stop)

	err := r.stream(run, hard, first, parts)
	why := asChanged(err)
	if ctx.Err() == nil && why == nil {
		why = asChanged(context.Cause(run)) // what watch or the recorder has found
	}
	if why != nil && ctx.Err() == nil {
		r.condition.setState(Repairing, why)
		stop(why)
		if err := <-ended; err != nil {
			r.Log.Error("not everything has ended; it is left behind", "err", err)
		}
		return why, nil
	}
	if why != nil {
		err = nil // the next start finds it
	}
	r.condition.setState(Stopping, err)
	stop(nil)
	if setup := (*wal.SetupError)(nil); err == nil && errors.As(context.Cause(run), &setup) {
		err = context.Cause(run)
	}
	return nil, errors.Join(err, <-ended)
}

// stream reads the slot until ctx ends or a person must act, and connects again after every loss of the connection. When
// hard ends it stops waiting.
func (r *Relay) stream(ctx, hard context.Context, s *session, p *parts) error {
	var before serverError
	for short := 0; ; {
		begun, from := time.Now(), p.tracker.Received()
		if !r.condition.isStuck() {
			r.condition.setState(Streaming, nil)
		}
		r.Log.Info("streaming", "slot", r.Slot, "publication", r.Publication, "confirmed", s.confirmed)
		err := s.conn.Stream(ctx, wal.StreamOptions{
			Slot: r.Slot, Publication: r.Publication, Prefixes: r.messagePrefixes(), Confirmed: s.confirmed,
			Receiver: p.dispatch, Confirmer: p.tracker,
			Drained: p.drained, OutOfTime: hard.Done(), Alive: r.opener.alive, Told: r.Tracer.Confirmed, Log: r.Log, Progress: r.progress,
		})
		s.conn.Close()
		if ctx.Err() != nil {
			return r.whileStopping(err)
		}
		if errors.Is(err, wal.ErrMissing) {
			return &changed{unreadable, err.Error()}
		}
		if final(err) != nil {
			return r.opener.restartIfReadableAgain(ctx, err)
		}
		if short++; time.Since(begun) > steady || p.tracker.Received() != from { // it has delivered
			short = 0
		}
		said := serverErrorOf(err, r.progress.Received())
		if said != (serverError{}) && said == before {
			r.condition.setStuck(said.problem(r.Options), max(said.at, said.received))
		} else {
			r.condition.setState(Reconnecting, err)
		}
		before = said
		wait := reconnect.Wait(short)
		r.Log.Warn("the stream broke, will open it again", "wait", wait, "err", err)
		pause(ctx, wait)
		last := s
		if s, err = r.opener.openUntilReady(ctx, func(ctx context.Context) (*session, error) { return r.opener.reopen(ctx, last, p.tracker.Confirmed()) }); err != nil || s == nil {
			return err
		}
		p.dispatch.Connected(s.tables)
		p.ledger.use(s.tables)
		r.slotMetrics.Reconnects.Inc()
	}
}

// whileStopping drops an error of the connection during a stop: the stop is still clean, and what was not confirmed
// comes again.
func (r *Relay) whileStopping(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, wal.ErrConnection) || errors.Is(err, wal.ErrShutdown) {
		r.Log.Warn("stopped without the server's answer to the last confirmed position; some events may come again", "err", err)
		return nil
	}
	return err
}
