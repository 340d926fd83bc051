package relay

import "github.com/prometheus/client_golang/prometheus"

// leaderSeries registers collectors whose series only a leader has. A relay that led before would go on to show what it
// saw last, or a lag that grows for ever, and a sum over the instances would count it twice. Counters are not registered
// this way: each counts what its own process did, and a sum over the instances is right.
type leaderSeries struct {
	prometheus.Registerer
	leads func() bool
}

// Register implements prometheus.Registerer.
func (r leaderSeries) Register(c prometheus.Collector) error {
	return r.Registerer.Register(whileLeading{c, r.leads})
}

// MustRegister implements prometheus.Registerer.
func (r leaderSeries) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		r.Registerer.MustRegister(whileLeading{c, r.leads})
	}
}

// whileLeading shows the series of a collector only while the relay leads.
type whileLeading struct {
	prometheus.Collector
	leads func() bool
}

// Collect implements prometheus.Collector.
func (w whileLeading) Collect(out chan<- prometheus.Metric) {
	if w.leads() {
		w.Collector.Collect(out)
	}
}
