package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/testdb"
)

// pooled is a relay whose pool goes through a line, as through a pooler; its lease and stream do not.
func pooled(t *testing.T, db *testdb.DB, o relay.Options) (relay.Options, *line) {
	t.Helper()
	o = withLease(t, o, db.DSN)
	l, dsn := newLine(t, db.DSN)
	pool, err := postgres.Open(t.Context(), dsn, o.Lease.Application())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o.Pool = pool
	return o, l
}

// S-64: the pooler is dead, the lease and the stream live: nothing can be recorded or confirmed. If another relay
// can work, that one leads.
func TestRelay_givesTheLeadToOneThatCanWork(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]struct {
		begin func(*line)
		alone bool // at first there is no other relay
	}{
		"the pooler refuses":  {(*line).end, true},
		"the pooler swallows": {(*line).deafen, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			firstSub, secondSub := keeping(nil), keeping(nil)
			first, pooler := pooled(t, db, options(t, db, firstSub))
			leader := streaming(t, first)
			insertAll(db, "a", numbered("before", 3))
			firstSub.AwaitDelivered(t, 3)
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			second := withLease(t, options(t, db, secondSub), db.DSN)
			var standby *running
			if !trouble.alone {
				standby = start(t, second)
				eventually(t, "the other one stands by", func() bool { return standby.Health().State == relay.Waiting })
			}

			trouble.begin(pooler)
			begun := time.Now()
			insertAll(db, "a", numbered("after", 3))
			eventually(t, "it is not ready and says why", func() bool {
				h := leader.Health()
				return !h.Ready && strings.Contains(fmt.Sprint(h.Problems), "have not reached Postgres for")
			})
			if trouble.alone {
				eventually(t, "the time after which it would give up", func() bool { return time.Since(begun) > 17*time.Second })
				if !first.Lease.Valid() {
					t.Fatal("it has given up the lead although no other relay is there")
				}
				standby = start(t, second)
			}
			eventually(t, "the other one leads", second.Lease.Valid)
			if first.Lease.Valid() {
				t.Error("both hold the lease")
			}
			standby.awaitStreaming()
			t.Logf("the other one streams after %v", time.Since(begun))
			insertAll(db, "a", numbered("other", 3))
			want := slices.Concat(numbered("before", 3), numbered("after", 3), numbered("other", 3))
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			if got := firsts(append(ids(firstSub.Calls()), ids(secondSub.Calls())...)); !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
			if trouble.alone {
				return
			}
			pooler.restart()
			eventually(t, "the first stands by again", func() bool {
				h := leader.Health()
				return h.Ready && h.State == relay.Waiting
			})
			standby.shutDown()
			eventually(t, "the first leads again", first.Lease.Valid)
			insert(db, "again", "a")
			firstSub.await(t, "again")
		})
	}
}

// What every relay would meet is no reason to hand the lead over: each handover delivers the window again.
func TestRelay_keepsTheLeadWhileItWaitsForALock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	first := withLease(t, options(t, db, sub), db.DSN)
	streaming(t, first)
	start(t, withLease(t, options(t, db, sub), db.DSN))
	hold := session(t, db.DSN)
	mustExec(t, hold, `BEGIN; LOCK TABLE walpost.slots IN EXCLUSIVE MODE`)
	insertAll(db, "a", numbered("e", 3))
	begun := time.Now()
	eventually(t, "the time after which it would give up", func() bool { return time.Since(begun) > 18*time.Second })
	if !first.Lease.Valid() {
		t.Error("it has given up the lead")
	}
	mustExec(t, hold, `COMMIT`)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	once(t, sub, numbered("e", 3))
}
