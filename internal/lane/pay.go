package lane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/backendstart/walpost/internal/printable"
)

// removePaid removes what was delivered from the debt, and notes what failed.
func (d *debtReader) removePaid(ctx context.Context) error {
	l := d.l
	l.mu.Lock()
	paid := l.scope.paid
	var failed []Owed
	for it := range l.scope.failed {
		failed = append(failed, it.owedLocked())
	}
	noted := maps.Clone(l.scope.failed)
	clear(l.scope.failed)
	list := make([]Paid, len(paid))
	for i, it := range paid {
		list[i] = Paid{Event: it.ev, Attempts: it.attempts()}
	}
	l.mu.Unlock()
	if len(failed) > 0 {
		if err := l.ower.Failed(ctx, l.Name(), failed); err != nil {
			l.mu.Lock()
			maps.Copy(l.scope.failed, noted)
			l.mu.Unlock()
			return fmt.Errorf("note failed attempts: %w", err)
		}
	}
	if len(list) == 0 {
		return nil
	}
	if err := l.ower.Paid(ctx, l.Name(), list, l.acks.Secured(l.number)); err != nil {
		return fmt.Errorf("remove %s: %w", printable.Count(len(list), "paid delivery"), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scope.paid = rest(l.scope.paid, len(paid))
	for _, it := range paid {
		l.scope.dropFromHand(it)
		l.scope.forget(l.options.Ordering.keyOf(it.ev))
	}
	return nil
}

// readWaiting takes waiting deliveries in hand, in order, as long as there is room for them.
func (d *debtReader) readWaiting(ctx context.Context) error {
	l := d.l
	l.mu.Lock()
	s := &l.scope
	ready := d.waiting && l.stage == working && s.mode != debtPaused && !s.unread && !l.liveAtWorkLocked() && !s.mustRecordFirst()
	if ready && l.backAgain && d.pass.leftOut {
		d.pass.again = true // what failed while the subscriber was away need not wait any longer
	}
	if ready && d.pass.again {
		ready = d.beginPassLocked(time.Now())
	}
	if _, unread := d.lookUps.keys[""]; l.options.Ordering == Total && (unread || s.blocked[""]) {
		ready = false
	}
	if !ready || !d.wantsMoreLocked() {
		l.mu.Unlock()
		return nil
	}
	if !d.pass.unread {
		l.mu.Unlock()
		return d.endPass(ctx)
	}
	failing, failingBytes := d.setAsideLocked()
	room := payLimit - (s.inHand - failing)
	bytes := payBytes - (s.inHandBytes - failingBytes)
	if room < payLimit/2 || bytes < payBytes/2 && s.inHand > failing {
		l.mu.Unlock()
		return nil
	}
	query := d.queryLocked(room, max(bytes, 1))
	l.mu.Unlock()

	began := time.Now()
	page, err := l.ower.Waiting(ctx, l.Name(), query)
	d.pass.took += time.Since(began)
	if errors.Is(err, ErrChanged) {
		l.Refresh()
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what is owed: %w", err)
	}
	if len(page.Owed) == 0 && !page.More {
		d.pass.unread = false
		return d.endPass(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.mode == debtPaused { // meanwhile, on its own word
		return nil
	}
	now := time.Now()
	d.pass.cursor = page.Reached
	for _, o := range page.Owed {
		key := l.options.Ordering.keyOf(o.Event)
		if s.blocked[key] || d.pass.without[key] {
			continue // blocked since the query was made; or in hand, where each event is a key
		}
		d.takeInHandLocked(o, now)
	}
	l.startCallsLocked()
	signal(l.readerWake) // there may be more
	return nil
}

// queryLocked is the next page of this pass.
func (d *debtReader) queryLocked(limit int, bytes int64) Query {
	l := d.l
	query := Query{After: d.pass.cursor, Limit: limit, Examine: examineRows, Bytes: bytes, Order: l.options.Ordering, Due: d.pass.dueBy, Change: d.change}
	if l.options.Ordering != ByKey {
		return query
	}
	query.WithoutBlocked = l.options.BlockKey
	for key := range d.pass.without {
		query.Without = append(query.Without, key)
	}
	for key := range d.lookUps.keys {
		query.Without = append(query.Without, key)
		d.pass.leftOut = true
	}
	inHand := make(map[string]bool)
	for _, it := range l.owedItemsLocked() {
		if key := it.ev.Key; !inHand[key] && !d.pass.without[key] {
			inHand[key] = true
			query.InHand = append(query.InHand, key)
		}
	}
	return query
}

// takeInHandLocked queues a delivery that was read from the debt, and returns the queue of its key.
func (d *debtReader) takeInHandLocked(o Owed, now time.Time) *keyQueue {
	l := d.l
	it := l.newItem(o.Event, owedOrigin{}, now)
	key := l.options.Ordering.keyOf(o.Event)
	hasFailed := o.Attempts > 0 || !o.FirstFailure.IsZero()
	if hasFailed {
		past := it.failing()
		past.attempts, past.first, past.last = o.Attempts, o.FirstFailure, o.LastFailure
	}
	l.scope.takeInHand(it)
	if !hasFailed || l.backlog.keys[key] != nil {
		l.backlog.push(l.options.Ordering.keyOf(it.ev), it)
		return l.backlog.keys[key]
	}
	due := now
	asked := o.NextAttempt.Sub(o.LastFailure) > l.options.Backoff.Max // by the receiver
	if asked || !d.pass.allDue {
		due = latest(now, o.NextAttempt)
	}
	return l.backlog.pushFailed(key, it, due)
}

// wantsMoreLocked reports whether what is in hand is too little. While the subscriber is away, that is when
// everything in hand has failed since: the keys in hand may be those that fail, and not the subscriber.
func (d *debtReader) wantsMoreLocked() bool {
	l := d.l
	return !l.breaker.open() || l.backlog.ready.empty() && l.calls.inTime() == 0
}

// setAsideLocked bounds what failing keys hold of the memory for the debt, by number and by bytes: it gives
// up those whose next attempt is furthest away, so that the others go on without them. They stay recorded,
// and a later pass comes back to them. At least one stays in hand, to be tried. It returns what they hold.
func (d *debtReader) setAsideLocked() (number int, bytes int64) {
	l := d.l
	var queues []*keyQueue
	size := func(q *keyQueue) (n int, bytes int64) {
		for _, it := range q.items {
			if it.fromDebt() {
				n, bytes = n+1, bytes+int64(it.ev.Size())
			}
		}
		return n, bytes
	}
	for _, q := range l.backlog.retries {
		if len(q.items) == 0 || !q.items[0].fromDebt() {
			continue
		}
		n, b := size(q)
		number, bytes = number+n, bytes+b
		// What fails must be known to the debt before it is left out of what is read next.
		if _, unnoted := l.scope.failed[q.items[0]]; !unnoted {
			queues = append(queues, q)
		}
	}
	if l.options.Ordering == Total || number < payLimit/4 && bytes < payBytes/4 {
		return number, bytes
	}
	slices.SortFunc(queues, func(a, b *keyQueue) int { return a.due.Compare(b.due) })
	room, roomBytes := payLimit/4, int64(payBytes/4)
	for i, q := range queues {
		if i == 0 { // to be tried, however large its first delivery is
			n, b := l.giveUpTailLocked(q, room, roomBytes)
			if n > 0 {
				number, bytes = number-n, bytes-b
				d.pass.leaveOut(q.key) // what follows it is read in the next pass
			}
			continue
		}
		n, b := size(q)
		if n <= room && b <= roomBytes {
			room, roomBytes = room-n, roomBytes-b
			continue
		}
		number, bytes = number-n, bytes-b
		l.giveUpLocked(q)
		d.pass.leftOut = true
	}
	return number, bytes
}

// endPass is called when nothing is left beyond the cursor. Unless something was left out, all that waits is
// in hand then. Else the next pass begins after a while.
func (d *debtReader) endPass(ctx context.Context) error {
	l := d.l
	l.mu.Lock()
	inHand, leftOut := l.scope.inHand, d.pass.leftOut
	l.mu.Unlock()
	if leftOut {
		if inHand > 0 {
			return d.betweenPasses(ctx)
		}
		more, err := l.ower.Waiting(ctx, l.Name(), Query{Limit: 1, Examine: examineRows})
		if err != nil {
			return fmt.Errorf("read what is owed: %w", err)
		}
		if len(more.Owed) > 0 || more.More {
			return d.betweenPasses(ctx)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.scope
	if s.inHand == 0 {
		for key := range s.keys { // whatever was counted: nothing of them waits
			if !s.blocked[key] {
				s.keys[key] = 0
			}
		}
		d.waiting = false
		d.refreshedAt = time.Time{} // tell the tracker at once
		d.pass.goOn(time.Now())
	}
	if !l.breaker.open() {
		l.narrowLocked()
	}
	return nil
}

// betweenPasses waits until it is time to come back to what was left out. Passes over a long debt of failing
// keys take at most a tenth of the time. Meanwhile keys of which nothing waits any more join the live ones.
func (d *debtReader) betweenPasses(ctx context.Context) error {
	l := d.l
	now := time.Now()
	l.mu.Lock()
	tried := l.breaker.open() && len(l.backlog.retries) > 0
	l.mu.Unlock()
	if tried {
		return nil // what was left out has failed: while the subscriber is away, samples of it are enough
	}
	if now.Sub(d.pass.began) >= max(passInterval, 10*d.pass.took) {
		d.pass.again = true
		signal(l.readerWake)
	}
	return d.countKeys(ctx)
}

// beginPassLocked begins to read from the oldest. What is in hand is not to be read again: what is not under
// way and has not failed is given up, the other keys are left out of the pass; where everything is one key,
// the pass waits until nothing is in hand.
func (d *debtReader) beginPassLocked(now time.Time) bool {
	l := d.l
	if l.options.Ordering == Total && l.scope.inHand > 0 {
		return false
	}
	d.pass.begin(now, l.backAgain, l.options.Backoff.Max)
	l.backAgain = false
	for _, q := range l.backlog.keys {
		if q.state == ready {
			l.giveUpLocked(q)
		}
	}
	for _, it := range l.owedItemsLocked() {
		d.pass.without[l.options.Ordering.keyOf(it.ev)] = true
	}
	d.pass.leftOut = !d.pass.dueBy.IsZero() || len(d.pass.without) > 0
	return true
}

// readSample fetches the next probe from a random place in the debt, while the subscriber is away.
func (d *debtReader) readSample(ctx context.Context) error {
	l := d.l
	now := time.Now()
	l.mu.Lock()
	wanted := l.breaker.open() && l.backlog.sample == nil && !now.Before(l.breaker.nextOther) && now.Sub(d.sampledAt) >= maxProbeGap &&
		l.options.Ordering != Total && d.waiting && !d.pass.again && l.stage == working && l.scope.mode != debtPaused && !l.scope.unread && !l.liveAtWorkLocked() && !l.scope.mustRecordFirst()
	l.mu.Unlock()
	if wanted && len(d.pass.without) >= 2*payLimit { // samples of a long outage; the next pass knows their failures from the debt
		d.pass.again = true
		return nil
	}
	if !wanted {
		return nil
	}
	d.sampledAt = now
	owed, err := l.ower.Sample(ctx, l.Name(), l.options.Ordering, rand.Float64())
	if err != nil {
		return fmt.Errorf("read a sample of what is owed: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range owed {
		key := l.options.Ordering.keyOf(o.Event)
		q := l.backlog.keys[key]
		if _, unread := d.lookUps.keys[key]; unread || l.scope.blocked[key] || !l.breaker.open() || l.scope.mode == debtPaused {
			return nil
		}
		if q == nil && !d.inHandLocked(key) {
			q = d.takeInHandLocked(o, time.Now())
			d.pass.leaveOut(key) // what follows it is read in the next pass
			d.setAsideLocked()
		}
		if q != nil && len(q.items) > 0 && (q.state == ready || q.state == retrying) {
			l.backlog.sample = q
		}
	}
	l.startCallsLocked()
	return nil
}

// inHandLocked reports whether something of a key was read and is not yet removed from the debt.
func (d *debtReader) inHandLocked(key string) bool {
	return slices.ContainsFunc(d.l.owedItemsLocked(), func(it *item) bool { return d.l.options.Ordering.keyOf(it.ev) == key })
}
