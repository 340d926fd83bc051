package lane

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Vectors are the metrics of all lanes.
type Vectors struct {
	deliveries  *prometheus.CounterVec
	handle      *prometheus.HistogramVec
	commitToAck *prometheus.HistogramVec
	open        *prometheus.GaugeVec
	overdue     *prometheus.GaugeVec
	breakerOpen *prometheus.GaugeVec
	deadRefused *prometheus.CounterVec
	inDebt      *prometheus.GaugeVec
	keysInDebt  *prometheus.GaugeVec
	recorded    *prometheus.CounterVec
	debtErrors  *prometheus.CounterVec
	others      *prometheus.CounterVec
}

// Metrics are those of one subscriber.
type Metrics struct {
	delivered, failed, dead, deadRefused, recorded, debtErrors, others prometheus.Counter
	handle, commitToAck                                                prometheus.Observer
	open, overdue, breakerOpen, inDebt, keysInDebt                     prometheus.Gauge
}

// Histograms are native ones too: their buckets are a tenth apart, and coarser where values would need more than
// nativeBuckets, until nativeReset later. A Prometheus that asks for no native ones gets the others alone.
const (
	nativeFactor  = 1.1
	nativeBuckets = 100
	nativeReset   = time.Hour
)

// NewVectors registers the metrics of all lanes: the counters with reg, and with leader what lanes hold, which only a
// leader has.
func NewVectors(reg, leader prometheus.Registerer) *Vectors {
	label := []string{"subscriber"}
	v := &Vectors{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_deliveries_total",
			Help: "Attempts by outcome: delivered, failed (comes again), dead (waits for a person).",
		}, []string{"subscriber", "outcome"}),
		handle: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:                        "walpost_handle_seconds",
			Help:                        "Time in one call of the subscriber's handler, failed ones included.",
			Buckets:                     prometheus.ExponentialBuckets(0.0005, 2, 16),
			NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets, NativeHistogramMinResetDuration: nativeReset,
		}, label),
		commitToAck: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:                        "walpost_commit_to_ack_seconds",
			Help:                        "Time from the commit of a transaction, by the server's clock, until an event of it was finished.",
			Buckets:                     prometheus.ExponentialBuckets(0.001, 2, 18),
			NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets, NativeHistogramMinResetDuration: nativeReset,
		}, label),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "walpost_open_events",
			Help: "Deliveries received, and neither finished nor owed.",
		}, label),
		overdue: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "walpost_overdue_handlers",
			Help: "Calls that have not returned although their deadline is over; their keys wait.",
		}, label),
		breakerOpen: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "walpost_breaker_open",
			Help: "1 while the subscriber counts as away and one event at a time is tried.",
		}, label),
		deadRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_dead_letter_errors_total",
			Help: "Dead letters that could not be recorded; the event stays open and is tried again.",
		}, label),
		inDebt: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "walpost_in_debt",
			Help: "1 while the subscriber as a whole is in debt: its events are recorded and sent from there.",
		}, label),
		keysInDebt: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "walpost_keys_in_debt",
			Help: "Keys whose events are recorded and sent from there while the other keys are live.",
		}, label),
		recorded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_owed_recorded_total",
			Help: "Deliveries recorded as owed.",
		}, label),
		debtErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_debt_errors_total",
			Help: "Reads and writes of the debt that failed; they are tried again, and nothing is confirmed before.",
		}, label),
		others: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_rows_of_one_identity_total",
			Help: "Rows that were not sent because another row with the same id and time was recorded as owed; they stay unpublished.",
		}, label),
	}
	reg.MustRegister(v.deliveries, v.handle, v.commitToAck, v.deadRefused, v.recorded, v.debtErrors, v.others)
	leader.MustRegister(v.open, v.overdue, v.breakerOpen, v.inDebt, v.keysInDebt)
	return v
}

// For returns the metrics of one subscriber, all present from the start. What they showed of an earlier lane
// of it is over; its counters go on.
func (v *Vectors) For(subscriber string) *Metrics {
	m := &Metrics{
		delivered:   v.deliveries.WithLabelValues(subscriber, "delivered"),
		failed:      v.deliveries.WithLabelValues(subscriber, "failed"),
		dead:        v.deliveries.WithLabelValues(subscriber, "dead"),
		deadRefused: v.deadRefused.WithLabelValues(subscriber),
		handle:      v.handle.WithLabelValues(subscriber),
		commitToAck: v.commitToAck.WithLabelValues(subscriber),
		open:        v.open.WithLabelValues(subscriber),
		overdue:     v.overdue.WithLabelValues(subscriber),
		breakerOpen: v.breakerOpen.WithLabelValues(subscriber),
		inDebt:      v.inDebt.WithLabelValues(subscriber),
		keysInDebt:  v.keysInDebt.WithLabelValues(subscriber),
		recorded:    v.recorded.WithLabelValues(subscriber),
		debtErrors:  v.debtErrors.WithLabelValues(subscriber),
		others:      v.others.WithLabelValues(subscriber),
	}
	for _, gauge := range []prometheus.Gauge{m.open, m.overdue, m.breakerOpen, m.inDebt, m.keysInDebt} {
		gauge.Set(0)
	}
	return m
}
