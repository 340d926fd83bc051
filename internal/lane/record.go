package lane

import (
	"context"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/printable"
)

// recordBehindDebt makes what stands behind debt owed, when it must leave the window. Keys that have nearly caught up hold
// theirs for a while: when their debt is paid, it is released without ever having been recorded.
func (d *debtReader) recordBehindDebt(ctx context.Context) error {
	l := d.l
	var owed []Owed
	var deliveries []*ack.Delivery
	var waiting, dead []*item
	var letters []Owed // of them
	l.mu.Lock()
	batch := d.dueLocked(time.Now())
	for _, it := range batch {
		switch {
		case it.finished: // its dead letter is written, and what was to be written after it was not
		case it.dead:
			dead, letters = append(dead, it), append(letters, it.owedLocked())
		default:
			owed, deliveries, waiting = append(owed, it.owedLocked()), append(deliveries, it.delivery()), append(waiting, it)
		}
	}
	l.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	for i, it := range dead {
		if err := d.recordDeadBehindDebt(ctx, it, letters[i]); err != nil {
			return err
		}
	}
	var others []*item
	if len(owed) > 0 {
		of, err := l.ower.Record(ctx, l.Name(), owed)
		if err != nil {
			return fmt.Errorf("record %s as owed: %w", printable.Count(len(owed), "delivery"), err)
		}
		waiting, others = split(waiting, of)
		secured, _ := split(deliveries, of)
		l.acks.Secure(secured)
		for _, o := range owed {
			d.count.noteRecorded(o.Event)
		}
		d.waiting, d.pass.unread = true, true
		d.pass.again = d.pass.again || owed[0].Event.Position.Compare(d.pass.cursor) <= 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range others {
		l.noteOtherLocked(it)
		l.acks.Finish(ack.End{Delivery: it.delivery(), Recorded: true, Other: true})
	}
	l.open -= len(owed)
	l.metrics.open.Set(float64(l.open))
	l.metrics.recorded.Add(float64(len(waiting)))
	s := &l.scope
	s.behindDebt = rest(s.behindDebt, len(batch))
	s.urgent = s.urgent && len(s.behindDebt) > 0
	if !s.mode.whole() {
		for _, it := range waiting {
			if n, ok := s.keys[l.keyOf(it)]; ok {
				s.keys[l.keyOf(it)] = n + 1
			}
		}
	}
	if len(s.behindDebt) > 0 && (s.mode.whole() || s.urgent) {
		signal(l.readerWake)
	}
	return nil
}

// recordDeadBehindDebt records a dead letter among what stands behind debt.
func (d *debtReader) recordDeadBehindDebt(ctx context.Context, it *item, letter Owed) error {
	if err := d.l.writeDead(ctx, it, letter); err != nil {
		return fmt.Errorf("record dead letter: %w", err)
	}
	d.l.mu.Lock()
	defer d.l.mu.Unlock()
	d.l.finish(it, it.past().err, time.Now())
	d.l.acknowledge()
	return nil
}

// dueLocked returns what is to be recorded now, oldest first.
func (d *debtReader) dueLocked(now time.Time) []*item {
	l := d.l
	s := &l.scope
	if len(s.behindDebt) == 0 {
		s.urgent = false
		return nil
	}
	if l.liveAtWorkLocked() {
		return nil
	}
	s.sortBehindDebt()
	age := now.Sub(l.made) - s.behindDebt[0].offered
	switch {
	case s.urgent, s.behindDebt[0].ev.Position.Compare(s.before) <= 0:
	case s.mode.whole():
		if len(s.behindDebt) < recordBatch/10 && age < debtTick && !l.stream.Crowds() {
			return nil
		}
	case !l.stream.Crowds() && age < l.options.StallAfter:
		return nil
	}
	return s.behindDebt[:min(len(s.behindDebt), recordBatch)]
}
