package bench

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A Report is what a run has measured. Its JSON is meant to be kept.
type Report struct {
	Begun    time.Time `json:"begun"`
	Took     string    `json:"took,omitempty"`
	Machine  Machine   `json:"machine"`
	Settings Settings  `json:"settings"`
	Rows     []Row     `json:"rows"`
}

// Machine says where it was measured.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	Platform string `json:"platform"`
	Kernel   string `json:"kernel,omitempty"`
	Go       string `json:"go"`
	Postgres string `json:"postgres"`
}

// Settings are the options that shape the figures.
type Settings struct {
	Events      int    `json:"events"`
	Payload     int    `json:"payload_bytes"`
	Subscribers int    `json:"subscribers"`
	Rate        int    `json:"rate"`
	Turns       int    `json:"turns"`
	Timed       string `json:"timed"`
	Idle        string `json:"idle"`
	Private     bool   `json:"private_server"`
}

// Spread is the median of the turns, with the least and the greatest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// A Row is one bar: what walpost reached, what its baseline reached, and whether that is enough.
type Row struct {
	Case string `json:"case"`
	What string `json:"what"`
	// Ours and Other are in Unit; Other is nil where the bar is an absolute one.
	Unit  string  `json:"unit"`
	Ours  *Spread `json:"ours,omitempty"`
	Other *Spread `json:"other,omitempty"`
	// Baseline names what Ours is compared with.
	Baseline string `json:"baseline,omitempty"`
	// Value is what is held against the bar: ours divided by the other's in the same turn, or Ours itself.
	Value *Spread `json:"value,omitempty"`
	// AtMost turns the bar around: less is better. Aim is nil where there is none beyond the bar.
	AtMost bool     `json:"at_most"`
	Bar    float64  `json:"bar"`
	Aim    *float64 `json:"aim,omitempty"`
	Holds  bool     `json:"holds"`
	// NotRun says why there is no figure; then Holds is false and says nothing.
	NotRun string `json:"not_run,omitempty"`
	// Note says what the figure leaves open.
	Note string `json:"note,omitempty"`
}

// A bar is what a row must reach.
type bar struct {
	what, unit, baseline string
	atMost               bool
	bar, aim             float64 // an aim of 0 is none
}

func (b bar) row(name string) Row {
	r := Row{Case: name, What: b.what, Unit: b.unit, Baseline: b.baseline, AtMost: b.atMost, Bar: b.bar}
	if b.aim != 0 {
		r.Aim = &b.aim
	}
	return r
}

// compare adds a row with the ratio of ours to the other's, turn by turn.
func (l *lab) compare(b bar, ours, other []sample, get func(sample) float64) {
	r := b.row(l.current)
	r.Ours, r.Other, r.Value = spread(each(ours, get)), spread(each(other, get)), spread(ratios(ours, other, get))
	l.add(r)
}

// ratios are those of two contestants, turn by turn.
func ratios(ours, other []sample, get func(sample) float64) []float64 {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = get(ours[i]) / get(other[i])
	}
	return ratios
}

// addNote says what the figure of the last row leaves open.
func (l *lab) addNote(format string, args ...any) {
	l.report.Rows[len(l.report.Rows)-1].Note = fmt.Sprintf(format, args...)
}

// absolute adds a row that has no baseline.
func (l *lab) absolute(b bar, note string, values ...float64) {
	r := b.row(l.current)
	r.Ours = spread(values)
	r.Value, r.Note = r.Ours, note
	l.add(r)
}

// notRun adds the rows of bars that could not be measured.
func (l *lab) notRun(why string, bars ...bar) {
	for _, b := range bars {
		r := b.row(l.current)
		r.NotRun = why
		l.report.Rows = append(l.report.Rows, r)
	}
}

func (l *lab) add(r Row) {
	r.Holds = r.Value.Median >= r.Bar
	if r.AtMost {
		r.Holds = r.Value.Median <= r.Bar
	}
	l.report.Rows = append(l.report.Rows, r)
}

func each(samples []sample, get func(sample) float64) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = get(s)
	}
	return values
}

func spread(values []float64) *Spread {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return &Spread{Median: median, Min: sorted[0], Max: sorted[len(sorted)-1]}
}

