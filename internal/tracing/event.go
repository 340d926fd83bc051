package tracing

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/backendstart/walpost/internal/event"
)

// stored reads the headers of an event as a carrier of trace context: traceparent and tracestate, as the service that
// wrote the event has stored them. (W3C, "Trace Context")
type stored struct{ *event.Event }

func (s stored) Get(name string) string { return s.Header(name) }
func (stored) Set(string, string)       {} // an event is never changed
func (stored) Keys() []string           { return nil }

// contextOf is the span under which the event was written; it is not valid where there is none.
func contextOf(ev *event.Event) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), stored{ev})
	return trace.SpanContextFromContext(ctx)
}

// Exemplars returns what makes the labels by which a figure leads to the trace of an event: nil where the event is part
// of no trace that is sampled. A nil Tracer returns nil.
func (t *Tracer) Exemplars() func(ev *event.Event) prometheus.Labels {
	if t == nil {
		return nil
	}
	return exemplar
}

func exemplar(ev *event.Event) prometheus.Labels {
	span := contextOf(ev)
	if !span.IsSampled() {
		return nil
	}
	return prometheus.Labels{"trace_id": span.TraceID().String(), "span_id": span.SpanID().String()}
}
