package relay

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/slot"
)

// metrics outlives the parts, which are built again after a repair.
type metrics struct {
	elsewhere, failures prometheus.Counter
	replaced            prometheus.Counter
	gone                *prometheus.CounterVec
	notes               prometheus.Counter
	doubts              prometheus.Counter
	silent              prometheus.Gauge
	repairs             *prometheus.CounterVec
	owed                *prometheus.GaugeVec
	budget              prometheus.Gauge
}

func newMetrics(reg, leader prometheus.Registerer) *metrics {
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
		doubts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_lease_doubts_total",
			Help: "Times that nothing was handed over for a moment because the session of the lease did not answer in time.",
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
		budget: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "walpost_wal_budget_bytes",
			Help: "WAL that debt may hold before what is recorded as owed is let go of; +Inf for unlimited.",
		}),
	}
	for _, kind := range []slot.Kind{slot.Replace, slot.Keep} { // there before the first one
		m.repairs.WithLabelValues(string(kind))
	}
	reg.MustRegister(m.elsewhere, m.replaced, m.gone, m.failures, m.notes, m.doubts, m.repairs)
	leader.MustRegister(m.silent, m.owed, m.budget)
	return m
}

// showBudget shows how much WAL debt may hold.
func (m *metrics) showBudget(bytes int64) {
	if bytes == Unlimited {
		m.budget.Set(math.Inf(1))
		return
	}
	m.budget.Set(float64(bytes))
}

// showOwed shows how much the subscribers are owed; what counts does not name is 0.
func (m *metrics) showOwed(subscribers []string, counts []debt.Count) {
	for _, name := range subscribers {
		for _, state := range []string{"waiting", "dead"} {
			var number int64
			for _, c := range counts {
				if c.Subscriber == name && c.State == state {
					number = c.Number
				}
			}
			m.owed.WithLabelValues(name, state).Set(float64(number))
		}
	}
}
