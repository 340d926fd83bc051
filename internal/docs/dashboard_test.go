package docs

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

const dashboardFile = "../../deploy/grafana/dashboards/walpost.json"

// classic is the form in which Grafana provisions a dashboard from a file, which deploy/grafana does.
type classic = dashboard.Dashboard //nolint:staticcheck // deprecated for a schema that older Grafanas do not read

// readDashboard reads the dashboard into Grafana's own types, as strictly as they allow.
func readDashboard(t *testing.T) classic {
	t.Helper()
	known := cog.NewRuntime() // a panel of a kind that is not named here is read less strictly, so there is none
	known.RegisterPanelcfgVariant(stat.VariantConfig())
	known.RegisterPanelcfgVariant(timeseries.VariantConfig())
	known.RegisterPanelcfgVariant(bargauge.VariantConfig())
	known.RegisterDataqueryVariant(prometheus.VariantConfig())
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d classic
	for _, err := range []error{d.UnmarshalJSONStrict(text), d.Validate()} {
		if err != nil && err.Error() != "" { // the library's list of errors, empty, is no nil
			t.Fatal(err)
		}
	}
	return d
}

// query is what a panel asks Prometheus.
type query struct{ panel, expr string }

// queriesOf reads what the panels ask, and each panel strictly: the library gives up on all panels of a dashboard together.
func queriesOf(t *testing.T) (queries []query) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []json.RawMessage }
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for _, raw := range d.Panels {
		var p struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			t.Fatal(err)
		}
		if p.Type == "row" {
			continue
		}
		if !slices.Contains([]string{"stat", "timeseries", "bargauge"}, p.Type) {
			t.Fatalf("a panel is a %s, which readDashboard does not register", p.Type)
		}
		var strict dashboard.Panel
		if err := strict.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
			t.Errorf("%s: %v", p.Title, err)
		}
		for _, target := range p.Targets {
			queries = append(queries, query{p.Title, target.Expr})
		}
	}
	if len(queries) < 40 {
		t.Fatalf("%d queries are found, which cannot be all", len(queries))
	}
	return queries
}

// A panel that asks for a metric no one has stays empty and looks like good news.
func TestDashboard_asksOnlyForMetricsThatExist(t *testing.T) {
	known := literals(t, regexp.MustCompile(`"(walpost_[a-z_]+)"`))
	for _, q := range queriesOf(t) {
		for _, name := range regexp.MustCompile(`walpost_[a-z_]+`).FindAllString(q.expr, -1) {
			if !known[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s asks for %s, which nothing registers", q.panel, name)
			}
		}
	}
}

// Several relays have the same figures of the slot, and one of them has those of the leadership: each query takes one slot,
// and over its relays the max of the former and the sum of the rest.
func TestDashboard_isRightWithSeveralRelays(t *testing.T) {
	d := readDashboard(t)
	selector := regexp.MustCompile(`(walpost_[a-z_]+|ALERTS|up)(\{[^}]*\})?`)
	for _, q := range queriesOf(t) {
		if !regexp.MustCompile(`^(sum|max|min|count|histogram_quantile)\b`).MatchString(q.expr) {
			t.Errorf("%s shows each relay by itself: %s", q.panel, q.expr)
		}
		for _, found := range selector.FindAllStringSubmatch(q.expr, -1) {
			if !strings.Contains(found[2], `job="$job"`) {
				t.Errorf("%s takes the relays of all slots: %s", q.panel, q.expr)
			}
			// The least time is the one to look at: relays that have seen less of the past say more.
			of := map[bool]string{true: "min(", false: "max"}[found[1] == "walpost_slot_seconds_until_lost"]
			if strings.HasPrefix(found[1], "walpost_slot_") && !strings.HasPrefix(q.expr, of) {
				t.Errorf("%s is not the %s over the relays: %s", q.panel, of, q.expr)
			}
		}
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
	}
	if !slices.Equal(names, []string{"job", "subscriber"}) {
		t.Errorf("variables %q", names)
	}
}

// The rules take the max of the slot's figures, too.
func TestAlerts_areRightWithSeveralRelays(t *testing.T) {
	alerts, _ := alertRules(t)
	for _, a := range alerts {
		for _, found := range regexp.MustCompile(`([a-z]+) by \([a-z, ]+\) \((walpost_(?:unread_)?slot_[a-z_]+)|\b(walpost_(?:unread_)?slot_[a-z_]+)`).FindAllStringSubmatch(a.Expr, -1) {
			want := map[bool]string{true: "min", false: "max"}[found[2] == "walpost_slot_seconds_until_lost"]
			if found[1] != want {
				t.Errorf("%s does not take the %s over the relays: %s", a.Alert, want, a.Expr)
			}
		}
	}
}

// Panels that lie over each other hide each other.
func TestDashboard_hasNoPanelOverAnother(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s has the id %d of another one, or is too wide", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s lies over %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}
