package relay_test

import (
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-52: the repair's note cannot be written. It is done once all the same, and the failed note is counted.
func TestRepair_goesOnWithoutItsNote(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first := keeping(nil)
	r := streaming(t, options(t, db, first))
	insert(db, "before", "a")
	eventually(t, "the slot has passed it", passed(t, db, first.await(t, "before")))
	r.shutDown()
	db.Exec(`INSERT INTO walpost.audit (id, slot, who, action) OVERRIDING SYSTEM VALUE SELECT n, $1, 'me', 'pause' FROM generate_series(1, 100) n`, db.Name)
	db.Exec(dropSlot, db.Name)
	insert(db, "away", "a")

	second := keeping(nil)
	o := options(t, db, second)
	r = streaming(t, o)
	second.await(t, "away")
	if got := metric(t, o, "walpost_repairs_total", "kind=again"); got != 1 {
		t.Errorf("%v repairs, want 1", got)
	}
	if got := metric(t, o, "walpost_audit_errors_total", ""); got != 1 {
		t.Errorf("%v notes failed, want 1", got)
	}
	r.shutDown()
}
