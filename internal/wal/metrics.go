package wal

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/event"
)

// Metrics are about the slot and the stream.
type Metrics struct {
	receivedLSN, confirmedLSN atomic.Uint64
	handedLSN                 atomic.Uint64 // no metric: it is receivedLSN within moments
	heardAt                   atomic.Int64  // when a message last came, or could not for us, in nanoseconds since 1970
	Reconnects                prometheus.Counter

	slots *slotCollector
}

// NewMetrics registers the metrics of the slot; those of the stream, which only a leader has, with leader.
func NewMetrics(reg, leader prometheus.Registerer) *Metrics {
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
	lsn("walpost_received_lsn", "Highest WAL position received, as a number of bytes.", &m.receivedLSN)
	lsn("walpost_confirmed_lsn", "WAL position confirmed to the server, as a number of bytes.", &m.confirmedLSN)
	reg.MustRegister(m.Reconnects, m.slots)
	return m
}

// Received is the highest WAL position that was received.
func (m *Metrics) Received() event.LSN { return event.LSN(m.receivedLSN.Load()) }

// HandedOver is the position up to which everything that was received was also handed over by the Receiver.
func (m *Metrics) HandedOver() event.LSN { return event.LSN(m.handedLSN.Load()) }

// Heard is when the server last sent a message, or when we last kept it from doing so.
func (m *Metrics) Heard() time.Time { return time.Unix(0, m.heardAt.Load()) }

func (m *Metrics) heard(at time.Time) { m.heardAt.Store(at.UnixNano()) }

// Restart forgets what was received from a slot that was lost or a server that is another one.
func (m *Metrics) Restart(confirmed event.LSN) {
	m.receivedLSN.Store(uint64(confirmed))
	m.handedLSN.Store(uint64(confirmed))
	m.confirmedLSN.Store(uint64(confirmed))
}

func (m *Metrics) received(lsn event.LSN) {
	if uint64(lsn) > m.receivedLSN.Load() { // one writer: the goroutine of the stream
		m.receivedLSN.Store(uint64(lsn))
	}
}

// handedOver is called after the Receiver's HandOver.
func (m *Metrics) handedOver() { m.handedLSN.Store(m.receivedLSN.Load()) }

func (m *Metrics) confirmed(lsn event.LSN) { m.confirmedLSN.Store(uint64(lsn)) }
