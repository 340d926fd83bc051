package relay_test

import (
	"slices"
	"testing"

	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-130: the server knows of a confirm, and walpost.subscribers of a position, up to a second after walpost.slots and the marks.
// A copy of the slot from before, and the positions from before, are what a relay leaves behind that is killed then.
func TestRelay_goesOnFromWhatIsRecordedForTheWholeSlot(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	streaming(t, options(t, db, subscribertest.Recording())).shutDown()
	before := db.Name + "_before"
	db.Exec(`SELECT pg_copy_logical_replication_slot($1, $2)`, db.Name, before)
	db.Exec(`CREATE TABLE positions AS SELECT * FROM walpost.subscribers`)

	first := subscribertest.Recording()
	_, kill := startMortal(t, db, options(t, db, first))
	insertAll(db, "a", numbered("delivered", 10))
	first.AwaitDelivered(t, 10)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	kill()
	db.Exec(`SELECT pg_drop_replication_slot($1)`, db.Name)
	db.Exec(`SELECT pg_copy_logical_replication_slot($2, $1)`, db.Name, before)
	db.Exec(`SELECT pg_drop_replication_slot($1)`, before)
	db.Exec(`
		UPDATE walpost.subscribers s SET secured_commit = p.secured_commit, secured_ordinal = p.secured_ordinal,
		    finished_commit = p.finished_commit, finished_ordinal = p.finished_ordinal
		FROM positions p WHERE s.slot = p.slot AND s.name = p.name`)

	next := subscribertest.Recording()
	streaming(t, options(t, db, next))
	insert(db, "later", "a")
	eventually(t, "the new event", func() bool { return slices.Contains(next.Delivered(), "later") })
	if got := next.Delivered(); !slices.Equal(got, []string{"later"}) {
		t.Errorf("delivered %v, want only what is later than the record", got)
	}
}
