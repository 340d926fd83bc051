package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	// maxBatch is how many messages a server takes in one batch by default; max_batch_size of a server can be lower, and
	// then it refuses, and waves follow.
	maxBatch = 1000
	// longChain is how many messages a chain has that goes in a batch to a stream of one replica on a disk. Such a stream
	// makes a file for each batch, and waits for the disk: some 25 ms, in which a wave has had 100 acknowledgements.
	// Other streams keep a batch in memory until it is whole, which costs less than a wave from two messages on.
	// (docs/decisions/0014)
	longChain = 100
	// lateFor is how much longer an answer is waited for that has not come within the timeout.
	lateFor = 30 * time.Second
)

// errNotAcknowledged says that the timeout is over. What was sent can still be stored.
var errNotAcknowledged = errors.New("not acknowledged in time")

// publish hands the chains over: in batches where the stream takes them and that is faster, the others by waves, of each
// chain one message at a time. The messages of a chain can go to several streams: then they go by waves.
func (c *call) publish(chains [][]*sending) {
	batches := map[*facts][][]*sending{}
	for _, chain := range chains {
		stream := c.session.streams.of(chain[0].message.Subject)
		for _, x := range chain[1:] {
			if stream != nil && !stream.captures(x.message.Subject) {
				stream = nil
			}
		}
		if stream == nil || !stream.atomic || stream.staged && len(chain) < c.nats.longChain {
			c.session.work.Go(func() { c.wave(chain) })
			continue
		}
		batches[stream] = append(batches[stream], chain)
	}
	for stream, chains := range batches {
		if len(chains) == 1 && len(chains[0]) == 1 {
			c.session.work.Go(func() { c.wave(chains[0]) })
			continue
		}
		c.session.work.Go(func() { c.batches(stream, chains) })
	}
}

// wave sends a chain: each message when the one before is acknowledged. JetStream stores the messages of a connection one by
// one, so one that is lost on the way would be overtaken.
//
// What is left of a long chain when half of the timeout is over is held for the next call, so that each is reported in time.
func (c *call) wave(chain []*sending) {
	for i, x := range chain {
		err := error(subscriber.ErrHeld)
		if i == 0 || time.Since(c.begun) < c.nats.Timeout/2 {
			err = c.send(x)
		}
		c.done(x.index, err)
		if err == nil {
			continue
		}
		for _, held := range chain[i+1:] {
			c.done(held.index, subscriber.ErrHeld)
		}
		return
	}
}

// over tells why nothing may be sent any more.
func (c *call) over() error {
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case c.session.life.Err() != nil:
		return subscriber.Away(errOver)
	}
	return nil
}

// send sends one message and waits for its acknowledgement.
func (c *call) send(x *sending) error {
	s, m := c.session, x.message
	if err := c.over(); err != nil {
		return err
	}
	if err := s.denied(m.Subject); err != nil {
		return err
	}
	watch := s.watch(m.Subject)
	defer s.unwatch(m.Subject, watch)
	// The client would try "no responders" again by itself, and so overtake.
	future, err := s.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
	if err != nil {
		return s.judge(x, err)
	}
	patience := time.NewTimer(time.Until(c.begun.Add(s.nats.Timeout)))
	defer patience.Stop()
	select {
	case ack := <-future.Ok():
		if s.streams.toAsk(ack.Stream) {
			s.work.Go(func() { s.streams.learn(s.life, s.js, ack.Stream) })
		}
		return nil
	case err := <-future.Err():
		return s.judge(x, err)
	case <-patience.C:
		s.work.Go(func() { s.awaitLate(future) })
		return s.judge(x, errNotAcknowledged)
	case <-watch.refused:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.denialError(m.Subject, watch)
	case <-s.gone:
		return subscriber.Away(errOver)
	}
}

// awaitLate waits for the acknowledgement of a message that was given up: it can still be stored, and Abort must know.
func (s *session) awaitLate(future jetstream.PubAckFuture) {
	select {
	case <-future.Ok():
	case err := <-future.Err():
		s.doubt(err)
	case <-s.gone:
	}
}

// batches sends chains in batches that are stored whole or not at all. Where one is refused, its messages and what follows
// go by waves, and show which of them was at fault: one that the stream has already, for example, since it was sent before
// a crash.
func (c *call) batches(stream *facts, chains [][]*sending) {
	var all []*sending
	for _, chain := range chains {
		all = append(all, chain...)
	}
	sent, err := 0, error(nil)
	for sent < len(all) && err == nil {
		next := all[sent:min(sent+maxBatch, len(all))]
		if err = c.batch(next); err == nil {
			for _, x := range next {
				c.done(x.index, nil)
			}
			sent += len(next)
		}
	}
	if c.session.streams.toAsk(stream.name) {
		c.session.work.Go(func() { c.session.streams.learn(c.session.life, c.session.js, stream.name) })
	}
	var refused refusal
	byWaves := errors.As(err, &refused)
	for _, chain := range chains {
		rest := chain[min(sent, len(chain)):]
		sent = max(0, sent-len(chain))
		switch {
		case len(rest) == 0:
		case byWaves:
			c.session.work.Go(func() { c.wave(rest) })
		default:
			for _, x := range rest {
				c.done(x.index, err)
			}
		}
	}
}

// refusal says that nothing of a batch was stored.
type refusal struct{ error }

// batch sends messages as one. An error that is no refusal leaves open what became of them.
func (c *call) batch(all []*sending) error {
	s := c.session
	if err := c.over(); err != nil {
		return err
	}
	messages := make([]message, len(all))
	for i, x := range all {
		messages[i] = x.message
	}
	answered := make(chan error, 1)
	s.work.Go(func() { answered <- s.sendBatch(messages) }) // also when it is late: it can still be stored
	patience := time.NewTimer(time.Until(c.begun.Add(s.nats.Timeout)))
	defer patience.Stop()
	var err error
	select {
	case err = <-answered:
	case <-patience.C:
		err = errNotAcknowledged
	}
	var answer *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer), isNoResponder(err), isLocal(err):
		for _, m := range messages {
			m.Header.Del(jetstreamext.BatchIDHeader)
			m.Header.Del(jetstreamext.BatchSeqHeader)
			m.Header.Del(jetstreamext.BatchCommitHeader)
		}
		return refusal{err}
	}
	return s.judge(all[len(all)-1], fmt.Errorf("a batch of %d: %w", len(all), err))
}

// sendBatch sends messages and waits for the answer to the last, which commits them, until the connection is cut. It does
// not look at the leadership: what has begun ends, and Abort waits for that. Only the commit is answered: the server says
// then what was wrong with one of the others.
func (s *session) sendBatch(messages []message) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.nats.Timeout+lateFor, errNotAcknowledged)
	defer cancel()
	cut := s.whenCut()
	ended := make(chan struct{})
	defer close(ended)
	s.work.Go(func() {
		select {
		case <-cut:
		case <-s.gone:
		case <-ended:
		}
		cancel()
	})
	_, err := jetstreamext.PublishMsgBatch(ctx, s.js, messages, jetstreamext.BatchFlowControl{})
	if err != nil && errors.Is(context.Cause(ctx), errNotAcknowledged) {
		s.doubt(jetstream.ErrAsyncPublishTimeout)
	}
	return err
}
