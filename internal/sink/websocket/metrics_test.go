package websocket

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of a hub stand in docs/metrics.md with their kinds and labels, and nothing else does.
func TestMetrics_areThoseOfTheDocs(t *testing.T) {
	registry := prometheus.NewRegistry()
	newMetrics(registry, "players")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, family := range families {
		labels := []string{strings.ToLower(family.GetType().String())}
		for _, pair := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, pair.GetName())
		}
		slices.Sort(labels[1:])
		got[family.GetName()] = strings.Join(labels, " ")
	}
	docs, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(walpost_websocket_\\w+)` \\| (\\w+) \\| (.*?) \\|")
	for _, cells := range row.FindAllStringSubmatch(string(docs), -1) {
		labels := regexp.MustCompile(`\w+`).FindAllString(cells[3], -1)
		slices.Sort(labels)
		want[cells[1]] = strings.Join(append([]string{cells[2]}, labels...), " ")
	}
	if len(want) == 0 || !maps.Equal(got, want) {
		t.Errorf("the hub has %v, docs/metrics.md %v", got, want)
	}
}
