package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/slot"
)

// metrics outlive the rooms, which are built again after a repair.
type metrics struct {
	elsewhere, failures prometheus.Counter
	replaced            prometheus.Counter
	gone                *prometheus.CounterVec
	notes               prometheus.Counter
	silent              prometheus.Gauge
	repairs             *prometheus.CounterVec
	owed                *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		elsewhere: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_marked_elsewhere_total",
			Help: "Rows that were published already when they were to be marked.",
		}),
		replaced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_rows_replaced_total",
			Help: "Rows that held another event than the one to be marked, because an id or a primary key came again.",
		}),
		gone: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_rows_gone_total",
			Help: "Rows that were gone when they were to be marked: their service deletes them.",
		}, []string{"source"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_record_errors_total",
			Help: "Writes of marks and of the confirmed position that failed; nothing is confirmed until one works.",
		}),
		notes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_audit_errors_total",
			Help: "Notes of the relay itself that could not be written to walpost.audit; what they tell of was done all the same.",
		}),
		silent: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "walpost_stream_silent_seconds",
			Help: "How long the server has sent nothing and shown no sign of work while its WAL grew; 0 while it works or has nothing to send.",
		}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_repairs_total",
			Help: "Repairs from the table, by kind: again (the slot was lost) or kept (the slot is there, and its stream may have a hole).",
		}, []string{"kind"}),
		owed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "walpost_owed", Help: "Deliveries in walpost.owed: waiting are sent by themselves, dead wait for a person.",
		}, []string{"subscriber", "state"}),
	}
	for _, kind := range []slot.Kind{slot.Replace, slot.Keep} { // there before the first one
		m.repairs.WithLabelValues(string(kind))
	}
	reg.MustRegister(m.elsewhere, m.replaced, m.gone, m.failures, m.notes, m.silent, m.repairs, m.owed)
	return m
}

// registerMetrics registers what is computed when someone looks.
func (r *Relay) registerMetrics() {
	r.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_open_bytes", Help: "Size of the events received and not yet recorded as finished.",
	}, func() float64 { return float64(r.Progress().OpenBytes) }))
	r.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_leader", Help: "1 while this relay leads the slot, 0 while it stands by.",
	}, func() float64 {
		if r.Progress().State == Streaming && r.leads() {
			return 1
		}
		return 0
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_stuck", Help: "1 while the server ends the stream with the same error at the same place, again and again.",
	}, func() float64 {
		if r.isStuck() {
			return 1
		}
		return 0
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "walpost_term", Help: "Number of the last leadership of this relay, 0 before the first.",
	}, func() float64 { return float64(r.fence.Term()) }))
	for i, sub := range r.Subscriptions {
		name := sub.Subscriber.Name()
		r.showOwed([]debt.Count{{Subscriber: name, State: "waiting"}, {Subscriber: name, State: "dead"}})
		r.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "walpost_lag_seconds",
			Help:        "Age of the subscriber's oldest open or owed event, from its commit.",
			ConstLabels: prometheus.Labels{"subscriber": name},
		}, func() float64 { return r.lag(i).Seconds() }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "walpost_holding_wal_bytes",
			Help:        "WAL kept for the subscriber's oldest open or owed event.",
			ConstLabels: prometheus.Labels{"subscriber": name},
		}, func() float64 { return float64(r.holdingOf(i)) }))
	}
}

func (r *Relay) holdingOf(subscriber int) int64 {
	r.mu.Lock()
	tracker := r.tracker
	r.mu.Unlock()
	if tracker == nil {
		return 0
	}
	return r.holding(tracker, subscriber)
}

// lag is the age of a subscriber's oldest open or owed event. Clocks of two machines differ: never below 0.
func (r *Relay) lag(subscriber int) time.Duration {
	r.mu.Lock()
	tracker := r.tracker
	r.mu.Unlock()
	if tracker == nil {
		return 0
	}
	since := r.currentLanes()[subscriber].Stats().OwesSinceAt
	if _, oldest := tracker.OpenOf(subscriber); oldest != nil && (since.IsZero() || oldest.CommittedAt.Before(since)) {
		since = oldest.CommittedAt
	}
	if since.IsZero() {
		return 0
	}
	return max(0, time.Since(since))
}

func (r *Relay) showOwed(counts []debt.Count) {
	for _, name := range r.Subscriptions {
		for _, state := range []string{"waiting", "dead"} {
			var number int64
			for _, c := range counts {
				if c.Subscriber == name.Subscriber.Name() && c.State == state {
					number = c.Number
				}
			}
			r.metrics.owed.WithLabelValues(name.Subscriber.Name(), state).Set(float64(number))
		}
	}
}
