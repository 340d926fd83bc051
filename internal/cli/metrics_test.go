package cli

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// wantDocumented compares what a running demo shows with docs/metrics.md: name, type and labels.
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
