package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-172: the figures of the slot are those of the database, also of a relay that waits, while the slot is being made, and
// after someone has dropped it; there are none while Postgres does not answer.
func TestRelay_showsTheSlotAsItIsWhetherItLeadsOrNot(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	// A transaction with an id keeps the slot from being made.
	held := session(t, db.DSN)
	mustExec(t, held, `BEGIN; SELECT pg_catalog.pg_current_xact_id()`)
	starting := options(t, db, subscribertest.Recording())
	start(t, starting)
	eventually(t, "the slot of a relay that starts", func() bool { return series(t, starting)[sample{"walpost_slot_present", ""}] == 1 })
	mustExec(t, held, `COMMIT`)
	leading := starting
	eventually(t, "a relay that reads it", func() bool { return series(t, leading)[sample{"walpost_slot_active", ""}] == 1 })

	line, dsn := newLine(t, db.DSN)
	waiting := options(t, db, subscribertest.Recording())
	waiting.Pool, waiting.Registry = openPool(t, dsn, 4), prometheus.NewRegistry()
	waits := start(t, waiting)
	junk(db, 3)
	eventually(t, "the same figures of a relay that waits", func() bool {
		shown := series(t, waiting)
		return waits.Health().State == "waiting" && shown[sample{"walpost_slot_active", ""}] == 1 && shown[sample{"walpost_slot_retained_bytes", ""}] > 0 &&
			shown[sample{"walpost_slot_wal_status", "status=reserved"}] == 1
	})
	line.end()
	eventually(t, "no figures while Postgres does not answer", func() bool {
		_, shown := series(t, waiting)[sample{"walpost_slot_present", ""}]
		return !shown
	})
}

// S-172
func TestRelay_saysThatTheSlotIsGone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	o := options(t, db, subscribertest.Recording())
	o.StopOnLostSlot = true
	streaming(t, o).shutDown()
	db.Exec(`SELECT pg_drop_replication_slot($1)`, db.Name)
	// Its record is locked, so the relay does not get as far as to make the slot again.
	o = options(t, db, subscribertest.Recording())
	o.Registry = prometheus.NewRegistry()
	mustExec(t, session(t, db.DSN), `BEGIN; LOCK TABLE walpost.leader IN ACCESS EXCLUSIVE MODE`)
	start(t, o)
	eventually(t, "a slot that is not there", func() bool {
		present, shown := series(t, o)[sample{"walpost_slot_present", ""}]
		return shown && present == 0 && series(t, o)[sample{"walpost_slot_safe_wal_bytes", ""}] == -1
	})
}

// S-173: a new name in slot: leaves the old slot behind, and the server keeps WAL for it for ever.
func TestRelay_namesTheSlotOfAFormerName(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	o := options(t, db, subscribertest.Recording())
	o.Sources[0].Mark = false
	streaming(t, o).shutDown()
	o, log := logged(t, options(t, db, subscribertest.Recording()))
	o.Slot, o.Registry = db.Name+"_2", prometheus.NewRegistry()
	o.Sources[0].Mark = false
	t.Cleanup(func() {
		db.Exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, o.Slot)
	})
	r := streaming(t, o)
	junk(db, 3)
	eventually(t, "the old slot's bytes", func() bool {
		return series(t, o)[sample{"walpost_unread_slot_retained_bytes", "slot=" + db.Name}] > 1<<20
	})
	if n := strings.Count(log.String(), "another slot of walpost in this database has no reader"); n != 1 {
		t.Errorf("named %d times in the log, want once", n)
	}
	r.shutDown()
}

// S-175: marks that wait for a lock say so.
func TestRelay_saysWhoHoldsALockThatItWaitsFor(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	o, log := logged(t, options(t, db, subscribertest.Recording()))
	r := streaming(t, o)
	holder := session(t, db.DSN)
	// From the commit on nothing can be marked: a lock that the next transaction takes at once, in the same message.
	mustExec(t, holder, `INSERT INTO outbox (event_id, event_type, payload) VALUES ('e', 'lesson.completed', '{}'); COMMIT; BEGIN; LOCK TABLE outbox IN EXCLUSIVE MODE`)
	held := fmt.Sprintf("it is held by pid %d", holder.PgConn().PID())
	eventually(t, "a problem that names the session", func() bool {
		return slices.ContainsFunc(r.Health().Problems, func(p string) bool {
			return strings.Contains(p, held) && strings.Contains(p, "LOCK TABLE outbox")
		})
	})
	if !strings.Contains(log.String(), "a statement waits for a lock") {
		t.Errorf("the log says\n%s", log)
	}
	mustExec(t, holder, `ROLLBACK`)
	eventually(t, "no such problem any more", func() bool { return len(r.Health().Problems) == 0 })
}
