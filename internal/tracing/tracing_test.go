package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testwait"
	"github.com/backendstart/walpost/internal/tracing"
)

const (
	writer  = "b7ad6b7169203331" // the span under which events are written
	sampled = "01"
	not     = "00"
)

// traceOf is a trace id.
func traceOf(n int) string { return fmt.Sprintf("0af7651916cd43dd8448eb211c80%04x", n) }

// delivery is one of an event that was written under a trace.
func delivery(n int, flags string) subscriber.Delivery {
	return subscriber.Delivery{Attempt: 2, Term: 7, Event: &event.Event{
		ID: fmt.Sprintf("e%d", n), Source: "lessons", Type: "lesson.completed",
		Headers: fmt.Appendf(nil, `{"correlation_id": "c-%d", "traceparent": "00-%s-%s-%s"}`, n, traceOf(n), writer, flags),
	}}
}

func untraced(n int) subscriber.Delivery {
	d := delivery(n, sampled)
	d.Headers = nil
	return d
}

// mail is a subscriber of any shape.
type mail struct {
	handle func(ctx context.Context, deliveries []subscriber.Delivery) error
}

func (mail) Name() string      { return "mail" }
func (mail) Wants(string) bool { return true }
func (m mail) Handle(ctx context.Context, d subscriber.Delivery) error {
	return m.handle(ctx, []subscriber.Delivery{d})
}

type mailBatches struct{ mail }

func (m mailBatches) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	return m.handle(ctx, deliveries)
}

// mailPipe reports in reverse order, from another goroutine, the first as failed.
type mailPipe struct{ mail }

func (mailPipe) Send(_ context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	go func() {
		for i := len(deliveries) - 1; i >= 0; i-- {
			if i == 0 {
				done(i, errors.New("no leader"))
			} else {
				done(i, nil)
			}
		}
	}()
}

func (mailPipe) Abort(context.Context) error { return nil }

func takes(context.Context, []subscriber.Delivery) error { return nil }

// start makes a tracer that sends to endpoint soon.
func start(t *testing.T, endpoint string, env ...string) *tracing.Tracer {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	tracer, err := tracing.FromEnvironment(t.Context(), tracing.Options{Version: "1.2.3", Slot: "walpost", Log: slog.New(slog.DiscardHandler)})
	if err != nil || tracer == nil {
		t.Fatalf("tracer %v, %v", tracer, err)
	}
	t.Cleanup(func() { tracer.Close(context.Background()) })
	return tracer
}

// S-442: what the status has of an error is without secrets.
func TestTracer_makesTheCallWithOneEventAChildOfItsWriter(t *testing.T) {
	for name, over := range map[string]func(*testing.T) (*receiver, string){"http/protobuf": overHTTP, "grpc": overGRPC} {
		t.Run(name, func(t *testing.T) {
			r, endpoint := over(t)
			tracer := start(t, endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL="+name, "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test")
			var inside trace.SpanContext
			sub := tracer.Wrap(mail{func(ctx context.Context, _ []subscriber.Delivery) error {
				inside = trace.SpanContextFromContext(ctx)
				return errors.New("the password hunter2 is refused")
			}}, func(err error) error { return errors.New(strings.ReplaceAll(err.Error(), "hunter2", "***")) })
			if err := sub.Handle(t.Context(), delivery(1, sampled)); err == nil || !strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the lane is told %v", err)
			}
			got := r.await("the span", "deliver mail", func(span) bool { return true })
			if got.trace != traceOf(1) || got.parent != writer || got.id != inside.SpanID().String() || got.kind != traces.Span_SPAN_KIND_CONSUMER {
				t.Errorf("span %+v, in the handler %v", got, inside)
			}
			if got.status.GetCode() != traces.Status_STATUS_CODE_ERROR || got.status.GetMessage() != "the password *** is refused" {
				t.Errorf("status %v", got.status)
			}
			for key, want := range map[string]string{
				"messaging.system": "walpost", "messaging.operation.name": "deliver", "messaging.operation.type": "process",
				"messaging.destination.name": "lessons", "messaging.destination.subscription.name": "mail",
				"messaging.message.id": "e1", "messaging.message.conversation_id": "c-1", "walpost.event.type": "lesson.completed",
				"walpost.slot": "walpost", "walpost.attempt": "int_value:2", "walpost.term": "int_value:7",
			} {
				if value := strings.ReplaceAll(got.attributes[key], " ", ""); value != want {
					t.Errorf("%s is %q, want %q", key, value, want)
				}
			}
			if r.resource["service.name"] != "walpost" || r.resource["service.version"] != "1.2.3" || r.resource["deployment.environment.name"] != "test" {
				t.Errorf("resource %v", r.resource)
			}
		})
	}
}

