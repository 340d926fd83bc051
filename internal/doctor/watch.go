package doctor

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/advice"
)

// Watcher makes the checks repeatedly and logs what has changed. It decides nothing: what must stop the relay,
// the relay finds by itself.
type Watcher struct {
	options  Options
	every    time.Duration
	log      *slog.Logger
	findings *prometheus.GaugeVec

	last []Finding // belongs to Run; replaced as a whole

	mu   sync.Mutex
	said Said // guarded by mu
}

// Said is what a watcher has found last.
type Said struct {
	// At is when it last looked; zero before the first look.
	At time.Time `json:"at,omitzero"`
	// Findings are those of the last look, and of what is looked at seldom those of the one before.
	Findings []Finding `json:"findings"`
}

// Last is what the watcher has found last. It is safe for concurrent use.
func (w *Watcher) Last() Said {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.said
}

// NewWatcher returns a watcher that checks once a minute. A nil registry keeps its metric nowhere.
func NewWatcher(o Options, registry prometheus.Registerer, log *slog.Logger) *Watcher {
	w := &Watcher{options: o, every: time.Minute, log: log, findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "walpost_doctor_findings",
		Help: "Checks of the doctor by how they ended last; those that are not cheap are made at the start only.",
	}, []string{"level"})}
	for _, level := range Levels() {
		w.findings.WithLabelValues(string(level))
	}
	if registry != nil {
		registry.MustRegister(w.findings)
	}
	return w
}

// Run makes all checks once and the cheap ones every minute, until ctx ends. It returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	options := w.options
	for {
		report := Run(ctx, options)
		if ctx.Err() != nil {
			return nil
		}
		// Without a connection nothing is known; that it is away, the relay says.
		if report.Findings[0].Level == OK {
			w.compare(report.Findings)
			options.Cheap = true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// compare logs what is worse or better than before, each finding once. What a report has not checked stays.
func (w *Watcher) compare(findings []Finding) {
	checked := map[string]bool{}
	for _, f := range findings {
		checked[f.Check] = true
		if before := w.before(f); before.Level != f.Level && (!before.fine() || !f.fine()) {
			w.logFinding(f, before)
		}
	}
	for _, before := range w.last {
		if !checked[before.Check] {
			findings = append(findings, before)
			continue
		}
		same := func(f Finding) bool { return f.Check == before.Check && f.Subject == before.Subject }
		if !before.fine() && !slices.ContainsFunc(findings, same) {
			w.log.Info("the doctor's finding is gone", "check", before.Check, "subject", before.Subject, "was", before.Level)
		}
	}
	w.last = findings
	w.mu.Lock()
	w.said = Said{time.Now().UTC(), findings}
	w.mu.Unlock()
	all := Report{Findings: findings}
	for _, level := range Levels() {
		w.findings.WithLabelValues(string(level)).Set(float64(all.Count(level)))
	}
}

// before is what was said last about the same thing; OK when nothing was.
func (w *Watcher) before(f Finding) Finding {
	for _, last := range w.last {
		if last.Check == f.Check && last.Subject == f.Subject {
			return last
		}
	}
	return Finding{Level: OK}
}

func (w *Watcher) logFinding(f, before Finding) {
	level := slog.LevelInfo
	switch f.Level {
	case Problem:
		level = slog.LevelError
	case Warning:
		level = slog.LevelWarn
	case OK, Skipped:
		w.log.Info("the doctor's finding is gone", "check", f.Check, "subject", f.Subject, "was", before.Level)
		return
	}
	facts := []any{"check", f.Check, "severity", f.Level} // "level" is the line's own
	if f.Subject != "" {
		facts = append(facts, "subject", f.Subject)
	}
	facts = append(facts, "finding", f.Finding, "reason", f.Reason)
	if f.Fix != nil {
		if len(f.Fix.SQL) > 0 {
			facts = append(facts, "fix", pasteable(f.Fix.SQL), "restart", f.Fix.Restart)
		}
		if f.Fix.Do != "" {
			facts = append(facts, "do", f.Fix.Do)
		}
	}
	w.log.Log(context.Background(), level, "the doctor found something; walpost doctor shows all", facts...)
}

// pasteable is statements as one text for psql.
func pasteable(statements []advice.Statement) string {
	var all strings.Builder
	for _, statement := range statements {
		all.WriteString(strings.TrimSuffix(statement.String(), ";") + "; ")
	}
	return strings.TrimSpace(all.String())
}
