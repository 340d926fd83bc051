package tracing

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/backendstart/walpost/internal/subscriber"
)

// maxText is how many bytes of an error a span has.
const maxText = 500

// Wrap returns sub with a span for each call of it: a child of the span under which its event was written, or, of several
// events, one that links to each of theirs. What the call does has the span in its context. mask takes secrets out of
// errors; nil changes nothing. A nil Tracer returns sub itself.
//
// The result is a BatchSubscriber or a Pipeline where sub is one, and nothing else that sub may be.
func (t *Tracer) Wrap(sub subscriber.Subscriber, mask func(error) error) subscriber.Subscriber {
	if t == nil {
		return sub
	}
	if mask == nil {
		mask = func(err error) error { return err }
	}
	calls := traced{sub, t, mask}
	switch sub := sub.(type) {
	case subscriber.Pipeline:
		return tracedPipeline{calls, sub}
	case subscriber.BatchSubscriber:
		return tracedBatches{calls, sub}
	}
	return calls
}

// traced has a span for each call of Handle.
type traced struct {
	subscriber.Subscriber
	tracer *Tracer
	mask   func(error) error
}

// Handle implements subscriber.Subscriber.
func (s traced) Handle(ctx context.Context, d subscriber.Delivery) error {
	ctx, call := s.start(ctx, []subscriber.Delivery{d})
	defer call.endUnlessReturned()
	err := s.Subscriber.Handle(ctx, d)
	call.end(err)
	return err
}

// tracedBatches has a span for each call of HandleBatch as well.
type tracedBatches struct {
	traced
	batches subscriber.BatchSubscriber
}

// HandleBatch implements subscriber.BatchSubscriber.
func (s tracedBatches) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	ctx, call := s.start(ctx, deliveries)
	defer call.endUnlessReturned()
	err := s.batches.HandleBatch(ctx, deliveries)
	call.end(err)
	return err
}

// tracedPipeline has a span for each Send, until the last of its deliveries is reported.
type tracedPipeline struct {
	traced
	pipe subscriber.Pipeline
}

// Send implements subscriber.Pipeline.
func (s tracedPipeline) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	ctx, call := s.start(ctx, deliveries)
	if !call.span.IsRecording() {
		s.pipe.Send(ctx, deliveries, done)
		return
	}
	var open atomic.Int64
	open.Store(int64(len(deliveries)))
	sent := false
	defer func() {
		if !sent {
			call.endUnlessReturned()
		}
	}()
	s.pipe.Send(ctx, deliveries, func(i int, err error) {
		done(i, err) // it panics at a report that must not be
		call.noteEnd(err)
		if open.Add(-1) == 0 {
			call.endNoted()
		}
	})
	sent = true
}

// Abort implements subscriber.Pipeline.
func (s tracedPipeline) Abort(ctx context.Context) error { return s.pipe.Abort(ctx) }

// call is the span of one call of a subscriber.
type call struct {
	span  trace.Span
	mask  func(error) error
	count int

	mu     sync.Mutex
	failed int   // deliveries; guarded by mu
	first  error // of them; guarded by mu
	ended  bool  // guarded by mu
}

// start begins the span of a call.
func (s traced) start(ctx context.Context, deliveries []subscriber.Delivery) (context.Context, *call) {
	c := &call{span: trace.SpanFromContext(ctx), mask: s.mask, count: len(deliveries)}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	tracer := s.tracer.byParent
	if len(deliveries) == 1 {
		if parent := contextOf(deliveries[0].Event); parent.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
		}
	} else {
		links := linksOf(deliveries)
		of, made := s.tracer.tracerFor(links)
		if !made {
			return ctx, c
		}
		tracer = of
		options = append(options, trace.WithLinks(links...))
	}
	ctx, c.span = tracer.Start(ctx, "deliver "+s.Name(), options...)
	if c.span.IsRecording() {
		c.span.SetAttributes(s.describe(deliveries)...)
	}
	return ctx, c
}

func linksOf(deliveries []subscriber.Delivery) []trace.Link {
	var links []trace.Link
	for _, d := range deliveries {
		if span := contextOf(d.Event); span.IsValid() {
			links = append(links, trace.Link{SpanContext: span, Attributes: []attribute.KeyValue{messageID.String(d.ID)}})
		}
	}
	return links
}

func (s traced) describe(deliveries []subscriber.Delivery) []attribute.KeyValue {
	first := deliveries[0]
	facts := []attribute.KeyValue{
		system, deliverCall, processes, slotName.String(s.tracer.slot), subscription.String(s.Name()), term.Int64(first.Term),
	}
	if len(deliveries) > 1 {
		return append(facts, messageCount.Int(len(deliveries)))
	}
	facts = append(facts, destination.String(first.Source), messageID.String(first.ID), eventType.String(first.Type), attempt.Int(first.Attempt))
	if id := first.CorrelationID(); id != "" {
		facts = append(facts, conversationID.String(id))
	}
	if first.Owed {
		facts = append(facts, owed.Bool(true))
	}
	if first.Replay {
		facts = append(facts, replay.Bool(true))
	}
	return facts
}

// end ends the span of a call that has returned err.
func (c *call) end(err error) {
	var partial *subscriber.BatchError
	switch {
	case err == nil:
	case errors.As(err, &partial):
		for i := range c.count { // in order, so that the first error is the first event's
			if failed := partial.Failed[i]; failed != nil {
				c.noteEnd(failed)
			}
		}
	default:
		c.noteEnd(err)
		c.mu.Lock()
		c.failed = c.count
		c.mu.Unlock()
	}
	c.endNoted()
}

// noteEnd notes how one delivery has ended.
func (c *call) noteEnd(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed++
	if c.first == nil {
		c.first = err
	}
}

// endNoted ends the span with what was noted.
func (c *call) endNoted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked()
}

// endUnlessReturned ends the span of a call that panics. It does not recover, so the lane sees the stack of the handler.
func (c *call) endUnlessReturned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.failed, c.first = c.count, errors.New("the handler panicked")
		c.endLocked()
	}
}

func (c *call) endLocked() {
	if c.ended {
		return
	}
	c.ended = true
	if !c.span.IsRecording() {
		return
	}
	if c.first != nil {
		text := c.mask(c.first).Error()
		c.span.SetStatus(codes.Error, text[:min(len(text), maxText)])
		c.span.SetAttributes(failedCount.Int(c.failed))
	}
	c.span.End()
}