// S-443
func TestTracer_linksACallWithSeveralEventsToEachWriter(t *testing.T) {
	r, endpoint := overHTTP(t)
	tracer := start(t, endpoint)
	const events = 500 // more than the library's own limit of links
	var batch []subscriber.Delivery
	for n := range events {
		batch = append(batch, delivery(n, sampled))
	}
	sub := tracer.Wrap(mailBatches{mail{func(_ context.Context, deliveries []subscriber.Delivery) error {
		return &subscriber.BatchError{Failed: map[int]error{3: errors.New("no such user"), 9: subscriber.ErrHeld}}
	}}}, nil)
	var partial *subscriber.BatchError
	if err := sub.(subscriber.BatchSubscriber).HandleBatch(t.Context(), batch); !errors.As(err, &partial) || len(partial.Failed) != 2 {
		t.Errorf("the lane is told %v", err)
	}
	got := r.await("the span", "deliver mail", func(span) bool { return true })
	if got.parent != "" || len(got.links) != events || got.links[0] != traceOf(0) || got.links[events-1] != traceOf(events-1) {
		t.Errorf("parent %q, %d links", got.parent, len(got.links))
	}
	if got.status.GetMessage() != "no such user" || !strings.HasSuffix(got.attributes["walpost.failed"], ":2") ||
		!strings.HasSuffix(got.attributes["messaging.batch.message_count"], ":500") {
		t.Errorf("status %v, attributes %v", got.status, got.attributes)
	}
}

func TestTracer_endsTheSpanOfAPipelineWithItsLastReport(t *testing.T) {
	r, endpoint := overHTTP(t)
	sub := start(t, endpoint).Wrap(mailPipe{mail{takes}}, nil)
	reports := make(chan int, 3)
	batch := []subscriber.Delivery{delivery(1, sampled), untraced(2), delivery(3, not)}
	sub.(subscriber.Pipeline).Send(t.Context(), batch, func(i int, _ error) { reports <- i })
	got := r.await("the span", "deliver mail", func(span) bool { return true })
	if len(reports) != 3 || len(got.links) != 2 || got.status.GetMessage() != "no leader" {
		t.Errorf("%d reports, span %+v", len(reports), got)
	}
}

func TestTracer_samplesByTheStoredFlag(t *testing.T) {
	for sampler, want := range map[string]string{
		"":                       "sampled root linked",
		"parentbased_always_off": "sampled linked",
		"always_on":              "sampled not root linked unlinked",
		"always_off":             "",
	} {
		t.Run("sampler "+sampler, func(t *testing.T) {
			r, endpoint := overHTTP(t)
			tracer := start(t, endpoint, "OTEL_TRACES_SAMPLER="+sampler)
			call := func(name string, deliveries ...subscriber.Delivery) {
				sub := tracer.Wrap(mailBatches{mail{func(ctx context.Context, _ []subscriber.Delivery) error {
					trace.SpanFromContext(ctx).SetName(name)
					return nil
				}}}, nil)
				if len(deliveries) == 1 {
					_ = sub.Handle(t.Context(), deliveries[0])
				} else {
					_ = sub.(subscriber.BatchSubscriber).HandleBatch(t.Context(), deliveries)
				}
			}
			call("sampled", delivery(1, sampled))
			call("not", delivery(2, not))
			call("root", untraced(3))
			call("linked", delivery(4, not), untraced(5), delivery(6, sampled))
			call("unlinked", delivery(7, not), untraced(8))
			tracer.Close(t.Context()) // sends what there is
			var got []string
			for _, name := range []string{"sampled", "not", "root", "linked", "unlinked"} {
				if len(r.named(name)) == 1 {
					got = append(got, name)
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("spans of %q, want %q", got, want)
			}
		})
	}
}

func TestTracer_endsTheSpanOfAHandlerThatPanics(t *testing.T) {
	r, endpoint := overHTTP(t)
	sub := start(t, endpoint).Wrap(mail{func(context.Context, []subscriber.Delivery) error { panic("no such thing") }}, nil)
	func() {
		defer func() {
			if p := recover(); p != "no such thing" {
				t.Errorf("the lane recovers %v", p)
			}
		}()
		_ = sub.Handle(t.Context(), delivery(1, sampled))
	}()
	if got := r.await("the span", "deliver mail", func(span) bool { return true }); got.status.GetMessage() != "the handler panicked" {
		t.Errorf("status %v", got.status)
	}
}

func TestTracer_confirmsBelowTheRecord(t *testing.T) {
	r, endpoint := overHTTP(t)
	tracer := start(t, endpoint)
	entry := func(d subscriber.Delivery) *ack.Entry { return &ack.Entry{Event: d.Event} }
	tracer.Record(t.Context(), []*ack.Entry{entry(delivery(1, not)), entry(untraced(2))}, 100).EndRecord(nil)
	tracer.Confirmed(100) // nothing of it is traced
	tracer.Record(t.Context(), []*ack.Entry{entry(delivery(3, sampled)), entry(delivery(4, not))}, 200).EndRecord(errors.New("no marks today"))
	tracer.Confirmed(200) // it was not recorded
	tracer.Record(t.Context(), []*ack.Entry{entry(delivery(5, sampled))}, 300).EndRecord(nil)
	tracer.Confirmed(250)
	tracer.Confirmed(300)
	tracer.Confirmed(400)
	tracer.Close(t.Context())
	records, confirms := r.named("record"), r.named("confirm")
	if len(records) != 2 || !slices.Equal(records[0].links, []string{traceOf(3)}) || records[0].status.GetMessage() != "no marks today" ||
		!slices.Equal(records[1].links, []string{traceOf(5)}) || records[1].parent != "" {
		t.Errorf("records %+v", records)
	}
	if len(confirms) != 1 || confirms[0].parent != records[1].id || confirms[0].attributes["walpost.confirmed_lsn"] != "0/12C" {
		t.Errorf("confirms %+v", confirms)
	}
}

func TestFromEnvironment_isOffUnlessItIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want string // "on", "off", or in the error
	}{
		{nil, "off"},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, "on"},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1/v1/traces"}, "on"},
		{[]string{"OTEL_TRACES_EXPORTER=otlp"}, "on"},
		{[]string{"OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, "off"},
		{[]string{"OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=otlp"}, "off"},
		{[]string{"OTEL_TRACES_EXPORTER=jaeger"}, `OTEL_TRACES_EXPORTER is "jaeger"`},
		{[]string{"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}, `OTEL_EXPORTER_OTLP_PROTOCOL is "http/json"`},
	} {
		t.Run(strings.Join(c.env, " "), func(t *testing.T) {
			for _, pair := range c.env {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			tracer, err := tracing.FromEnvironment(t.Context(), tracing.Options{Log: slog.New(slog.DiscardHandler)})
			got := "off"
			switch {
			case err != nil:
				got = err.Error()
			case tracer != nil:
				got = "on"
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				tracer.Close(ctx)
			}
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("%v: %s, want %s", c.env, got, c.want)
			}
		})
	}
}

// lines is a log that several goroutines write.
type lines struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// S-441: a collector that is away or hangs costs no delivery and no stop anything, and is said once.
func TestTracer_neverHoldsADeliveryUp(t *testing.T) {
	hangs := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hangs }))
	defer server.Close()
	defer close(hangs)
	for name, endpoint := range map[string]string{"away": "http://127.0.0.1:1", "hanging": server.URL} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
			t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
			t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
			t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
			said := &lines{}
			tracer, err := tracing.FromEnvironment(t.Context(), tracing.Options{Log: slog.New(slog.NewTextHandler(said, nil))})
			if err != nil {
				t.Fatal(err)
			}
			sub := tracer.Wrap(mail{takes}, nil)
			begin := time.Now()
			for n := range 10_000 { // far more than there is room for
				_ = sub.Handle(t.Context(), delivery(n, sampled))
			}
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("10,000 calls took %v", took)
			}
			testwait.Eventually(t, "a line of the log", func() bool { return strings.Contains(said.String(), "traces are not sent") })
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			begin = time.Now()
			tracer.Close(ctx)
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("the close took %v", took)
			}
		})
	}
}

