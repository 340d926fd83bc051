package relay_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/lease"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-57: replication_url leads somewhere else than database_url. The relay says so in words, with a lease and
// without, leaves nothing there, and goes on when it is corrected.
func TestRelay_saysThatReplicationURLLeadsElsewhere(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	neighbour := testdb.On(t, server)
	other := testdb.On(t, testdb.NewForeignServer(t, nil))
	standby := testdb.NewStandby(t, server, map[string]string{"hot_standby_feedback": "on"})
	for name, elsewhere := range map[string]struct{ dsn, says string }{
		"standby":          {withHost(t, db.DSN, address(standby)), "replication_url to a standby, database_url to its primary"},
		"another database": {neighbour.DSN, "replication_url to database \"" + neighbour.Name + "\""},
		"another server":   {other.DSN, "with system id"},
		// S-203
		"no server": {withHost(t, db.DSN, "127.0.0.1:1"), "replication_url: connect to postgres at 127.0.0.1:1"},
	} {
		for _, single := range []bool{true, false} {
			o := options(t, db, keeping(nil))
			o.ReplicationURL = elsewhere.dsn
			if !single {
				o.Lease = lease.New(lease.Options{URL: elsewhere.dsn, Slot: o.Slot, Log: slog.New(slog.DiscardHandler)})
			}
			r := start(t, o)
			eventually(t, name+": it says so", func() bool { return strings.Contains(strings.Join(r.Health().Problems, "; "), elsewhere.says) })
			if r.Health().Ready {
				t.Errorf("%s: it is ready", name)
			}
			r.shutDown()
		}
	}
	for _, where := range []*testdb.DB{db, other} {
		if got := where.Texts(`SELECT slot_name::text FROM pg_replication_slots`); len(got) != 0 {
			t.Errorf("slots %v are left", got)
		}
	}
	reader := openPool(t, withHost(t, db.DSN, address(standby)), 1)
	var left int
	if err := reader.QueryRow(t.Context(), `SELECT count(*) FROM pg_replication_slots`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d slots are left on the standby, %v", left, err)
	}
	sub := keeping(nil)
	insert(db, "first", "a")
	r := streaming(t, options(t, db, sub))
	sub.await(t, "first")
	r.shutDown()
}
