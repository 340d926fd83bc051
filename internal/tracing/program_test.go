package tracing_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
	"github.com/backendstart/walpost/internal/testwait"
)

func TestMain(m *testing.M) { os.Exit(testprogram.Main(m)) }

// The whole way: a service writes events under its traces, and what the relay does with them is found in those traces, in
// the exemplars of its metrics and in its log.
func TestProgram_isSeenInTheTracesOfTheServiceThatWrote(t *testing.T) {
	db := testdb.New(t)
	var parents atomic.Pointer[string]
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Webhook-Id") == "failing" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		parent := r.Header.Get("Traceparent")
		parents.Store(&parent)
	}))
	defer hook.Close()
	folder := t.TempDir()
	config := filepath.Join(folder, "walpost.yaml")
	if err := os.WriteFile(config, []byte(`
sources: [{name: lessons, table: public.outbox}]
subscribers:
  - {name: billing, kind: webhook, url: "`+hook.URL+`", secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, allow_private: true, events: [single]}
  - {name: archive, kind: file, path: `+filepath.Join(folder, "archive.ndjson")+`, batch: 50, events: [many]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	r, endpoint := overHTTP(t)
	relay := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN, "OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint, "OTEL_BSP_SCHEDULE_DELAY=20"},
		"relay", "--slot="+db.Name, "--ops-listen=127.0.0.1:0", "--config="+config)
	ops := relay.AwaitStreaming()

	if got := r.await("the first start", "repair", func(span) bool { return true }); got.attributes["walpost.repair.kind"] != "create" || got.parent != "" {
		t.Errorf("the first start is %+v", got)
	}
	insert := func(id, kind string, n int) {
		db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, headers) VALUES ($1::text, $2, $1::text, '{}',
			jsonb_build_object('correlation_id', 'c-' || $1::text, 'traceparent', '00-' || $3::text || '-b7ad6b7169203331-01'))`, id, kind, traceOf(n))
	}
	insert("e1", "single", 1)
	call := r.await("the call", "deliver billing", func(s span) bool { return s.attributes["messaging.message.id"] == "e1" })
	if call.trace != traceOf(1) || call.parent != writer {
		t.Errorf("the call is %+v", call)
	}
	if got, want := *parents.Load(), "00-"+call.trace+"-"+call.id+"-01"; got != want {
		t.Errorf("the receiver is told the parent %s, want the call, %s", got, want)
	}
	record := r.await("its record", "record", func(s span) bool { return slices.Contains(s.links, traceOf(1)) })
	r.await("its confirm", "confirm", func(s span) bool { return s.trace == record.trace && s.parent == record.id })

	// Several events of one transaction are one call, as a rule.
	for round := 2; ; round++ {
		db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, headers) SELECT 'm' || $1::int || '-' || n, 'many', n::text, '{}',
			jsonb_build_object('traceparent', '00-' || $2::text || '-b7ad6b7169203331-01') FROM generate_series(1, 50) n`, round, traceOf(round))
		testprogram.AwaitPublished(t, db, 1e11)
		r.await("the last call", "record", func(s span) bool { return slices.Contains(s.links, traceOf(round)) })
		if slices.ContainsFunc(r.named("deliver archive"), func(s span) bool {
			return s.parent == "" && len(s.links) > 1 && strings.HasSuffix(s.attributes["messaging.batch.message_count"], fmt.Sprintf(":%d", len(s.links)))
		}) {
			break
		}
	}

	insert("failing", "single", 99)
	testwait.Eventually(t, "a line about the failing event", func() bool {
		return strings.Contains(relay.Output(), `"event":"failing","correlation_id":"c-failing"`)
	})

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/openmetrics-text")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	metrics, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	exemplar := `walpost_commit_to_ack_seconds_bucket{subscriber="billing",le="[^"]+"} 1 # {[^}]*trace_id="` + traceOf(1) + `"`
	if !regexp.MustCompile(exemplar).Match(metrics) {
		t.Errorf("no exemplar of the event: %s", regexp.MustCompile(`(?m)^walpost_commit_to_ack.*#.*$`).FindAll(metrics, -1))
	}
	relay.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resource["service.name"] != "walpost" || r.resource["service.version"] == "" {
		t.Errorf("resource %v", r.resource)
	}
}
