package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
)

// maxRecordLinks bounds the links of what is recorded: a window of events can be recorded at once.
const maxRecordLinks = 128

// Step is something that the relay does. The zero one is of a Tracer that is off.
type Step struct {
	tracer  *Tracer
	span    trace.Span // nil: none was made
	confirm event.LSN  // of a record
}

// Record begins the span of writing down what is finished, with links to the traces of up to 128 events. Its caller ends
// it with EndRecord.
func (t *Tracer) Record(ctx context.Context, finished []*ack.Entry, confirm event.LSN) Step {
	if t == nil || len(finished) == 0 {
		return Step{}
	}
	var links []trace.Link
	for _, entry := range finished {
		if span := contextOf(entry.Event); span.IsSampled() || span.IsValid() && t.ignoresFlags {
			links = append(links, trace.Link{SpanContext: span, Attributes: []attribute.KeyValue{messageID.String(entry.Event.ID)}})
			if len(links) == maxRecordLinks {
				break
			}
		}
	}
	if len(links) == 0 {
		return Step{} // not a word of events that are not traced, 20 times a second
	}
	tracer, _ := t.tracerFor(links)
	_, span := tracer.Start(ctx, "record", trace.WithLinks(links...), trace.WithAttributes(
		system, recordCall, settles, slotName.String(t.slot), messageCount.Int(len(finished)), confirmedLSN.String(confirm.String())))
	return Step{t, span, confirm}
}

// EndRecord ends it. What was written down can be confirmed from now on.
func (s Step) EndRecord(err error) {
	if s.span == nil {
		return
	}
	s.end(err)
	if err == nil {
		s.tracer.recorded.Store(&recorded{s.span.SpanContext(), uint64(s.confirm), time.Now()})
	}
}

// Confirmed makes the span of a confirm, below that of the last record that it covers: it begins when that was written,
// and ends now that the server was told.
func (t *Tracer) Confirmed(upTo event.LSN) {
	if t == nil {
		return
	}
	last := t.recorded.Load()
	if last == nil || uint64(upTo) < last.confirm || !t.recorded.CompareAndSwap(last, nil) {
		return
	}
	ctx := trace.ContextWithSpanContext(context.Background(), last.span)
	if !last.span.IsSampled() {
		return
	}
	_, span := t.byParent.Start(ctx, "confirm", trace.WithTimestamp(last.at), trace.WithAttributes(
		system, confirmCall, settles, slotName.String(t.slot), confirmedLSN.String(upTo.String())))
	span.End()
}

// Repair begins the span of making or repairing the slot. Its caller ends it with EndRepair.
func (t *Tracer) Repair(ctx context.Context, kind, reason string) Step {
	if t == nil {
		return Step{}
	}
	_, span := t.byParent.Start(ctx, "repair", trace.WithAttributes(
		system, slotName.String(t.slot), repairKind.String(kind), repairReason.String(reason)))
	return Step{tracer: t, span: span}
}

// EndRepair ends it; rows are those that were recorded as owed.
func (s Step) EndRepair(rows int64, err error) {
	if s.span == nil {
		return
	}
	s.span.SetAttributes(repairRows.Int64(rows))
	s.end(err)
}

func (s Step) end(err error) {
	if err != nil {
		text := err.Error()
		s.span.SetStatus(codes.Error, text[:min(len(text), maxText)])
	}
	s.span.End()
}
