//go:build outside

package docs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testprogram"
)

// scale is how long a duration of the rules is in these tests. What takes a relay seconds whatever the rules say, such as
// a takeover (1 to 5 s), a look at the slot (5 s) and a probe, must stay short compared with the shortest of them: up to two
// minutes are a tenth, and what is beyond is a sixtieth. So 1m is 6 s, 2m 12 s, 5m 15 s, 10m 20 s, 15m 25 s, 30m 40 s, 1h
// 70 s, 6h six minutes, and what was longer stays longer. Thresholds are not scaled.
func scale(d time.Duration) time.Duration {
	const short = 2 * time.Minute
	return min(d, short)/10 + max(0, d-short)/60
}

// scaledRules writes a copy of the rules with scaled durations: of for: and interval:, of ranges and of offsets.
func scaledRules(t *testing.T, folder string) string {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	durations := 0
	scaled := regexp.MustCompile(`(for: |interval: |\[|:|offset )(\d+)([smhw])\b`).ReplaceAllStringFunc(string(text), func(found string) string {
		parts := regexp.MustCompile(`^(.*?)(\d+)([smhw])$`).FindStringSubmatch(found)
		n, err := strconv.Atoi(parts[2])
		if err != nil {
			t.Fatal(err)
		}
		durations++
		unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "w": 7 * 24 * time.Hour}[parts[3]]
		return fmt.Sprintf("%s%dms", parts[1], scale(time.Duration(n)*unit).Milliseconds())
	})
	if left := regexp.MustCompile(`\b\d+[smhdwy]\b`).FindAllString(scaled, -1); durations < 30 || len(left) > 0 {
		t.Fatalf("%d durations are scaled, and %q are not", durations, left)
	}
	path := filepath.Join(folder, "scaled.rules.yml")
	if err := os.WriteFile(path, []byte(scaled), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// scraper is a real Prometheus that scrapes what it is told to.
type scraper struct {
	url     string
	targets string // file

	mu     sync.Mutex
	groups []targets // guarded by mu
}

// targets are relays of one job, as Prometheus reads them from a file.
type targets struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

func startPrometheus(t *testing.T) *scraper {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("prometheus is needed (Debian's package of that name): %v", err)
	}
	folder := t.TempDir()
	p := &scraper{targets: filepath.Join(folder, "targets.json")}
	config := filepath.Join(folder, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [%s]
scrape_configs:
  - job_name: of-the-file
    file_sd_configs: [{files: [%s], refresh_interval: 1s}]
`, scaledRules(t, folder), p.targets), 0o600); err != nil {
		t.Fatal(err)
	}
	server := testprogram.StartBinary(t, path, nil, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(folder, "data"),
		"--web.listen-address=127.0.0.1:0", "--enable-feature=exemplar-storage", "--log.format=json")
	p.url = "http://" + server.Await(`"address":"(127\.0\.0\.1:[1-9]\d*)"`)
	testprogram.Eventually(t, "a Prometheus that is ready", func() bool {
		response, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return p
}

// scrape adds the relays of a job.
func (p *scraper) scrape(t *testing.T, job string, ops ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	group := targets{Labels: map[string]string{"job": job}}
	for _, address := range ops {
		group.Targets = append(group.Targets, strings.TrimPrefix(address, "http://"))
	}
	p.groups = append(p.groups, group)
	text, err := json.Marshal(p.groups)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.targets+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.targets+".new", p.targets); err != nil {
		t.Fatal(err)
	}
}

// askRoute reads what Prometheus answers into data.
func (p *scraper) askRoute(t *testing.T, route string, parameters url.Values, data any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+route+"?"+parameters.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s %v: %s %s: %v", route, parameters, response.Status, answer.Error, err)
	}
}

// firing are the alerts of a job, sorted, each once, but for some.
func (p *scraper) firing(t *testing.T, job string, but ...string) (names []string) {
	t.Helper()
	var answer struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	p.askRoute(t, "/api/v1/alerts", nil, &answer)
	for _, a := range answer.Alerts {
		if a.State == "firing" && a.Labels["job"] == job && !slices.Contains(but, a.Labels["alertname"]) {
			names = append(names, a.Labels["alertname"])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// series are the label sets that a query returns at this moment, but for those that are no number.
func (p *scraper) series(t *testing.T, query string) (found []map[string]string) {
	t.Helper()
	var answer struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any // when, and the number as text
		}
	}
	p.askRoute(t, "/api/v1/query", url.Values{"query": {query}}, &answer)
	for _, r := range answer.Result {
		if r.Value[1] != "NaN" {
			found = append(found, r.Metric)
		}
	}
	return found
}
