package tracing_test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/backendstart/walpost/internal/testwait"
)

// receiver takes traces by OTLP, over HTTP and gRPC, as a collector does.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	t *testing.T

	mu       sync.Mutex
	spans    []span            // guarded by mu
	resource map[string]string // of the last ones; guarded by mu
}

// span is what a test looks at.
type span struct {
	name, trace, id, parent string
	kind                    traces.Span_SpanKind
	status                  *traces.Status
	attributes              map[string]string
	links                   []string // trace ids
}

// Export implements the service of OTLP.
func (r *receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range request.ResourceSpans {
		r.resource = attributesOf(of.Resource.Attributes)
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				got := span{s.Name, hex.EncodeToString(s.TraceId), hex.EncodeToString(s.SpanId), hex.EncodeToString(s.ParentSpanId),
					s.Kind, s.Status, attributesOf(s.Attributes), nil}
				for _, link := range s.Links {
					got.links = append(got.links, hex.EncodeToString(link.TraceId))
				}
				r.spans = append(r.spans, got)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func attributesOf(pairs []*common.KeyValue) map[string]string {
	values := map[string]string{}
	for _, pair := range pairs {
		switch v := pair.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			values[pair.Key] = v.StringValue
		default:
			values[pair.Key] = pair.Value.String()
		}
	}
	return values
}

// named are the spans of a name that have arrived.
func (r *receiver) named(name string) []span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.spans), func(s span) bool { return s.name != name })
}

// await waits for spans of a name that fit, and returns the first.
func (r *receiver) await(what, name string, fits func(span) bool) span {
	r.t.Helper()
	var found span
	testwait.Eventually(r.t, what, func() bool {
		for _, s := range r.named(name) {
			if fits(s) {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

func overHTTP(t *testing.T) (r *receiver, endpoint string) {
	r = &receiver{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body := io.Reader(request.Body)
		if request.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(body)
			if err != nil {
				t.Error(err)
				return
			}
			body = unzipped
		}
		message, err := io.ReadAll(body)
		if err != nil || request.URL.Path != "/v1/traces" || request.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %s %v", request.URL, request.Header, err)
			return
		}
		var sent collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(message, &sent); err != nil {
			t.Error(err)
			return
		}
		answer, _ := r.Export(request.Context(), &sent)
		encoded, _ := proto.Marshal(answer)
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(encoded)
	}))
	t.Cleanup(server.Close)
	return r, server.URL
}

func overGRPC(t *testing.T) (r *receiver, endpoint string) {
	r = &receiver{t: t}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	return r, "http://" + listener.Addr().String()
}