// Without tracing a subscriber is handed over to as it is, and no step of the relay costs a byte.
func TestTracer_costsNothingWhenItIsOff(t *testing.T) {
	var off *tracing.Tracer
	for _, sub := range []subscriber.Subscriber{&mail{takes}, &mailBatches{mail{takes}}, &mailPipe{mail{takes}}} {
		if got := off.Wrap(sub, nil); got != sub {
			t.Errorf("%T becomes %T", sub, got)
		}
	}
	if off.Exemplars() != nil {
		t.Error("exemplars are looked for")
	}
	if got := testing.AllocsPerRun(1000, func() { stepsOf(off, finished, t.Context()) }); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}

var finished = []*ack.Entry{{Event: delivery(1, sampled).Event}}

// stepsOf is what a relay asks of a tracer between a call and the confirm.
func stepsOf(tracer *tracing.Tracer, finished []*ack.Entry, ctx context.Context) { //nolint:revive // the tracer is what it is about
	step := tracer.Record(ctx, finished, 100)
	step.EndRecord(nil)
	tracer.Confirmed(100)
	repair := tracer.Repair(ctx, "again", "the slot is lost")
	repair.EndRepair(1, nil)
}

// BenchmarkTracer is what tracing adds to a call with one event and to a record, off and on.
func BenchmarkTracer(b *testing.B) {
	d := delivery(1, sampled)
	run := func(tracer *tracing.Tracer) func(*testing.B) {
		return func(b *testing.B) {
			sub := tracer.Wrap(&mail{takes}, nil)
			b.ReportAllocs()
			for b.Loop() {
				_ = sub.Handle(b.Context(), d)
				stepsOf(tracer, finished, b.Context())
			}
		}
	}
	b.Run("off", run(nil))
	for name, sampler := range map[string]string{"on, not sampled": "always_off", "on, sampled": "always_on"} {
		b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
		b.Setenv("OTEL_TRACES_SAMPLER", sampler)
		tracer, err := tracing.FromEnvironment(b.Context(), tracing.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, run(tracer))
	}
}
