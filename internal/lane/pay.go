package lane

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// settle removes what was delivered from the debt, and notes what failed.
func (d *desk) settle(ctx context.Context) error {
	l := d.l
	l.mu.Lock()
	paid := l.scope.paid
	var failed []Owed
	for it := range l.scope.failed {
		o := it.owed()
		o.NextAttempt = it.past().last.Add(l.options.Backoff.Wait(it.attempts()))
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
		list[i] = Paid{Event: it.ev, Attempts: it.attempts(), Open: l.acks.StillOpen(it.ev.Position)}
	}
	if err := l.ower.Paid(ctx, l.Name(), list, l.acks.Secured(l.number)); err != nil {
		return fmt.Errorf("remove %d paid deliveries: %w", len(list), err)
	}
	if err := d.markLate(ctx, list); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scope.paid = rest(l.scope.paid, len(paid))
	for _, it := range paid {
		l.scope.letGo(it)
		l.scope.forget(l.keyOf(it.ev))
	}
	return nil
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

// forget notes that a delivery of a key is not recorded as waiting any more.
func (s *scope) forget(key string) {
	if n, ok := s.keys[key]; ok {
		s.keys[key] = n - 1
	}
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
		if s.blocked[l.keyOf(o.Event)] {
			continue // since the query was made
		}
		it := l.newItem(o.Event, now)
		if o.Attempts > 0 || !o.FirstFailure.IsZero() {
			past := it.failing()
			past.attempts, past.first, past.last = o.Attempts, o.FirstFailure, o.LastFailure
		}
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
		if q.items[0].fromDebt() {
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
