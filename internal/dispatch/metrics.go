package dispatch

import "github.com/prometheus/client_golang/prometheus"

// Metrics count what the stream brings. They outlive a dispatcher.
type Metrics struct {
	received         *prometheus.CounterVec
	publishedInserts prometheus.Counter
	ignoredMessages  prometheus.Counter
	passedOver       *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_events_received_total", Help: "Events taken in.",
		}, []string{"source"}),
		publishedInserts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_published_inserts_total",
			Help: "Inserted rows whose published column was set already, such as a marked row that moved to another partition; they are no events.",
		}),
		ignoredMessages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_ignored_messages_total",
			Help: "Logical messages that are not transactional or of no source's prefix.",
		}),
		passedOver: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_rows_passed_over_total", Help: "Rows of a table that was a source and has left the configuration; they are no events.",
		}, []string{"source"}),
	}
	reg.MustRegister(m.received, m.publishedInserts, m.ignoredMessages, m.passedOver)
	return m
}
