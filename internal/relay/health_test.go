package relay_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
)

// S-446: who is away, a slot that the server gives up within the hour, and WAL over the budget that an old transaction
// holds are named with their bytes, and none of it makes the relay unready.
func TestHealth_namesWhoHoldsWALAndHowMuch(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"max_slot_wal_keep_size": "1GB"}))
	dead := newChanging("dead", away)
	o := owing(options(t, db, dead))
	o.WALBudget = 4 << 20
	r := streaming(t, o)
	says := func(pattern string) func() bool {
		return func() bool {
			h := r.Health()
			return h.Ready && regexp.MustCompile(pattern).MatchString(strings.Join(h.Problems, "\n"))
		}
	}
	insertAll(db, "a", numbered("e", 10))
	eventually(t, "who is away", says(`subscriber "dead" is away, .* it holds [0-9.]+ [KM]?i?B of WAL; last error: .*the receiver is away`))

	// The rate of the WAL needs a look at the slot before it is written.
	eventually(t, "a look at the slot", func() bool { return series(t, o)[sample{"walpost_slot_present", ""}] == 1 })
	old := session(t, db.DSN)
	mustExec(t, old, `BEGIN; INSERT INTO public.outbox (event_id, event_type, partition_key, payload) VALUES ('old', 'lesson.completed', 'b', '{}')`)
	db.Exec(`SELECT pg_catalog.pg_logical_emit_message(false, 'junk', repeat('x', 1048576)) FROM generate_series(1, 128)`)
	eventually(t, "a slot that is soon lost", says(`gives slot .* up when it has written [0-9.]+ MiB more WAL, in [0-9ms]+ if`))
	eventually(t, "what is kept over the budget", says(`keeps [0-9.]+ MiB of WAL for slot .*, more than wal_budget \(4 MiB\): .* an old transaction`))

	mustExec(t, old, `COMMIT`)
	dead.behave(taking)
	db.Exec(`ALTER SYSTEM SET max_slot_wal_keep_size = -1`)
	db.Exec(`SELECT pg_reload_conf()`)
	for n := 0; ; n++ { // the server lets go of what it keeps when something is confirmed after a checkpoint
		db.Exec(`CHECKPOINT`)
		id := fmt.Sprintf("after-%d", n)
		insert(db, id, "c")
		dead.await(t, id)
		if h := r.Health(); h.Ready && len(h.Problems) == 0 {
			break
		} else if n == 60 {
			t.Fatalf("health %+v", h)
		}
		time.Sleep(time.Second) // the watch looks at the slot every 5 s
	}
}
