package cli

import (
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// wantDocumented compares what a running demo shows with docs/metrics.md: name, type and labels. promlint has nothing to
// say about it.
func wantDocumented(t *testing.T, scraped string) {
	t.Helper()
	docs, err := os.ReadFile(docsMetrics)
	if err != nil {
		t.Fatal(err)
	}
	// The one metric of a setting that a demo does not have; package httpapi has its test.
	const ofJWKS = "walpost_jwks_failures_total"
	// One that no demo shows: it has no second slot. Package relay has its test.
	const ofOthers = "walpost_unread_slot_retained_bytes"
	// Those of a hub, which a demo does not have. Package websocket has their test.
	const ofHubs = "walpost_websocket_"
	type metric struct{ kind, labels string }
	documented := map[string]metric{}
	row := regexp.MustCompile("(?m)^\\| `(walpost_\\w+)` \\| (\\w+) \\| (.*?)\\|")
	for _, cells := range row.FindAllStringSubmatch(string(docs), -1) {
		labels := regexp.MustCompile(`\w+`).FindAllString(cells[3], -1)
		slices.Sort(labels)
		documented[cells[1]] = metric{cells[2], strings.Join(labels, " ")}
	}
	lint, err := promlint.New(strings.NewReader(scraped)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range lint {
		if strings.HasPrefix(problem.Metric, "walpost_") { // the others are not ours to name
			t.Errorf("promlint: %s: %s", problem.Metric, problem.Text)
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(scraped))
	if err != nil {
		t.Fatal(err)
	}
	for name, family := range families {
		if !strings.HasPrefix(name, "walpost_") {
			continue
		}
		var labels []string
		for _, pair := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, pair.GetName())
		}
		slices.Sort(labels)
		shown := metric{strings.ToLower(family.GetType().String()), strings.Join(labels, " ")}
		if got, ok := documented[name]; !ok || got != shown {
			t.Errorf("docs/metrics.md has %+v for %s, want %+v", got, name, shown)
		}
	}
	for name := range documented {
		if families[name] == nil && name != ofJWKS && name != ofOthers && !strings.HasPrefix(name, ofHubs) {
			t.Errorf("docs/metrics.md has %s, which a running demo does not show", name)
		}
	}
}

// wantNative checks that histograms are native ones for a Prometheus that asks for them, next to the classic ones.
func wantNative(t *testing.T, url string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	decoder := expfmt.NewDecoder(response.Body, expfmt.ResponseFormat(response.Header))
	seen := 0
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if family.GetType() != dto.MetricType_HISTOGRAM || !strings.HasPrefix(family.GetName(), "walpost_") {
			continue
		}
		seen++
		for _, m := range family.GetMetric() {
			h := m.GetHistogram()
			if counted := h.GetSampleCount() > 0; h.Schema == nil || counted && len(h.GetPositiveSpan()) == 0 || len(h.GetBucket()) == 0 {
				t.Errorf("%s %v is not both native and classic: %v", family.GetName(), m.GetLabel(), h)
			}
		}
	}
	if seen == 0 {
		t.Error("no histogram is shown")
	}
}
