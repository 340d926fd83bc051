package admin_test

import (
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-190: a command without the relay's configuration knows the default source alone. What it adds is recorded under the name
// that the relay has for the table, or refused with the names that the slot has.
func TestAdd_recordsTheSourceThatTheRelayKnows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ table, want string }{
		"the table has another name there": {"outbox", ""},
		"the slot has another table":       {"elsewhere", `"lessons" (public.outbox), which is no source of slot "walpost": the slot has "courses"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('e', 't', '{}')`)
			db.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, state, confirmed, fingerprint) VALUES ('walpost', '7', 1, 'ready', '0/1000',
				jsonb_build_object('sources', jsonb_build_array(jsonb_build_object('name', 'courses', 'schema', 'public', 'table', $1::text))))`, test.table)
			db.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ('walpost', 'analytics')`)
			source := &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox", Mark: true, Ours: true}
			service := admin.New(db.Pinned, "walpost", []*outbox.Source{source}, []string{"analytics"})
			added, err := service.Add(t.Context(), "analytics", []string{"e"}, lane.StateWaiting, "test", "lost")
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %s", err, test.want)
				}
				if got := debttest.Rows(db); got != 0 {
					t.Errorf("%d deliveries are owed, want none", got)
				}
				return
			}
			if err != nil || added.Deliveries != 1 {
				t.Fatalf("added %+v, %v", added, err)
			}
			if got := db.Text(`SELECT source FROM walpost.owed`); got != "courses" {
				t.Errorf("recorded of source %q, want courses", got)
			}
		})
	}
}
