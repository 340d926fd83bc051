// Package tracing makes OpenTelemetry spans of what the relay does with events and sends them by OTLP: calls of
// subscribers (subscriber.go), what is recorded, confirmed and repaired (relay.go). It never holds a delivery up, and what
// cannot be sent is dropped. Where it is off its Tracer is nil, and nothing of it runs: a subscriber is not even wrapped.
//
// Read environment.go for how it is turned on, then event.go for how an event belongs to a trace.
package tracing

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Tracer makes the spans of a relay. A nil one makes none, and costs nothing. It is safe for concurrent use.
type Tracer struct {
	slot string
	// byParent samples as OTEL_TRACES_SAMPLER says: what has a parent by the parent's flag, unless it says otherwise.
	byParent trace.Tracer
	// always samples everything. It is for spans without a parent and with links, of which sampledBy has decided.
	always trace.Tracer
	// ignoresFlags is set where OTEL_TRACES_SAMPLER does not ask for the flag of a parent.
	ignoresFlags bool
	shutdown     func(context.Context) error
	recorded     atomic.Pointer[recorded] // the last one that is not confirmed yet
}

// recorded is a position that was written down and not yet confirmed to the server.
type recorded struct {
	span    trace.SpanContext
	confirm uint64
	at      time.Time
}

// Close sends what has gathered, for as long as ctx lasts.
func (t *Tracer) Close(ctx context.Context) {
	if t != nil {
		_ = t.shutdown(ctx) // what could not be sent is dropped; the log has said why
	}
}

// tracerFor chooses the tracer for a span without a parent that links to others, and reports whether it is to be made.
// Where flags count, one of those events must be part of a trace that is sampled; of events that are part of none it is
// a span like any other.
func (t *Tracer) tracerFor(links []trace.Link) (trace.Tracer, bool) {
	if len(links) == 0 || t.ignoresFlags {
		return t.byParent, true
	}
	for _, link := range links {
		if link.SpanContext.IsSampled() {
			return t.always, true
		}
	}
	return nil, false
}
