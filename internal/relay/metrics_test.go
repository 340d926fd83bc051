package relay_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// F-64: no series per key, id, type or error text.
func TestRelay_showsTheSameSeriesWhateverTheEventsSay(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(func(_ context.Context, d subscriber.Delivery) error {
		switch {
		case d.ID[len(d.ID)-1] == '7':
			return subscriber.Permanent(fmt.Errorf("%s can never be taken", d.ID))
		case d.Attempt == 1 && d.ID[len(d.ID)-1] == '5':
			return fmt.Errorf("%s cannot be taken now", d.ID)
		}
		return nil
	})
	o := options(t, db, sub)
	streaming(t, o)
	before := series(t, o)
	const events = 1500
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e' || n, 'type-' || n, 'key-' || n, '{}' FROM generate_series(1, $1::int) n`, events)
	eventually(t, "all are marked or dead", func() bool { return unmarked(db) == events/10 && len(dead(db)) == events/10 })
	after := series(t, o)
	for s := range after {
		if _, ok := before[s]; !ok {
			t.Errorf("new series %s{%s}", s.name, s.labels)
		}
	}
	if got := after[sample{"walpost_events_received_total", "source=lessons"}]; got != events {
		t.Errorf("%v events received, want %d", got, events)
	}
}

// F-62: figures of the lag are neither negative nor near 2^64, while WAL is written and clocks differ.
func TestRelay_neverShowsANegativeOrHugeLag(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	blocked := subscribertest.Blocking()
	o := options(t, db, blocked)
	r := streaming(t, o)
	db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, created_at) VALUES ('future', 'lesson.completed', 'a', '{}', now() + interval '10 minutes')`)
	blocked.AwaitCalls(t, 1)
	check := func() {
		t.Helper()
		for s, value := range series(t, o) {
			if value < 0 && s.name != "walpost_slot_safe_wal_bytes" || value > 1<<50 && s.name != "walpost_slot_seconds_until_lost" {
				t.Errorf("%s{%s} is %v", s.name, s.labels, value)
			}
		}
		if got := metric(t, o, "walpost_lag_seconds", "subscriber=sub"); got > 60 {
			t.Errorf("an event of this test is %v seconds late", got)
		}
	}
	observed := metric(t, o, "walpost_slot_lag_bytes", "")
	eventually(t, "new figures of the slot", func() bool {
		junk(db, 1)
		check()
		return metric(t, o, "walpost_slot_lag_bytes", "") != observed
	})
	blocked.Release()
	eventually(t, "no lag", func() bool { check(); return metric(t, o, "walpost_lag_seconds", "subscriber=sub") == 0 })
	if p := r.Progress(); p.Received < p.Confirmed {
		t.Errorf("received %v, confirmed %v", p.Received, p.Confirmed)
	}
}

// Figures do not vanish while the relay is idle, and they are there before the first event.
func TestRelay_showsItsSeriesFromTheStart(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	o := options(t, db, subscribertest.Recording())
	streaming(t, o)
	shown := series(t, o)
	var missing []string
	for _, s := range []sample{
		{"walpost_slot_lag_bytes", ""}, {"walpost_slot_retained_bytes", ""}, {"walpost_slot_safe_wal_bytes", ""}, {"walpost_slot_active", ""},
		{"walpost_slot_wal_status", "status=lost"}, {"walpost_received_lsn", ""}, {"walpost_confirmed_lsn", ""},
		{"walpost_lag_seconds", "subscriber=sub"}, {"walpost_events_received_total", "source=lessons"},
		{"walpost_deliveries_total", "outcome=delivered,subscriber=sub"}, {"walpost_deliveries_total", "outcome=failed,subscriber=sub"},
		{"walpost_deliveries_total", "outcome=dead,subscriber=sub"}, {"walpost_handle_seconds", "subscriber=sub"},
		{"walpost_commit_to_ack_seconds", "subscriber=sub"}, {"walpost_open_events", "subscriber=sub"}, {"walpost_open_bytes", ""},
		{"walpost_owed", "state=dead,subscriber=sub"}, {"walpost_owed", "state=waiting,subscriber=sub"},
		{"walpost_marked_elsewhere_total", ""}, {"walpost_rows_replaced_total", ""}, {"walpost_rows_gone_total", "source=lessons"}, {"walpost_reconnects_total", ""},
		{"walpost_lease_doubts_total", ""},
	} {
		if _, ok := shown[s]; !ok {
			missing = append(missing, s.name+"{"+s.labels+"}")
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("missing %v", missing)
	}
}
