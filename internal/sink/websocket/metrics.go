package websocket

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	clients  prometheus.Gauge
	sent     prometheus.Counter
	catchUps prometheus.Counter
	closed   *prometheus.CounterVec
	refused  *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer, name string) *metrics {
	if registry != nil {
		registry = prometheus.WrapRegistererWith(prometheus.Labels{"subscriber": name}, registry)
	}
	with := promauto.With(registry)
	m := &metrics{
		clients: with.NewGauge(prometheus.GaugeOpts{
			Name: "walpost_websocket_clients", Help: "Clients that are connected.",
		}),
		sent: with.NewCounter(prometheus.CounterOpts{
			Name: "walpost_websocket_messages_total", Help: "Messages written to clients: events times those that follow them.",
		}),
		catchUps: with.NewCounter(prometheus.CounterOpts{
			Name: "walpost_websocket_catch_ups_total", Help: "Times that a client was sent what it had missed from the retained rows.",
		}),
		closed: with.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_websocket_closed_total", Help: "Clients whose connection has ended, by close code; left is by themselves.",
		}, []string{"code"}),
		refused: with.NewCounterVec(prometheus.CounterOpts{
			Name: "walpost_websocket_refused_total", Help: "Requests to follow that were refused, by reason.",
		}, []string{"reason"}),
	}
	for _, e := range endings {
		m.closed.WithLabelValues(e.label()) // there before the first one
	}
	for _, r := range refusals {
		m.refused.WithLabelValues(r.reason)
	}
	return m
}
