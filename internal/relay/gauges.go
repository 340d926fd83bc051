package relay

import "github.com/prometheus/client_golang/prometheus"

// registerGauges registers what is computed when someone looks; what only a leader has with leader.
func (v *view) registerGauges(leads func() bool, leader prometheus.Registerer) {
	leader.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_open_bytes", Help: "Size of the events received and not yet recorded as finished.",
	}, func() float64 { return float64(v.Progress().OpenBytes) }))
	v.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_leader", Help: "1 while this relay leads the slot, 0 while it stands by.",
	}, func() float64 {
		if v.Progress().State == Streaming && leads() {
			return 1
		}
		return 0
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_stuck", Help: "1 while the server ends the stream with the same error at the same place, again and again.",
	}, func() float64 {
		if v.condition.isStuck() {
			return 1
		}
		return 0
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_term", Help: "Number of the last leadership of this relay, 0 before the first.",
	}, func() float64 { return float64(v.fence.Term()) }))
	v.metrics.showOwed(v.names(), nil) // there before the first event
	// now is what a function makes of the parts that run, 0 before there are some.
	now := func(of func(p *parts) float64) float64 {
		if p := v.current.Load(); p != nil {
			return of(p)
		}
		return 0
	}
	for i, name := range v.names() {
		leader.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "walpost_lag_seconds",
			Help:        "Age of the subscriber's oldest open or waiting event, from its commit.",
			ConstLabels: prometheus.Labels{"subscriber": name},
		}, func() float64 { return now(func(p *parts) float64 { return p.lag(i).Seconds() }) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "walpost_holding_wal_bytes",
			Help:        "WAL kept for the subscriber's oldest open or waiting event.",
			ConstLabels: prometheus.Labels{"subscriber": name},
		}, func() float64 { return now(func(p *parts) float64 { return float64(p.holding(i)) }) }))
	}
}
