package lane

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

const (
	// deskPause keeps rounds apart, so that each finds a batch.
	deskPause = 10 * time.Millisecond
	// debtTick is how often the desk works while something is owed, lookInterval how often it looks
	// otherwise.
	debtTick     = 100 * time.Millisecond
	lookInterval = 2 * time.Second
	// recordBatch is how many events one transaction records at most.
	recordBatch = 5000
	// payLimit and payBytes bound what is in memory of a debt.
	payLimit = 1000
	payBytes = 8 << 20
	// passInterval is the least time between two passes over a debt that has keys which fail.
	passInterval = time.Second
	// maxKeys is with how many keys in debt the subscriber counts as being in debt as a whole.
	maxKeys = 1000
	// roundLimit bounds a round: a network that swallows everything must be noticed before TCP gives up.
	roundLimit = time.Minute
	// closeTimeout bounds the last writes of a stop.
	closeTimeout = 5 * time.Second
)

// desk records and pays a lane's debt. One goroutine does all of its I/O, so that recording, reading,
// removing and looking cannot overtake each other.
type desk struct {
	l *Lane

	waiting bool            // something may be waiting in the debt
	cursor  event.Position  // of the pass: everything up to it was read or left out
	without map[string]bool // keys left out of this pass
	again   bool            // something waits behind the cursor: the pass begins again before anything more is read
	unread  bool            // something may wait beyond the cursor
	change  int64           // of the last look
	passes  int
	passAt  time.Time // when the pass began
	looked  time.Time
	warned  time.Time
}

func newDesk(l *Lane) *desk { return &desk{l: l, unread: true, without: make(map[string]bool)} }

