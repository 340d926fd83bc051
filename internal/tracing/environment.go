package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// Options are what a trace says of this process.
type Options struct {
	Version, Slot string
	Log           *slog.Logger
}

// FromEnvironment makes the Tracer that the OTEL_ variables ask for, or nil: it is off unless there is an endpoint, or
// OTEL_TRACES_EXPORTER is otlp. An error says which variable cannot be.
//
// What is not asked for here the libraries read by themselves: endpoint, headers, certificates, time-out, compression,
// sampler, resource attributes, limits. (OpenTelemetry, "Environment Variable Specification")
func FromEnvironment(ctx context.Context, o Options) (*Tracer, error) {
	on, err := asked()
	if !on || err != nil {
		return nil, err
	}
	exporter, err := exporterOf(ctx)
	if err != nil {
		return nil, err
	}
	say := rate.NewLimiter(rate.Limit(1.0/60), 3)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if say.Allow() {
			o.Log.Warn("traces are not sent; deliveries go on", "err", err)
		}
	}))
	described, err := resource.New(ctx, resource.WithAttributes(serviceName, serviceVersion(o.Version)), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		o.Log.Warn("the attributes of traces are not complete", "err", err)
	}
	limits := sdk.NewSpanLimits()
	if os.Getenv("OTEL_SPAN_LINK_COUNT_LIMIT") == "" {
		limits.LinkCountLimit = -1 // a call has no more events than a batch, and each its link
	}
	// Both send through one queue. What does not fit is dropped: a delivery never waits for it.
	queue := sdk.NewBatchSpanProcessor(exporter)
	common := []sdk.TracerProviderOption{sdk.WithSpanProcessor(queue), sdk.WithResource(described), sdk.WithRawSpanLimits(limits)}
	const scope = "github.com/backendstart/walpost"
	named := []trace.TracerOption{trace.WithInstrumentationVersion(o.Version), trace.WithSchemaURL(schemaURL)}
	o.Log.Info("traces are sent", "protocol", protocol())
	return &Tracer{
		slot:         o.Slot,
		byParent:     sdk.NewTracerProvider(common...).Tracer(scope, named...),
		always:       sdk.NewTracerProvider(append(common, sdk.WithSampler(sdk.AlwaysSample()))...).Tracer(scope, named...),
		ignoresFlags: ignoresFlags(os.Getenv("OTEL_TRACES_SAMPLER")),
		shutdown:     queue.Shutdown,
	}, nil
}

// asked reports whether traces are asked for.
func asked() (bool, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "otlp":
		return true, nil
	case "none":
		return false, nil
	case "":
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "", nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: walpost knows otlp and none", exporter)
	}
}

// protocol is how traces are sent.
func protocol() string {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if value := os.Getenv(name); value != "" {
			return value
		}
	}
	return "http/protobuf"
}

// exporterOf makes what sends. It connects to nothing yet.
func exporterOf(ctx context.Context) (*otlptrace.Exporter, error) {
	switch name := protocol(); name {
	case "http/protobuf":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: walpost knows http/protobuf and grpc", name)
	}
}

// ignoresFlags reports whether a sampler asks for no flag of a parent.
func ignoresFlags(sampler string) bool {
	sampler = strings.ToLower(strings.TrimSpace(sampler))
	return sampler != "" && !strings.HasPrefix(sampler, "parentbased_")
}
