package dispatch

import "github.com/prometheus/client_golang/prometheus"

// Metrics count what the stream brings. They outlive a dispatcher.
type Metrics struct {
	received        *prometheus.CounterVec
	undelivered     *prometheus.CounterVec
	ignoredMessages prometheus.Counter
	passedOver      *prometheus.CounterVec
}

// Values of the label reason of walpost_undelivered_total.
const (
	unwanted        = "unwanted"         // no subscriber takes its type
	publishedBefore = "published_before" // its published column was set when it came
)

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_events_received_total", Help: "Events taken in.",
		}, []string{"source"}),
		undelivered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_undelivered_total",
			Help: "Rows and messages that go to no subscriber, by reason: unwanted (none takes the type) or published_before (the row came with its published column set).",
		}, []string{"source", "reason"}),
		ignoredMessages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_ignored_messages_total",
			Help: "Logical messages that are not transactional or of no source's prefix.",
		}),
		passedOver: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_rows_passed_over_total", Help: "Rows of a table that was a source and has left the configuration; they are no events.",
		}, []string{"source"}),
	}
	reg.MustRegister(m.received, m.undelivered, m.ignoredMessages, m.passedOver)
	return m
}