// load learns what is owed, again and again until it is known or ctx ends. Without that nothing may be
// handed over: something older could be owed.
func (d *desk) load(ctx context.Context) error {
	l := d.l
	for failures := 1; ; failures++ {
		debt, err := l.ower.Load(ctx, l.Name(), l.stream.Secured, maxKeys)
		if err == nil {
			l.mu.Lock()
			d.take(debt)
			if !debt.Beyond {
				l.admit(len(l.scope.unchecked), nil) // nothing that comes can be recorded already
				l.scope.checking = false
			}
			l.mu.Unlock()
			err = d.look(ctx)
		}
		if err == nil {
			return nil
		}
		d.report(fmt.Errorf("learn what is owed: %w", err))
		select {
		case <-time.After(l.options.Backoff.Wait(failures)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take makes the scope fit what is owed.
func (d *desk) take(debt Debt) {
	s := &d.l.scope
	d.waiting = debt.More || len(debt.Keys) > 0
	s.paused = debt.Paused
	s.all = debt.More || debt.Paused
	clear(s.keys)
	switch d.l.options.Ordering {
	case ByKey:
		for key, n := range debt.Keys {
			s.keys[key] = n
		}
	case Total:
		for _, n := range debt.Keys {
			s.keys[""] += n
		}
	case None: // nothing waits for what is owed
	}
	d.l.metrics.inDebt.Set(boolToFloat(s.all))
	d.l.metrics.keysInDebt.Set(float64(len(s.keys)))
}

// run works until ctx ends.
func (d *desk) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.l.desk:
		case <-timer.C:
		}
		limited, cancel := context.WithTimeout(ctx, roundLimit)
		err := d.round(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		d.report(err)
		switch {
		case err != nil:
			timer.Reset(time.Second)
		case d.busy():
			timer.Reset(debtTick)
		default:
			timer.Reset(lookInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(deskPause):
		}
	}
}

func (d *desk) busy() bool {
	l := d.l
	l.mu.Lock()
	defer l.mu.Unlock()
	return d.waiting || l.scope.all || l.scope.checking || l.held > 0
}

// round does what is to be done, in the only right order: record before reading, remove before reading
// again, let go last.
func (d *desk) round(ctx context.Context) error {
	l := d.l
	if time.Since(d.looked) >= lookInterval {
		if err := d.look(ctx); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.assess(time.Now())
	l.mu.Unlock()
	for _, step := range []func(context.Context) error{d.check, d.record, d.settle, d.read} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveDebt()
	return nil
}

// check looks up whether what the stream brings after a restart is recorded already.
func (d *desk) check(ctx context.Context) error {
	l := d.l
	caughtUp := l.stream.CaughtUp() // before the list is read: everything up to that point is in it
	l.mu.Lock()
	checking, unchecked := l.scope.checking, l.scope.unchecked
	l.mu.Unlock()
	if !checking {
		return nil
	}
	events := make([]*event.Event, len(unchecked))
	for i, it := range unchecked {
		events[i] = it.ev
	}
	known := map[int]State{}
	if len(events) > 0 {
		var err error
		if known, err = l.ower.Known(ctx, l.Name(), events); err != nil {
			return fmt.Errorf("look up what is owed: %w", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admit(len(unchecked), known)
	l.scope.checking = !caughtUp || len(l.scope.unchecked) > 0
	return nil
}

// record makes what is held owed, when it must leave the window. Keys that have nearly caught up hold
// theirs for a while: when their debt is paid, it is released without ever having been recorded.
func (d *desk) record(ctx context.Context) error {
	l := d.l
	l.mu.Lock()
	batch := d.due(time.Now())
	l.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	var owed []Owed
	var deliveries []*ack.Delivery
	counts := make(map[string]int)
	for _, it := range batch {
		if it.dead {
			if err := d.recordDead(ctx, it); err != nil {
				return err
			}
			continue
		}
		owed = append(owed, it.owed())
		deliveries = append(deliveries, it.live)
		counts[l.keyOf(it.ev)]++
	}
	if len(owed) > 0 {
		if err := l.ower.Record(ctx, l.Name(), owed); err != nil {
			return fmt.Errorf("record %d deliveries as owed: %w", len(owed), err)
		}
		l.acks.Secure(deliveries)
		d.waiting, d.unread = true, true
		d.again = d.again || owed[0].Event.Position.Compare(d.cursor) <= 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held -= len(owed)
	l.metrics.open.Set(float64(l.held))
	l.metrics.recorded.Add(float64(len(owed)))
	s := &l.scope
	s.held = s.held[len(batch):]
	s.urgent = s.urgent && len(s.held) > 0
	if !s.all {
		for key, n := range counts {
			if _, ok := s.keys[key]; ok {
				s.keys[key] += n
			}
		}
	}
	if len(s.held) > 0 && (s.all || s.urgent) {
		signal(l.desk)
	}
	return nil
}

// recordDead records a dead letter among what is held.
func (d *desk) recordDead(ctx context.Context, it *item) error {
	if it.finished {
		return nil
	}
	if err := d.l.writeDead(ctx, it); err != nil {
		return fmt.Errorf("record dead letter: %w", err)
	}
	d.l.mu.Lock()
	defer d.l.mu.Unlock()
	d.l.finish(it, it.lastErr, time.Now())
	return nil
}

// due returns what is to be recorded now, oldest first. The caller holds mu.
func (d *desk) due(now time.Time) []*item {
	l := d.l
	s := &l.scope
	if len(s.held) == 0 {
		s.urgent = false
		return nil
	}
	if l.liveAtWork() {
		return nil
	}
	s.sortHeld()
	age := now.Sub(s.held[0].offered)
	switch {
	case s.urgent:
	case s.all, s.paused:
		if len(s.held) < recordBatch/10 && age < debtTick && !l.stream.Crowds() {
			return nil
		}
	case !l.stream.Crowds() && age < l.options.StallAfter:
		return nil
	}
	return s.held[:min(len(s.held), recordBatch)]
}

// settle removes what was delivered from the debt, and notes what failed.
func (d *desk) settle(ctx context.Context) error {
	l := d.l
	l.mu.Lock()
	paid := l.scope.paid
	var failed []Owed
	for it := range l.scope.failed {
		o := it.owed()
		o.NextAttempt = it.lastFailure.Add(l.options.Backoff.Wait(it.attempts))
		failed = append(failed, o)
	}
	noted := maps.Clone(l.scope.failed)
	clear(l.scope.failed)
	l.mu.Unlock()
	if len(failed) > 0 {
		if err := l.ower.Failed(ctx, l.Name(), failed); err != nil {
			l.mu.Lock()
			maps.Copy(l.scope.failed, noted)
			l.mu.Unlock()
			return fmt.Errorf("note failed attempts: %w", err)
		}
	}
	if len(paid) == 0 {
		return nil
	}
	list := make([]Paid, len(paid))
	for i, it := range paid {
		list[i] = Paid{Event: it.ev, Attempts: it.attempts, Open: l.acks.StillOpen(it.ev.Position)}
	}
	if err := l.ower.Paid(ctx, l.Name(), list, l.acks.Secured(l.number)); err != nil {
		return fmt.Errorf("remove %d paid deliveries: %w", len(list), err)
	}
	if err := d.markLate(ctx, list); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scope.paid = l.scope.paid[len(paid):]
	for _, it := range paid {
		l.scope.letGo(it)
		l.scope.forget(l.keyOf(it.ev))
	}
	return nil
}

// forget notes that a delivery of a key is not recorded as waiting any more.
func (s *scope) forget(key string) {
	if n, ok := s.keys[key]; ok {
		s.keys[key] = n - 1
	}
}

// markLate marks the rows whose last other subscriber finished while the payment was written: neither
// could mark them, because each saw the other's delivery.
func (d *desk) markLate(ctx context.Context, paid []Paid) error {
	var late []Paid
	for _, p := range paid {
		if p.Open && !d.l.acks.StillOpen(p.Event.Position) {
			p.Open = false
			late = append(late, p)
		}
	}
	if len(late) == 0 {
		return nil
	}
	if err := d.l.ower.Paid(ctx, d.l.Name(), late, d.l.acks.Secured(d.l.number)); err != nil {
		return fmt.Errorf("mark %d paid rows: %w", len(late), err)
	}
	return nil
}

// read takes waiting deliveries in hand, in order, as long as there is room for them.
func (d *desk) read(ctx context.Context) error {
	l := d.l
	l.mu.Lock()
	s := &l.scope
	ready := d.waiting && l.running && !s.paused && !s.checking && !l.liveAtWork() && d.wantsMore()
	if ready && d.again {
		ready = d.beginPass(time.Now())
	}
	if ready && l.options.Ordering == ByKey {
		d.dropHogs()
	}
	room := payLimit - s.inHand
	bytes := payBytes - s.inHandBytes
	ready = ready && !l.draining && room >= payLimit/2 && (bytes >= payBytes/2 || s.inHand == 0)
	query := Query{After: d.cursor, Limit: room, Bytes: max(bytes, 1)}
	if l.options.Ordering == ByKey {
		for key := range d.without {
			query.Without = append(query.Without, key)
		}
		for key := range s.blocked {
			query.Without = append(query.Without, key)
		}
	}
	blockedAll := l.options.Ordering == Total && s.blocked[""]
	l.mu.Unlock()
	if !ready || blockedAll {
		return nil
	}
	owed, err := l.ower.Waiting(ctx, l.Name(), query)
	if err != nil {
		return fmt.Errorf("read what is owed: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(owed) == 0 {
		d.unread = false
		d.endPass(time.Now())
		return nil
	}
	now := time.Now()
	for _, o := range owed {
		d.cursor = o.Event.Position
		it := l.newItem(o.Event)
		it.attempts, it.firstFailure, it.lastFailure = o.Attempts, o.FirstFailure, o.LastFailure
		s.takeInHand(it)
		if d.passes > 0 && o.NextAttempt.After(now) && l.keys[l.keyOf(it.ev)] == nil {
			// Given up by an earlier pass; after a restart nothing waits for its backoff.
			l.queueLater(it, min(o.NextAttempt.Sub(now), l.options.Backoff.Max))
			continue
		}
		l.queue(it)
	}
	l.pump()
	signal(l.desk) // there may be more
	return nil
}

// wantsMore reports whether what is in hand is too little. While the subscriber is away that is only so
// when nothing of it can be the next probe: the keys in hand may be the ones that fail, and not the
// subscriber. The caller holds mu.
func (d *desk) wantsMore() bool {
	l := d.l
	if !l.breaker.open || l.scope.inHand == 0 {
		return true
	}
	return (d.unread || d.again) && l.ready.empty() && len(l.calls) == l.overdue
}

// dropHogs gives up keys in backoff when they fill a quarter of what may be in hand: the others go on
// without them.
func (d *desk) dropHogs() {
	l := d.l
	hogs := 0
	for q := range l.resting {
		hogs += len(q.items)
	}
	if hogs < payLimit/4 {
		return
	}
	for q := range l.resting {
		if q.items[0].live == nil {
			d.without[q.key] = true
			l.giveUp(q)
		}
	}
}

// endPass is called when nothing is left beyond the cursor. Then all that waits is in hand, unless keys
// were left out: for those the next pass begins after a while.
func (d *desk) endPass(now time.Time) {
	l := d.l
	s := &l.scope
	if len(d.without) > 0 {
		if d.again = s.inHand == 0 || now.Sub(d.passAt) >= passInterval; d.again {
			signal(l.desk)
		}
		return
	}
	if s.inHand == 0 {
		for key := range s.keys { // whatever was counted: nothing of them waits
			if !s.blocked[key] {
				s.keys[key] = 0
			}
		}
		d.waiting = false
		d.looked = time.Time{} // tell the tracker at once
		d.beginPass(now)
	}
	if !l.breaker.open {
		l.narrow()
	}
}

// beginPass begins to read from the oldest. What is in hand is not to be read again: keys are left out of
// the pass, and where everything is one key, or none, the pass waits until nothing is in hand.
func (d *desk) beginPass(now time.Time) bool {
	l := d.l
	if l.options.Ordering != ByKey && l.scope.inHand > 0 {
		return false
	}
	d.cursor, d.again, d.unread, d.passAt = event.Position{}, false, true, now
	d.passes++
	clear(d.without)
	for _, it := range l.owedItems() {
		d.without[l.keyOf(it.ev)] = true
	}
	return true
}

// look asks what people have changed, and how far the debt reaches back.
func (d *desk) look(ctx context.Context) error {
	l := d.l
	d.looked = time.Now()
	look, err := l.ower.Look(ctx, l.Name())
	if err != nil {
		return fmt.Errorf("look at what is owed: %w", err)
	}
	oldest := (*event.Position)(nil)
	if look.Any {
		oldest = &look.Oldest
	}
	l.acks.Owes(l.number, oldest)
	if err := d.lookForBlocked(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	if look.Paused {
		d.pause()
	}
	l.scope.paused = look.Paused
	l.stats.OwesSince, l.stats.OwesSinceAt = oldest, look.OldestAt
	// A person has sent again, added or discarded something; or, by hand, without a note of it.
	if d.passes == 0 && d.change == 0 {
		d.change = look.Change // the first look; what was changed before is in what was loaded
	}
	changed := look.Change != d.change || look.Any && !d.waiting && len(l.scope.blocked) == 0
	l.mu.Unlock()
	if !changed {
		return nil
	}
	debt, err := l.ower.Load(ctx, l.Name(), l.acks.Secured(l.number), maxKeys)
	if err != nil {
		return fmt.Errorf("learn what is owed: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d.change = look.Change
	l.widen(debt)
	for _, q := range l.keys {
		l.giveUp(q) // it may have been discarded, or be dead now
	}
	d.again, d.waiting = true, true
	return nil
}

// pause puts the subscriber in debt and gives up what was read from it. The caller holds mu.
func (d *desk) pause() {
	l := d.l
	if l.scope.paused {
		return
	}
	if !l.scope.all {
		l.enterAll("a person has paused it")
	}
	for _, q := range l.keys {
		l.giveUp(q)
	}
	d.again = true
}

// lookForBlocked keeps the keys that wait behind a dead letter, and begins a new pass when a person has
// dealt with one.
func (d *desk) lookForBlocked(ctx context.Context) error {
	l := d.l
	if !l.options.BlockKey {
		return nil
	}
	l.mu.Lock()
	before := maps.Clone(l.scope.blocked) // one that is added meanwhile is not in the answer
	l.mu.Unlock()
	keys, err := l.ower.Blocked(ctx, l.Name())
	if err != nil {
		return fmt.Errorf("look at blocked keys: %w", err)
	}
	now := make(map[string]bool, len(keys))
	for _, key := range keys {
		if l.options.Ordering == Total {
			key = ""
		}
		now[key] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range before {
		if !now[key] {
			delete(l.scope.blocked, key)
			if l.options.Ordering != None {
				l.scope.keys[key] = unknown // what waited behind the dead letter goes first
			}
			d.again, d.waiting = true, true
		}
	}
	for key := range now {
		if !before[key] {
			l.scope.blocked[key] = true
			if q := l.keys[key]; q != nil {
				l.holdQueue(q)
			}
		}
	}
	return nil
}

// close removes what was paid and records what is still open as owed, so that a clean restart repeats
// nothing. What cannot be recorded stays open and comes again.
func (d *desk) close() error {
	l := d.l
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := d.settle(ctx); err != nil {
		d.report(err)
		return nil
	}
	l.mu.Lock()
	s := &l.scope
	s.all, s.urgent = true, true
	for _, q := range l.keys {
		l.holdQueue(q)
	}
	for c := range l.calls { // handlers that ignore their context are not waited for any longer
		if !c.overdue {
			c.overdue = true
			l.overdue++
		}
	}
	l.abandonOverdue()
	open := len(s.held)
	l.mu.Unlock()
	for open > 0 {
		if err := d.record(ctx); err != nil {
			d.report(err)
			l.log.Warn("stopped with open deliveries, they come again", "open", open)
			return nil
		}
		l.mu.Lock()
		before := open
		open = len(s.held)
		l.mu.Unlock()
		if open == before {
			break
		}
	}
	d.report(d.look(ctx)) // what is owed no more holds no WAL
	return nil
}

// report shows an error of the debt in log, metrics and statistics, and its end.
func (d *desk) report(err error) {
	l := d.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.stats.DebtError = ""
		return
	}
	l.stats.DebtError = err.Error()
	l.metrics.debtErrors.Inc()
	if now := time.Now(); now.Sub(d.warned) >= warnEvery {
		d.warned = now
		l.log.Warn("cannot keep the books of the debt, will try again; nothing is lost meanwhile", "err", err)
	}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
