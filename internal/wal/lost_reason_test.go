package wal

import (
	"strings"
	"testing"
)

// S-180: each reason for which a server gives a slot up, in words; one that a later version brings keeps its name.
func TestSlot_saysWhyItIsLost(t *testing.T) {
	for _, test := range []struct {
		slot Slot
		want string
	}{
		{Slot{WALStatus: "lost"}, "max_slot_wal_keep_size"},
		{Slot{WALStatus: "lost", Invalidation: "wal_removed"}, "max_slot_wal_keep_size"},
		{Slot{WALStatus: "lost", conflicting: true}, "recovery on this standby"},
		{Slot{Invalidation: "rows_removed"}, "without hot_standby_feedback"},
		{Slot{Invalidation: "wal_level_insufficient"}, "no longer logical"},
		{Slot{Invalidation: "idle_timeout"}, "idle_replication_slot_timeout"},
		{Slot{Invalidation: "something_new"}, "something_new"},
	} {
		if got := test.slot.LostReason(); !test.slot.Lost() || !strings.Contains(got, test.want) {
			t.Errorf("%+v: %q, want %q in it", test.slot, got, test.want)
		}
	}
}