// WriteText prints the rows for a terminal; table prints rows of which the first is the head.
func (r *Report) WriteText(w io.Writer, table func(io.Writer, [][]string)) error {
	fmt.Fprintf(w, "%s, %d cores, %s; Postgres %s, %s; median (least to greatest) of %d turns\n\n",
		r.Machine.CPU, r.Machine.Cores, r.Machine.Platform, r.Machine.Postgres, r.Machine.Go, r.Settings.Turns)
	rows := [][]string{{"case", "what", "walpost", "baseline", "value", "bar", "aim"}}
	for _, row := range r.Rows {
		rows = append(rows, row.cells())
	}
	table(w, rows)
	r.writeNotes(w)
	return nil
}

// WriteMarkdown prints the report as docs/performance.md keeps it.
func (r *Report) WriteMarkdown(w io.Writer) error {
	fmt.Fprintf(w, "Measured on %s: %s, %d cores, %s, kernel %s; Postgres %s; %s. %d turns, %d events of %d bytes, took %s.\n\n",
		r.Begun.UTC().Format(time.DateOnly), r.Machine.CPU, r.Machine.Cores, r.Machine.Platform, r.Machine.Kernel,
		r.Machine.Postgres, r.Machine.Go, r.Settings.Turns, r.Settings.Events, r.Settings.Payload, r.Took)
	fmt.Fprint(w, "| case | what | walpost | baseline | value | bar | aim |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, row := range r.Rows {
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row.cells(), " | ")); err != nil {
			return err
		}
	}
	r.writeNotes(w)
	return nil
}

func (r *Report) writeNotes(w io.Writer) {
	told := map[string]bool{}
	for _, row := range r.Rows {
		text := row.Note
		if row.NotRun != "" {
			text = "not run: " + row.NotRun
		}
		if text = row.Case + ": " + text; !told[text] && (row.Note != "" || row.NotRun != "") {
			fmt.Fprintf(w, "\n%s\n", text)
			told[text] = true
		}
	}
}

// cells are the row for people.
func (r Row) cells() []string {
	sign := "≥ "
	if r.AtMost {
		sign = "≤ "
	}
	ratio := ""
	if r.Baseline != "" {
		ratio = "×"
	}
	cells := []string{r.Case, r.What, "-", r.Baseline, "not run", sign + number(r.Bar) + ratio, ""}
	if r.Aim != nil {
		cells[6] = sign + number(*r.Aim) + ratio
	}
	if r.NotRun != "" {
		return cells
	}
	cells[2] = number(r.Ours.Median) + " " + r.Unit
	if r.Other != nil {
		cells[3] = r.Baseline + ": " + number(r.Other.Median)
	}
	cells[4] = fmt.Sprintf("%s%s (%s to %s)", number(r.Value.Median), ratio, number(r.Value.Min), number(r.Value.Max))
	verdict := ", misses"
	if r.Holds {
		verdict = ", holds"
	}
	cells[5] += verdict
	return cells
}

// number has three digits that matter.
func number(f float64) string {
	switch size := max(f, -f); {
	case size >= 1_000_000:
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", f/1e6), "0"), ".") + "M"
	case size >= 10_000:
		return fmt.Sprintf("%.0fk", f/1000)
	case size >= 100 || size == 0:
		return fmt.Sprintf("%.0f", f)
	case size >= 1:
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", f), "0"), ".")
	default:
		return fmt.Sprintf("%.2g", f)
	}
}

func (l *lab) newReport(postgres string) *Report {
	return &Report{
		Begun: time.Now(),
		Machine: Machine{
			CPU: cpuModel(), Cores: runtime.NumCPU(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
			Kernel: kernel(), Go: runtime.Version(), Postgres: postgres,
		},
		Settings: Settings{
			Events: l.Events, Payload: l.Payload, Subscribers: l.Subscribers, Rate: l.Rate, Turns: l.Turns,
			Timed: l.Timed.String(), Idle: l.Idle.String(), Private: l.DatabaseURL == "",
		},
	}
}

func cpuModel() string {
	info, _ := os.ReadFile("/proc/cpuinfo") // Linux only
	if found := regexp.MustCompile(`(?m)^model name\s*:\s*(.+)$`).FindSubmatch(info); found != nil {
		return string(found[1])
	}
	return "unknown CPU"
}

func kernel() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(release))
}
