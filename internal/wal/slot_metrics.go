package wal

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// walStatuses are all values of pg_replication_slots.wal_status.
var walStatuses = []string{"reserved", "extended", "unreserved", "lost"}

// slotCollector shows what the server last said about the slot, and nothing as long as it has not answered: a figure from
// before an outage would look like one of now. Every relay asks, whether it leads or not.
type slotCollector struct {
	mu     sync.Mutex
	known  bool     // the server has answered; guarded by mu
	slot   *Slot    // nil: there is none of that name; guarded by mu
	unread []Unread // guarded by mu
	rate   walRate  // guarded by mu
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	presentDesc    = describe("walpost_slot_present", "1 if the server has the slot, 0 if it has none of that name.")
	lagDesc        = describe("walpost_slot_lag_bytes", "WAL between the slot's confirmed position and the end, from one query.")
	retainedDesc   = describe("walpost_slot_retained_bytes", "WAL that the server keeps for the slot.")
	safeDesc       = describe("walpost_slot_safe_wal_bytes", "WAL that may still be written before the slot is lost; -1 without a limit.")
	timeLeftDesc   = describe("walpost_slot_seconds_until_lost", "Time until the slot is lost if the server goes on writing WAL as in the worst of the last minute, quarter of an hour and six hours; +Inf without a limit.")
	catalogAgeDesc = describe("walpost_slot_catalog_xmin_age", "Transactions since the oldest whose dead rows in the system catalogue the slot keeps from vacuum.")
	spilledDesc    = describe("walpost_slot_spilled_bytes", "Bytes that the server has written to its disk to decode large transactions for the slot.")
	activeDesc     = describe("walpost_slot_active", "1 while a session reads the slot.")
	statusDesc     = describe("walpost_slot_wal_status", "1 for the slot's wal_status, 0 for the others.", "status")
	unreadDesc     = describe("walpost_unread_slot_retained_bytes", "WAL that the server keeps for other slots of walpost in this database that no one reads, such as one that a new name in slot: has left behind.", "slot")
)

// Describe implements prometheus.Collector.
func (c *slotCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{presentDesc, lagDesc, retainedDesc, safeDesc, timeLeftDesc, catalogAgeDesc, spilledDesc, activeDesc, statusDesc, unreadDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *slotCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	slot, present := c.slot, 1.0
	if slot == nil {
		slot, present = &Slot{}, 0
	}
	gauge(presentDesc, present)
	gauge(lagDesc, float64(max(0, slot.LagBytes)))
	gauge(retainedDesc, float64(max(0, slot.RetainedBytes)))
	gauge(catalogAgeDesc, float64(max(0, slot.CatalogAge)))
	gauge(spilledDesc, float64(slot.SpilledBytes))
	safe := -1.0
	if slot.SafeBytes != nil {
		safe = float64(max(0, *slot.SafeBytes))
	}
	gauge(safeDesc, safe)
	gauge(timeLeftDesc, secondsLeft(slot.SafeBytes, c.rate.worst()))
	gauge(activeDesc, oneIf(slot.Active))
	for _, status := range walStatuses {
		gauge(statusDesc, oneIf(slot.WALStatus == status), status)
	}
	for _, other := range c.unread {
		gauge(unreadDesc, float64(max(0, other.RetainedBytes)), other.Name)
	}
}

func oneIf(so bool) float64 {
	if so {
		return 1
	}
	return 0
}

// Observe shows what the server said at a moment about the slot, nil if there is none, and about others that no one reads.
func (m *Metrics) Observe(at time.Time, slot *Slot, unread []Unread) {
	m.slots.mu.Lock()
	defer m.slots.mu.Unlock()
	m.slots.known, m.slots.slot, m.slots.unread = true, slot, unread
	if slot != nil {
		m.slots.rate.add(at, slot.End)
	}
}

// Kept is how much WAL the server keeps for the slot, how much it may still write before it gives the slot up, and how
// long that takes at the present rate: 0, -1 and any time where it does not answer, has no such slot or no limit.
func (m *Metrics) Kept() (kept, safe int64, left time.Duration) {
	m.slots.mu.Lock()
	defer m.slots.mu.Unlock()
	slot := m.slots.slot
	if !m.slots.known || slot == nil {
		return 0, -1, 0
	}
	if slot.SafeBytes == nil {
		return slot.RetainedBytes, -1, 0
	}
	const forever = 1 << 31 // seconds
	seconds := min(secondsLeft(slot.SafeBytes, m.slots.rate.worst()), forever)
	return slot.RetainedBytes, max(0, *slot.SafeBytes), time.Duration(seconds * float64(time.Second))
}

// Unobserved shows nothing about the slot: the server does not answer.
func (m *Metrics) Unobserved() {
	m.slots.mu.Lock()
	defer m.slots.mu.Unlock()
	m.slots.known = false
}
