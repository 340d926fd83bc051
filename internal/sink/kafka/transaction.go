package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/subscriber"
)

// transact sends the records of a call in one transaction, in turns with other calls: the brokers take one at a time under
// a transactional id.
func (s *session) transact(c *call, all []*sending) {
	if len(all) == 0 {
		return
	}
	ctx, cancel := s.with(c.ctx)
	defer cancel()
	select {
	case <-s.turn:
		defer func() { s.turn <- struct{}{} }()
	case <-ctx.Done():
		for _, x := range all {
			x.report(x.index, x.key, s.kafka.judge(c.ctx, x.record, kgo.ErrAborting))
		}
		return
	}
	if all = s.unsent(ctx, c, all); len(all) == 0 {
		return
	}
	if slices.ContainsFunc(all, s.hasOutgrown) {
		// Outside of transactions such a record goes alone, on a client without a limit.
		s.replace(errLimitRaised)
		for _, x := range all {
			x.report(x.index, x.key, subscriber.Away(errLimitRaised))
		}
		return
	}
	errs, rolledBack := s.once(ctx, all)
	for i, x := range all {
		switch {
		case len(all) > 1 && rolledBack != nil && isFault(rolledBack):
			// Which record is at fault shows a transaction of its own.
			if x.hasFailed(x.key) {
				x.report(x.index, x.key, subscriber.ErrHeld)
				continue
			}
			err, _ := s.once(ctx, all[i:i+1])
			x.report(x.index, x.key, s.kafka.judge(c.ctx, x.record, err[0]))
		case errs[i] == nil && rolledBack != nil:
			x.report(x.index, x.key, subscriber.Away(s.kafka.masked(fmt.Errorf("its transaction was rolled back: %w", rolledBack))))
		default:
			x.report(x.index, x.key, s.kafka.judge(c.ctx, x.record, errs[i]))
		}
	}
}

// unsent are those that are to be sent. The others are reported: they are committed already.
func (s *session) unsent(ctx context.Context, c *call, all []*sending) (rest []*sending) {
	fail := func(err error) []*sending {
		for _, x := range all {
			x.report(x.index, x.key, s.kafka.judge(c.ctx, x.record, err))
		}
		return nil
	}
	switch {
	case s.fenced:
		return fail(fmt.Errorf("transactional id %s: %w", s.kafka.transactionalID(), subscriber.ErrOldTerm))
	case s.ended.Err() != nil:
		return fail(kgo.ErrAborting)
	}
	if err := s.begin(ctx); err != nil {
		s.replace(err)
		return fail(err)
	}
	if s.trail.full() {
		return fail(fmt.Errorf("%s committed in Kafka and not recorded in Postgres", printable.Count(maxTrail, "event", "is")))
	}
	if s.resolved.Swap(false) {
		clear(s.seen)
	}
	if len(s.seen) == 0 {
		return all
	}
	for _, x := range all {
		if s.isCommitted(x) {
			x.report(x.index, x.key, nil)
			continue
		}
		rest = append(rest, x)
	}
	return rest
}

// noteCommitted notes what has just been committed. Of a call that took longer than it may, the lane may have recorded events
// as owed meanwhile, and then it does not listen to our report: they come again.
func (s *session) noteCommitted(all []*sending, records []sent) {
	late := time.Since(all[0].begun) >= s.kafka.Timeout
	s.trail.add(records, late, time.Now())
	if late && len(s.seen) < maxTrail {
		for _, x := range all {
			s.seen[identityOf(x.delivery.Identity(), x.record.Topic)] = struct{}{}
		}
	}
}

// errLimitRaised ends a client that knows a former limit.
var errLimitRaised = errors.New("a topic takes larger records now, which the next attempt will use")

// once makes one transaction. errs are those of the records; rolledBack is why none of them counts, nil when all do. ctx is
// the life of the leadership and of the session.
func (s *session) once(ctx context.Context, all []*sending) (errs []error, rolledBack error) {
	errs = make([]error, len(all))
	fail := func(err error) ([]error, error) {
		for i := range errs {
			errs[i] = err
		}
		return errs, err
	}
	if s.fenced {
		return fail(fmt.Errorf("transactional id %s: %w", s.kafka.transactionalID(), subscriber.ErrOldTerm))
	}
	if err := s.client.BeginTransaction(); err != nil {
		s.replace(err)
		return fail(err)
	}
	reported := make(chan struct{}, len(all))
	records := make([]sent, len(all))
	for i, x := range all {
		again := *x.record
		s.client.Produce(ctx, &again, func(r *kgo.Record, err error) {
			errs[i] = err
			records[i] = sent{partition{r.Topic, r.Partition}, r.Offset, x.delivery.Position.String(), x.delivery.Owed}
			reported <- struct{}{}
		})
	}
	flush, cancel := context.WithTimeout(ctx, s.kafka.Timeout)
	defer cancel()
	if late := s.client.Flush(flush); late != nil {
		// It is not ended here: a process that was frozen would meet another leader, and could take the id back from it.
		s.replace(late)
	}
	for range all {
		<-reported
	}
	if rolledBack = firstOf(errs); rolledBack == nil {
		if rolledBack = s.readRest(ctx, all, records); rolledBack == nil {
			rolledBack = s.noteFor(ctx, records)
		}
	}
	if rolledBack == nil {
		// Without an answer it is not known whether it counts, and the brokers take no other transaction: there is nothing
		// to do but to wait for it.
		if err := s.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
			s.replace(err)
			return fail(err)
		}
		s.noteCommitted(all, records)
		return errs, nil
	}
	if errors.Is(rolledBack, kgo.ErrClientClosed) && ctx.Err() == nil {
		return fail(fmt.Errorf("the brokers have not taken it within %s", s.kafka.Timeout))
	}
	if isFenced(rolledBack) {
		s.fenced = true
		return errs, rolledBack
	}
	end, cancelEnd := context.WithTimeout(ctx, s.kafka.Timeout) // an Abort waits for us: no longer than that
	defer cancelEnd()
	if err := s.client.EndTransaction(end, kgo.TryAbort); err != nil {
		s.replace(err)
	} else if errors.Is(rolledBack, kerr.UnknownTopicID) {
		s.replace(rolledBack) // as in leave
	}
	return errs, rolledBack
}

// replace closes the client for this reason, and lets the next Send begin another session, whose client ends what this one
// has left. If another relay has the transactional id the session stays, and sends nothing: it must not take the id back
// before it is known who leads.
func (s *session) replace(reason error) {
	if isFenced(reason) {
		s.fenced = true
		return
	}
	s.kafka.mu.Lock()
	if s.kafka.now == s {
		s.kafka.now = nil
	}
	s.kafka.mu.Unlock()
	s.stop()
	s.client.Close()
}

// transactionalID is what the brokers know a subscriber by, whichever relay serves it.
func (o Options) transactionalID() string { return "walpost/" + o.Slot + "/" + o.Name }

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
