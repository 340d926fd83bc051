package docs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const rulesFile = "../../deploy/prometheus/walpost.rules.yml"

// rule is an alert, or a figure that is recorded.
type rule struct {
	Alert, Record, Expr, For string
	Labels, Annotations      map[string]string
}

func alertRules(t *testing.T) (alerts, records []rule) {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if r.Alert != "" {
				alerts = append(alerts, r)
			} else {
				records = append(records, r)
			}
		}
	}
	if len(alerts) == 0 || len(records) == 0 {
		t.Fatalf("%d alerts and %d recorded figures in %s", len(alerts), len(records), rulesFile)
	}
	return alerts, records
}

// A person woken by an alert follows its link: the runbook has that heading.
func TestAlerts_leadToTheRunbook(t *testing.T) {
	runbook, err := os.ReadFile("../../docs/RUNBOOK.md")
	if err != nil {
		t.Fatal(err)
	}
	var anchors []string
	for _, h := range regexp.MustCompile(`(?m)^##+ (.+)$`).FindAllStringSubmatch(string(runbook), -1) {
		anchors = append(anchors, strings.ReplaceAll(strings.ToLower(h[1]), " ", "-"))
	}
	alerts, _ := alertRules(t)
	for _, a := range alerts {
		page, anchor, _ := strings.Cut(a.Annotations["runbook"], "#")
		if page != "docs/RUNBOOK.md" || !slices.Contains(anchors, anchor) {
			t.Errorf("%s leads to %q, which is no heading of docs/RUNBOOK.md", a.Alert, a.Annotations["runbook"])
		}
		if !slices.Contains([]string{"page", "ticket"}, a.Labels["severity"]) || a.Annotations["summary"] == "" {
			t.Errorf("%s has severity %q and summary %q", a.Alert, a.Labels["severity"], a.Annotations["summary"])
		}
		if !strings.Contains(string(runbook), "`"+a.Alert+"`") {
			t.Errorf("docs/RUNBOOK.md does not name %s", a.Alert)
		}
	}
}

// An alert over a metric that does not exist never fires.
func TestAlerts_askForMetricsThatExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	alerts, records := alertRules(t)
	suffix := regexp.MustCompile(`_(bucket|count|sum)$`)
	for _, r := range slices.Concat(alerts, records) {
		for _, name := range regexp.MustCompile(`\bwalpost_[a-z0-9_]+`).FindAllString(r.Expr, -1) {
			if !strings.Contains(string(page), "| `"+suffix.ReplaceAllString(name, "")+"` |") {
				t.Errorf("%s%s asks for %s, which docs/metrics.md does not have", r.Alert, r.Record, name)
			}
		}
		for _, name := range regexp.MustCompile(`\bwalpost:[a-z0-9_:]+`).FindAllString(r.Expr, -1) {
			if !slices.ContainsFunc(records, func(other rule) bool { return other.Record == name }) {
				t.Errorf("%s%s asks for %s, which is not recorded", r.Alert, r.Record, name)
			}
		}
	}
}
