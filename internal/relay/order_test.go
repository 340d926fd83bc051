package relay_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-28: the order of the rows of a transaction is their own where the table has none.
func TestRepair_keepsTheOrderOfATransactionsRows(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`DROP TABLE outbox`)
	db.Exec(`CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), event_type text, partition_key text, payload jsonb,
		created_at timestamptz DEFAULT now(), published_at timestamptz)`)
	rows := func(key string) {
		db.Exec(`DO $$ BEGIN FOR n IN 1..3 LOOP
			INSERT INTO public.outbox (event_type, partition_key, payload) VALUES (n::text, '` + key + `', '{}');
		END LOOP; END $$`)
	}
	sub := newChanging("sub", taking)
	o := options(t, db, sub)
	for _, first := range []bool{true, false} { // the first start, and a repair
		for n := range 6 {
			rows(fmt.Sprint(first, n))
		}
		o.Registry = prometheus.NewRegistry()
		if !first {
			db.Exec(dropSlot, o.Slot)
		}
		r := streaming(t, o)
		eventually(t, "every row is marked", func() bool { return unmarked(db) == 0 })
		r.shutDown()
	}
	of := make(map[string]string)
	for _, call := range sub.events() {
		of[call.Key] += call.Type
	}
	if len(of) != 12 {
		t.Errorf("%d keys, want 12", len(of))
	}
	for key, order := range of {
		if order != "123" {
			t.Errorf("key %s: the rows of its transaction came as %s", key, order)
		}
	}
}
