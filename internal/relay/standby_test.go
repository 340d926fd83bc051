package relay_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// failoverSlots is the first version that copies slots to standbys.
const failoverSlots = 17

func major(db *testdb.DB) int64 {
	return db.Int(`SELECT current_setting('server_version_num')::int / 10000`)
}

// F-07, F-48: the primary dies and a standby that streamed from it is promoted. The relay is given both addresses
// and follows by itself. From 17 on the standby has a copy of the slot, a little behind, which goes on; before, it
// has none.
func TestRelay_followsToAStandbyThatIsPromoted(t *testing.T) {
	t.Parallel()
	primary := testdb.NewServer(t, nil)
	db := testdb.On(t, primary)
	settings := map[string]string{"hot_standby_feedback": "on", "primary_slot_name": "standby", "wal_receiver_status_interval": "1s"}
	kind := "again"
	if major(db) >= failoverSlots {
		kind = "kept"
	}
	db.Exec(`SELECT pg_create_physical_replication_slot('standby')`)
	standby := testdb.NewStandby(t, primary, settings)
	db.Use(withHost(t, db.DSN, address(primary)+","+address(standby)) + "&target_session_attrs=read-write")
	reader := openPool(t, withHost(t, db.DSN, address(standby))+"&target_session_attrs=any", 2)
	onStandby := func(sql string, args ...any) bool {
		var so bool
		err := reader.QueryRow(t.Context(), sql, args...).Scan(&so)
		return err == nil && so
	}

	sub := keeping(nil)
	o := options(t, db, sub)
	r := streaming(t, o)
	var want []string
	write := func(id string) {
		insert(db, id, "a")
		want = append(want, id)
	}
	write("first")
	sub.await(t, "first")
	if major(db) >= failoverSlots {
		// Only now: the worker that copies slots looks less and less often while there is none. The copy is usable
		// once the standby has caught up with the slot, which moves with what is confirmed.
		conn := session(t, withHost(t, db.DSN, address(standby))+"&target_session_attrs=any")
		for _, sql := range []string{`ALTER SYSTEM SET sync_replication_slots = on`, `SELECT pg_reload_conf()`} {
			mustExec(t, conn, sql)
		}
		n := 0
		eventually(t, "the standby has the slot", func() bool {
			if n++; n%20 == 0 {
				write("synced-" + strconv.Itoa(n))
				db.Exec(`SELECT pg_log_standby_snapshot()`)
			}
			return onStandby(`SELECT to_jsonb(s)->>'synced' = 'true' AND NOT temporary FROM pg_replication_slots s WHERE slot_name = $1`, o.Slot)
		})
	}
	for _, id := range numbered("before", 20) {
		write(id)
	}
	end := db.Text(`SELECT pg_current_wal_lsn()::text`)
	eventually(t, "the standby has it all", func() bool { return onStandby(`SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, end) })

	kill(t, primary)
	if !onStandby(`SELECT pg_promote()`) {
		t.Fatal("the standby is not promoted")
	}
	db.Pool.Reset()
	for _, id := range numbered("after", 20) {
		write(id)
	}
	for _, id := range want {
		sub.await(t, id)
	}
	eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
	wantRepairs(t, db, o, kind)
	r.shutDown()
	if got := firsts(ids(sub.Calls())); !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	if got := stillToCome(db); got != 0 {
		t.Errorf("after a clean stop the server would send %d rows again", got)
	}
}

func address(server *pgserver.Server) string { return fmt.Sprintf("127.0.0.1:%d", server.Port()) }

// F-69: a server that sends no event before a standby has it, and the standby is away. The relay says so, stays
// connected, and goes on when the server does.
func TestRelay_saysThatTheServerWaitsForAStandby(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	sub := subscribertest.Recording()
	o := options(t, db, sub)
	r := streaming(t, o)
	if major(db) < failoverSlots { // there is no such setting
		insert(db, "e", "a")
		sub.AwaitDelivered(t, 1)
		return
	}
	db.Exec(`SELECT pg_create_physical_replication_slot('away', true)`)
	db.Exec(`ALTER SYSTEM SET synchronized_standby_slots = 'away'`)
	db.Exec(`SELECT pg_reload_conf()`)
	eventually(t, "the server has read its configuration", func() bool { return db.Text(`SHOW synchronized_standby_slots`) == "away" })
	insert(db, "e", "a")
	eventually(t, "it says so", func() bool {
		h := r.Health()
		return !h.Ready && h.State == relay.Streaming && len(h.Problems) == 1 && strings.Contains(h.Problems[0], "synchronized_standby_slots (away)")
	})
	if got := sub.Calls(); len(got) != 0 {
		t.Errorf("delivered %v, before the standby has it", ids(got))
	}
	pid := db.Int(`SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, o.Slot)
	db.Exec(`ALTER SYSTEM RESET synchronized_standby_slots`)
	db.Exec(`SELECT pg_reload_conf()`)
	sub.AwaitDelivered(t, 1)
	eventually(t, "it is well", func() bool { return r.Health().Ready })
	if got := db.Int(`SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, o.Slot); got != pid {
		t.Errorf("the connection was made again: pid %d became %d", pid, got)
	}
}
