//go:build outside

package docs

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// values are series of two relays, a and b, by name and labels, in promtool's notation, one value every 30 s.
type values map[string]string

// healthy is a leader and its standby with one subscriber, for 40 minutes.
func healthy() values {
	return values{
		`up{instance="a"}`: "1x80", `up{instance="b"}`: "1x80",
		`walpost_build_info{instance="a"}`: "1x80", `walpost_build_info{instance="b"}`: "1x80",
		`walpost_leader{instance="a"}`: "1x80", `walpost_leader{instance="b"}`: "0x80",
		`walpost_term{instance="a"}`: "7x80", `walpost_term{instance="b"}`: "0x80",
		`walpost_slot_present{instance="a"}`: "1x80", `walpost_slot_present{instance="b"}`: "1x80",
		`walpost_slot_seconds_until_lost{instance="a"}`: "1e15x80", `walpost_slot_seconds_until_lost{instance="b"}`: "1e15x80",
		`walpost_slot_retained_bytes{instance="a"}`: "50e6x80", `walpost_slot_retained_bytes{instance="b"}`: "50e6x80",
		`walpost_slot_catalog_xmin_age{instance="a"}`: "1000x80",
		`walpost_wal_budget_bytes{instance="a"}`:      "10e9x80",
		`walpost_stuck{instance="a"}`:                 "0x80", `walpost_stuck{instance="b"}`: "0x80",
		`walpost_stream_silent_seconds{instance="a"}`:                                  "0x80",
		`walpost_open_events{instance="a",subscriber="mail"}`:                          "3x80",
		`walpost_deliveries_total{instance="a",outcome="delivered",subscriber="mail"}`: "0+300x80",
		`walpost_deliveries_total{instance="a",outcome="dead",subscriber="mail"}`:      "0x80",
		`walpost_deliveries_total{instance="a",outcome="failed",subscriber="mail"}`:    "0x80",
		lateBucket: "0+300x80",
		lateCount:  "0+300x80",
		received:   "0+300x80",
		`walpost_owed{instance="a",state="waiting",subscriber="mail"}`: "0x80",
		`walpost_owed{instance="a",state="dead",subscriber="mail"}`:    "0x80",
		`walpost_breaker_open{instance="a",subscriber="mail"}`:         "0x80",
		`walpost_record_errors_total{instance="a"}`:                    "0x80", `walpost_record_errors_total{instance="b"}`: "0x80",
		`walpost_repairs_total{instance="a",kind="again"}`:      "0x80",
		`walpost_marked_elsewhere_total{instance="a"}`:          "0x80",
		`walpost_doctor_findings{instance="a",level="problem"}`: "0x80",
	}
}

const (
	lateBucket = `walpost_commit_to_ack_seconds_bucket{instance="a",le="4.096",subscriber="mail"}`
	lateCount  = `walpost_commit_to_ack_seconds_count{instance="a",subscriber="mail"}`
	received   = `walpost_events_received_total{instance="a",source="lessons"}`

	toMail = `subscriber="mail"`

	// A week has twelve hours here. promtool's storage moves what it has of more than 36 hours into blocks, next to the
	// evaluation, and a rule that is evaluated while it does that can miss samples (seen four times in 24 runs on a busy
	// machine, as WalpostSilence that did not fire).
	week  = 12 * 60      // minutes
	weeks = 2 * week / 5 // values every five minutes
)

