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

	lag, retained, safe, active, catalogAge, spilled prometheus.Gauge
	status                                           *prometheus.GaugeVec
}

// walStatuses are all values of pg_replication_slots.wal_status.
var walStatuses = []string{"reserved", "extended", "unreserved", "lost"}

// NewMetrics registers the metrics of the slot.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	m := &Metrics{
		lag:        gauge("walpost_slot_lag_bytes", "WAL between the slot's confirmed position and the end, from one query."),
		retained:   gauge("walpost_slot_retained_bytes", "WAL that the server keeps for the slot."),
		safe:       gauge("walpost_slot_safe_wal_bytes", "WAL that may still be written before the slot is lost; -1 without a limit."),
		catalogAge: gauge("walpost_slot_catalog_xmin_age", "Transactions since the oldest whose dead rows in the system catalogue the slot keeps from vacuum."),
		spilled:    gauge("walpost_slot_spilled_bytes", "Bytes that the server has written to its disk to decode large transactions for the slot."),
		active:     gauge("walpost_slot_active", "1 while a session reads the slot."),
		Reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walpost_reconnects_total", Help: "Replication connections that broke and were made again.",
		}),
		status: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "walpost_slot_wal_status", Help: "1 for the slot's wal_status, 0 for the others.",
		}, []string{"status"}),
	}
	lsn := func(name, help string, value *atomic.Uint64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return float64(value.Load()) }))
	}
	lsn("walpost_received_lsn", "Highest WAL position received, as a number of bytes.", &m.receivedLSN)
	lsn("walpost_confirmed_lsn", "WAL position confirmed to the server, as a number of bytes.", &m.confirmedLSN)
	reg.MustRegister(m.Reconnects, m.status)
	for _, status := range walStatuses { // there before the first look at the slot
		m.status.WithLabelValues(status)
	}
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

// Observe shows what the server says about the slot. What it does not say stays as it was.
func (m *Metrics) Observe(slot Slot) {
	m.lag.Set(float64(max(0, slot.LagBytes)))
	m.retained.Set(float64(max(0, slot.RetainedBytes)))
	m.catalogAge.Set(float64(max(0, slot.CatalogAge)))
	m.spilled.Set(float64(slot.SpilledBytes))
	m.safe.Set(-1)
	if slot.SafeBytes != nil {
		m.safe.Set(float64(max(0, *slot.SafeBytes)))
	}
	m.active.Set(0)
	if slot.Active {
		m.active.Set(1)
	}
	for _, status := range walStatuses {
		m.status.WithLabelValues(status).Set(0)
	}
	if slot.WALStatus != "" {
		m.status.WithLabelValues(slot.WALStatus).Set(1)
	}
}
