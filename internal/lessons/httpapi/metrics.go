package httpapi

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	factory := promauto.With(reg)
	return &metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_http_requests_total",
			Help: "Requests to the completions API, by route and class of status.",
		}, []string{"route", "class"}),
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "walpost_http_request_seconds",
			Help:    "Time from the headers of a request to the end of its answer, by route.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
			// A native one too, for a Prometheus that asks for it: buckets a tenth apart, and at most 100 of them.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}, []string{"route"}),
	}
}

// observe counts one request. The route is the pattern that matched, never the path, which is data.
func (m *metrics) observe(route string, status int, elapsed time.Duration) {
	if route == "" {
		route = "none"
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status/100)+"xx").Inc()
	m.duration.WithLabelValues(route).Observe(elapsed.Seconds())
}