// S-444, S-445, S-448, S-449: TestOutside_AlertsFireForTheirFaultAlone gives promtool each fault, on the ground of a
// healthy pair of relays, and asks for all alerts that fire.
func TestOutside_AlertsFireForTheirFaultAlone(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("promtool is needed (Debian's package prometheus): %v", err)
	}
	rules := filepath.Join(t.TempDir(), "walpost.rules.yml")
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	short := strings.ReplaceAll(string(text), "offset 1w", fmt.Sprintf("offset %dm", week))
	if strings.Contains(short, "1w") || strings.Contains(short, "[7d]") {
		t.Fatalf("a rule of %s looks back a week in words that are new to this test", rulesFile)
	}
	if err := os.WriteFile(rules, []byte(short), 0o600); err != nil {
		t.Fatal(err)
	}
	var file, ofWeeks strings.Builder
	fmt.Fprintf(&file, "rule_files: [%s]\nevaluation_interval: 30s\ntests:\n", rules)
	fmt.Fprintf(&ofWeeks, "rule_files: [%s]\nevaluation_interval: 5m\ntests:\n", rules)
	severity := map[string]string{}
	alerts, _ := alertRules(t)
	for _, a := range alerts {
		severity[a.Alert] = a.Labels["severity"]
	}
	fired := map[string]bool{}
	for _, c := range []struct {
		name   string
		change values // of healthy
		only   bool   // these series and no others
		at     int    // minutes; 0 is 39
		want   string // the alert, "" for none
		labels string // of it
	}{
		{name: "all is well"},
		{name: "the calls of a subscriber hang", want: "WalpostNothingFinishes", labels: toMail, change: values{
			`walpost_deliveries_total{instance="a",outcome="delivered",subscriber="mail"}`: "0+300x20 6000x60",
			lateBucket: "0+300x20 6000x60", lateCount: "0+300x20 6000x60"}},
		{name: "a dead letter is an end as well", want: "WalpostDeadLetters", labels: toMail, change: values{
			`walpost_deliveries_total{instance="a",outcome="delivered",subscriber="mail"}`: "0+300x20 6000x60",
			`walpost_deliveries_total{instance="a",outcome="dead",subscriber="mail"}`:      "0+10x80",
			`walpost_owed{instance="a",state="dead",subscriber="mail"}`:                    "0+10x80"}},
		{name: "the server cannot send a row", want: "WalpostStuck", change: values{`walpost_stuck{instance="a"}`: "0x40 1x40"}},
		{name: "the server is silent although its WAL grows", want: "WalpostStuck", change: values{
			`walpost_stream_silent_seconds{instance="a"}`: "0x40 0+30x40"}},
		{name: "a fifth of the events is late", want: "WalpostEventsLate", labels: toMail, change: values{lateBucket: "0+240x80"}},
		{name: "a fifth is late, of five", change: values{lateBucket: "0x10 4x70", lateCount: "0x10 5x70", received: "0x10 5x70"}},
		{name: "one in two hundred is late", change: values{lateBucket: "0+298.5x80"}},
		{name: "forty minutes are left", want: "WalpostSlotLostWithinTheHour", change: values{
			`walpost_slot_seconds_until_lost{instance="a"}`: "2400x80", `walpost_slot_seconds_until_lost{instance="b"}`: "2400x80"}},
		{name: "eight hours are left", want: "WalpostSlotLostWithinTheDay", change: values{
			`walpost_slot_seconds_until_lost{instance="a"}`: "28800x80"}},
		{name: "the slot is gone", want: "WalpostSlotGone", change: values{
			`walpost_slot_present{instance="a"}`: "1x40 0x40", `walpost_slot_present{instance="b"}`: "1x40 0x40"}},
		{name: "no one leads", want: "WalpostNoLeader", change: values{`walpost_leader{instance="a"}`: "1x40 0x40"}},
		{name: "the standby has taken over", change: values{
			`walpost_leader{instance="a"}`: "1x40 0x40", `walpost_leader{instance="b"}`: "0x41 1x40", `walpost_term{instance="b"}`: "0x41 8x40"}},
		{name: "nothing can be recorded", want: "WalpostRecordErrors", change: values{`walpost_record_errors_total{instance="a"}`: "0x40 0+5x40"}},
		{name: "Postgres is away, and what is finished cannot be recorded", want: "WalpostNoLeader", change: values{
			`walpost_leader{instance="a"}`: "1x40 0x40", `walpost_record_errors_total{instance="a"}`: "0x40 0+5x40"}},
		{name: "one write has failed", change: values{`walpost_record_errors_total{instance="a"}`: "0x40 1x40"}},
		{name: "both relays are down", only: true, want: "WalpostRelayAbsent", change: values{
			`up{instance="a"}`: "1x40 0x40", `up{instance="b"}`: "1x40 0x40"}},
		{name: "one of two is down", only: true, want: "WalpostRelayDown", change: values{
			`up{instance="a"}`: "1x80", `up{instance="b"}`: "1x40 0x40", `walpost_build_info{instance="a"}`: "1x80"}},
		{name: "one of two starts again", only: true, change: values{
			`up{instance="a"}`: "1x80", `up{instance="b"}`: "1x60 0x10 1x10", `walpost_build_info{instance="a"}`: "1x80"}},
		{name: "the server keeps more than the budget", want: "WalpostWALOverBudget", change: values{
			`walpost_slot_retained_bytes{instance="a"}`: "12e9x80"}},
		{name: "the budget is 0, and the server keeps what it always does", change: values{`walpost_wal_budget_bytes{instance="a"}`: "0x80"}},
		{name: "a former slot holds WAL", want: "WalpostOldSlot", labels: `slot="old"`, change: values{
			`walpost_unread_slot_retained_bytes{instance="a",slot="old"}`: "2e9x80", `walpost_unread_slot_retained_bytes{instance="b",slot="old"}`: "2e9x80"}},
		{name: "vacuum is held back in the catalogue", want: "WalpostOldCatalogue", change: values{
			`walpost_slot_catalog_xmin_age{instance="a"}`: "2e7x80"}},
		{name: "the debt grows for an hour", only: true, at: 95, want: "WalpostDebtGrows", labels: toMail, change: values{
			`up{instance="a"}`: "1x200", `walpost_owed{instance="a",state="waiting",subscriber="mail"}`: "0x20 0+50x180"}},
		{name: "a debt is paid", only: true, at: 95, change: values{
			`up{instance="a"}`: "1x200", `walpost_owed{instance="a",state="waiting",subscriber="mail"}`: "20000-50x200"}},
		{name: "a subscriber is away", want: "WalpostSubscriberAway", labels: toMail, change: values{
			`walpost_breaker_open{instance="a",subscriber="mail"}`: "0x40 1x40"}},
		{name: "the lead is taken again and again", want: "WalpostLeaderChanges", change: values{
			`walpost_term{instance="a"}`: "7x60 8 8 8 10 10 10 12x14", `walpost_term{instance="b"}`: "0x60 8 8 9 9 9 11 11x14"}},
		{name: "two lead", want: "WalpostTwoLeaders", change: values{`walpost_leader{instance="b"}`: "0x40 1x40"}},
		{name: "the doctor has found something", want: "WalpostDoctorProblem", change: values{
			`walpost_doctor_findings{instance="a",level="problem"}`: "0x40 1x40"}},
		{name: "a repair", want: "WalpostRepaired", change: values{`walpost_repairs_total{instance="a",kind="again"}`: "0x40 1x40"}},
		{name: "another poller", want: "WalpostMarkedElsewhere", change: values{`walpost_marked_elsewhere_total{instance="a"}`: "0x40 5x40"}},
		{name: "a quiet hour that was busy a week ago", only: true, at: week + 110, want: "WalpostSilence", change: values{
			`up{instance="a"}`: fmt.Sprintf("1x%d", weeks), received: fmt.Sprintf("0+3000x%d %dx100", week/5, week/5*3000)}},
		{name: "an hour that is quiet every week", only: true, at: week + 110, change: values{
			`up{instance="a"}`: fmt.Sprintf("1x%d", weeks), received: fmt.Sprintf("0x%d", weeks)}},
	} {
		series := values{}
		if !c.only {
			series = healthy()
		}
		maps.Copy(series, c.change)
		if c.at == 0 {
			c.at = 39
		}
		out, interval := &file, "30s"
		if c.at > week {
			out, interval = &ofWeeks, "5m"
		}
		fmt.Fprintf(out, "  - name: %q\n    interval: %s\n    input_series:\n", c.name, interval)
		for _, name := range slices.Sorted(maps.Keys(series)) {
			fmt.Fprintf(out, "      - {series: '%s', values: '%s'}\n", strings.Replace(name, "{", `{job="walpost",`, 1), series[name])
		}
		fmt.Fprintf(out, "    promql_expr_test:\n      - expr: count by (job, alertname, severity, subscriber, slot) (ALERTS{alertstate=\"firing\"})\n"+
			"        eval_time: %dm\n        exp_samples:\n", c.at)
		if c.want != "" {
			fired[c.want] = true
			labels := []string{`job="walpost"`, fmt.Sprintf("alertname=%q", c.want), fmt.Sprintf("severity=%q", severity[c.want])}
			if c.labels != "" {
				labels = append(labels, c.labels)
			}
			fmt.Fprintf(out, "          - {labels: '{%s}', value: 1}\n", strings.Join(labels, ","))
		}
	}
	for _, a := range alerts {
		if !fired[a.Alert] {
			t.Errorf("no case lets %s fire", a.Alert)
		}
	}
	for _, tests := range []*strings.Builder{&file, &ofWeeks} {
		path := filepath.Join(t.TempDir(), "test.yml")
		if err := os.WriteFile(path, []byte(tests.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(promtool, "test", "rules", path).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
