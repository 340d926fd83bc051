package relay_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// leaderOnly are the gauges that speak of a leadership.
var leaderOnly = []string{
	"walpost_breaker_open", "walpost_confirmed_lsn", "walpost_holding_wal_bytes", "walpost_in_debt", "walpost_keys_in_debt",
	"walpost_lag_seconds", "walpost_open_bytes", "walpost_open_events", "walpost_overdue_handlers", "walpost_owed",
	"walpost_received_lsn", "walpost_stream_silent_seconds", "walpost_wal_budget_bytes",
}

// S-350: a relay that led goes on to show what it held then, and a lag that grows for ever.
func TestRelay_showsWhatALeaderHoldsOnlyWhileItLeads(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	network, url := newLine(t, db.DSN)
	blocked, taking := subscribertest.Blocking(), subscribertest.Recording()
	first := withLease(t, options(t, db, blocked), url)
	second := withLease(t, options(t, db, taking), db.DSN)
	second.Registry = prometheus.NewRegistry()
	shows := func(o relay.Options) (names []string) {
		for s := range series(t, o) {
			if slices.Contains(leaderOnly, s.name) && !slices.Contains(names, s.name) {
				names = append(names, s.name)
			}
		}
		slices.Sort(names)
		return names
	}
	streaming(t, first)
	insert(db, "e", "a")
	blocked.AwaitCalls(t, 1)
	eventually(t, "all gauges of the leader", func() bool { return slices.Equal(shows(first), leaderOnly) })
	if got := metric(t, first, "walpost_open_events", "subscriber=sub"); got != 1 {
		t.Errorf("%v open events of the leader, want 1", got)
	}
	standby := start(t, second)
	eventually(t, "the other one stands by", func() bool { return standby.Health().State == relay.Waiting })
	if got := shows(second); len(got) > 0 {
		t.Errorf("a standby shows %s", strings.Join(got, ", "))
	}

	network.deafen()
	taking.AwaitDelivered(t, 1)
	eventually(t, "all gauges of the one that took over", func() bool { return slices.Equal(shows(second), leaderOnly) })
	if got := shows(first); len(got) > 0 {
		t.Errorf("the one that led shows %s", strings.Join(got, ", "))
	}
	if got := metric(t, first, "walpost_leader", ""); got != 0 {
		t.Errorf("walpost_leader is %v where it led before", got)
	}
	blocked.Release()
	network.restart()
}
