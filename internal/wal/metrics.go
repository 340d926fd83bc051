package wal

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics show a slot, and the stream from it.
type Metrics struct {
	Reconnects prometheus.Counter
	slots      *slotCollector
}

// NewMetrics registers the metrics of the slot; those of the stream's progress, which only a leader has, with leader.
func NewMetrics(reg, leader prometheus.Registerer, progress *Progress) *Metrics {
	m := &Metrics{
		slots: &slotCollector{},
		Reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_reconnects_total", Help: "Replication connections that broke and were made again.",
		}),
	}
	lsn := func(name, help string, value *atomic.Uint64) {
		leader.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return float64(value.Load()) }))
	}
	lsn("walpost_received_lsn", "Highest WAL position received, as a number of bytes.", &progress.receivedLSN)
	lsn("walpost_confirmed_lsn", "WAL position confirmed to the server, as a number of bytes.", &progress.confirmedLSN)
	reg.MustRegister(m.Reconnects, m.slots)
	return m
}
