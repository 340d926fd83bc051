package cli

import (
	"context"
	"io"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/relay"
)

// sight is what top has seen at a moment.
type sight struct {
	at     time.Time
	status admin.Status
	health relay.Health
	// progress is nil where another relay leads; elsewhere says where that one answers.
	progress  *relay.Progress
	elsewhere string
	// left is how long the slot lasts, in seconds, +Inf without a limit, NaN where it is not known.
	left     float64
	received float64 // events since the process started
	version  string
	// silent says why there is nothing of all this.
	silent error
}

// readTop asks the relay for everything that top shows.
func readTop(ctx context.Context, of *asked) sight {
	s := sight{at: time.Now(), left: math.NaN()}
	if s.silent = of.get(ctx, "/v1/status", nil, &s.status); s.silent != nil {
		return s
	}
	if s.silent = of.get(ctx, readyPath, nil, &s.health); s.silent != nil {
		return s
	}
	progress := new(relay.Progress)
	if err := of.get(ctx, "/v1/progress", nil, progress); err == nil {
		s.progress = progress
	} else {
		s.elsewhere = err.Error()
	}
	body, err := of.open(ctx, "/metrics", nil)
	if err != nil {
		return s // the rest is worth seeing
	}
	defer body.Close()
	s.readMetrics(io.LimitReader(body, maxAnswer))
	return s
}

// readMetrics takes what no other route tells.
func (s *sight) readMetrics(text io.Reader) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return
	}
	each := func(name string, fn func(*dto.Metric)) {
		for _, m := range families[name].GetMetric() {
			fn(m)
		}
	}
	each("walpost_slot_seconds_until_lost", func(m *dto.Metric) { s.left = m.GetGauge().GetValue() })
	each("walpost_events_received_total", func(m *dto.Metric) { s.received += m.GetCounter().GetValue() })
	each("walpost_build_info", func(m *dto.Metric) {
		for _, label := range m.GetLabel() {
			if label.GetName() == "version" {
				s.version = label.GetValue()
			}
		}
	})
}

// top is what is on the screen. It is changed by Update alone, on the goroutine of the program.
type top struct {
	readSight     func() sight
	every         time.Duration
	url           string
	now, before   sight // before is the look that rates are taken from; its at is zero before the second
	failed        error // why the last look brought nothing
	width, height int
	skipped       int // subscribers above the screen
	stopped       bool
}
