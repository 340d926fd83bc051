package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/relay"
)

// table shows how the demo goes: at a terminal a table that is drawn again in place, elsewhere a line.
type table struct {
	relay    interface{ Progress() relay.Progress }
	registry prometheus.Gatherer
	screen   *screen
}

// How often it is shown.
const (
	tableEvery = 500 * time.Millisecond
	lineEvery  = 10 * time.Second
)

func (t *table) run(ctx context.Context) error {
	every := lineEvery
	if t.screen.live {
		every = tableEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		text, err := t.render()
		if err != nil {
			return err
		}
		t.screen.show(text)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (t *table) render() (string, error) {
	families, err := t.registry.Gather()
	if err != nil {
		return "", fmt.Errorf("read metrics: %w", err)
	}
	metrics := gathered{}
	for _, family := range families {
		metrics[family.GetName()] = family.GetMetric()
	}
	progress := t.relay.Progress()
	events, lag := metrics.sum("walpost_events_received_total"), printable.Size(int64(metrics.sum("walpost_slot_lag_bytes")))

	var text strings.Builder
	if !t.screen.live {
		fmt.Fprintf(&text, "%s: events in %.0f, slot lag %s", progress.State, events, lag)
		for _, s := range progress.Subscribers {
			fmt.Fprintf(&text, "; %s delivered %d, failed %d, p99 %s", s.Name, s.Delivered, s.Failed, metrics.p99(s.Name))
		}
		return text.String() + "\n", nil
	}
	fmt.Fprintf(&text, "%s   events in %.0f   open %d   slot lag %s   confirmed %s\n\n",
		progress.State, events, progress.OpenEvents, lag, progress.ConfirmedLSN)
	columns := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(columns, "subscriber\tdelivered\tfailed\tdead\tcommit to ack, p99\t")
	for _, s := range progress.Subscribers {
		fmt.Fprintf(columns, "%s\t%d\t%d\t%d\t%s\t\n", s.Name, s.Delivered, s.Failed, s.Dead, metrics.p99(s.Name))
	}
	if err := columns.Flush(); err != nil {
		return "", err
	}
	return text.String(), nil
}

// gathered are the metrics of one look, by name.
type gathered map[string][]*dto.Metric

func (g gathered) sum(name string) float64 {
	var sum float64
	for _, metric := range g[name] {
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
	}
	return sum
}

// p99 of the time from commit until a subscriber had finished: the bound of the bucket it lies in, as a
// histogram knows no more.
func (g gathered) p99(subscriber string) string {
	for _, metric := range g["walpost_commit_to_ack_seconds"] {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "subscriber" && label.GetValue() == subscriber {
				return upperBound(metric.GetHistogram(), 0.99)
			}
		}
	}
	return "-"
}

func upperBound(histogram *dto.Histogram, quantile float64) string {
	count := histogram.GetSampleCount()
	if count == 0 {
		return "-"
	}
	last := math.Inf(1)
	for _, bucket := range histogram.GetBucket() {
		if float64(bucket.GetCumulativeCount()) >= quantile*float64(count) {
			last = bucket.GetUpperBound()
			break
		}
	}
	if math.IsInf(last, 1) {
		buckets := histogram.GetBucket()
		if len(buckets) == 0 {
			return "-"
		}
		return "> " + seconds(buckets[len(buckets)-1].GetUpperBound())
	}
	return "≤ " + seconds(last)
}

func seconds(s float64) string { return time.Duration(s * float64(time.Second)).String() }

// screen keeps the last text at the bottom of a terminal: it is replaced by the next one, and what is
// written meanwhile (a log) appears above it. Without a terminal everything is simply written.
type screen struct {
	live     bool
	terminal any // whose width counts

	mu    sync.Mutex
	out   io.Writer // guarded by mu
	shown string    // what stands at the bottom; guarded by mu
}

// newScreen writes to out, by which terminal is reached; one that is none gets everything as it comes.
func newScreen(out io.Writer, terminal any) *screen {
	return &screen{out: out, terminal: terminal, live: isTerminal(terminal)}
}

func (s *screen) show(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live {
		io.WriteString(s.out, text)
		return
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = cut(line, widthOf(s.terminal)) // a line that the terminal wraps would be two to erase
	}
	text = strings.Join(lines, "\n")
	io.WriteString(s.out, s.eraseLocked()+text)
	s.shown = text
}

// Write implements io.Writer for a log.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(s.out, s.eraseLocked()+string(p)+s.shown); err != nil {
		return 0, err
	}
	return len(p), nil
}

// eraseLocked goes up to the first line of what is shown and clears from there (ECMA-48: CUU and ED). A terminal that has
// become narrower has wrapped what stood there.
func (s *screen) eraseLocked() string {
	lines, width := 0, widthOf(s.terminal)
	for line := range strings.Lines(s.shown) {
		lines++
		if n := textWidth(strings.TrimSuffix(line, "\n")); width > 0 && n > width {
			lines += (n - 1) / width
		}
	}
	if lines == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", lines)
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // a payload stays as it is
	return encoder.Encode(value)
}
