package relay_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// promote is a failover to a server with the same data.
func promote(t *testing.T, server *pgserver.Server, db *testdb.DB, slots bool) {
	t.Helper()
	testdb.Promote(t, server, slots)
	db.Pool.Reset()
}

func kill(t *testing.T, server *pgserver.Server) {
	t.Helper()
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// F-07: after a failover the new primary has no slot, or one that was copied to it. The relay streams before
// and after.
func TestRelay_repairsAfterAFailover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slots bool
		kind  string
	}{
		"without a slot": {false, "again"},
		"with a slot":    {true, "kept"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testdb.NewServer(t, nil)
			db := testdb.On(t, server)
			sub := keeping(nil)
			o := options(t, db, sub)
			r := streaming(t, o)
			insertAll(db, "a", numbered("before", 20))
			sub.AwaitDelivered(t, 20)
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			insertAll(db, "a", numbered("last", 5))
			kill(t, server)
			promote(t, server, db, c.slots)
			insertAll(db, "a", numbered("after", 20))
			want := slices.Concat(numbered("before", 20), numbered("last", 5), numbered("after", 20))
			for _, id := range want {
				sub.await(t, id)
			}
			eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == 0 && owed(db, "sub", "waiting") == 0 })
			wantRepairs(t, db, o, c.kind)
			r.shutDown()
			if got := firsts(ids(sub.Calls())); !slices.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
			if got := stillToCome(db); got != 0 {
				t.Errorf("after a clean stop the server would send %d rows again", got)
			}
		})
	}
}

// firsts leaves out what came before: after a failover something may come twice.
func firsts(ids []string) []string {
	var first []string
	for _, id := range ids {
		if !slices.Contains(first, id) {
			first = append(first, id)
		}
	}
	return first
}

// The server comes back from a backup that is older than what the relay remembers: memory yields. Rows that
// are written then have the ids, the WAL positions and the outbox rows of others that are gone.
func TestRelay_yieldsToADatabaseThatHasGoneBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ promoted, indebted bool }{
		"restored as it was":                            {false, false},
		"restored to a point in time":                   {true, false},
		"restored as it was, and a debt holds the slot": {false, true}, // S-106
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testdb.NewServer(t, nil)
			db := testdb.On(t, server)
			sub := keeping(func(_ context.Context, d subscriber.Delivery) error {
				if d.Key == "stuck" {
					return errAway
				}
				return nil
			})
			o := options(t, db, sub)
			left := int64(0)
			if c.indebted {
				left, o.Subscriptions[0].Lane.StallAfter = 1, 50*time.Millisecond
			}
			r := streaming(t, o)
			if c.indebted {
				insert(db, "stuck", "stuck")
				awaitOwed(t, db, "sub", 1)
			}
			insertAll(db, "a", numbered("before", 10))
			sub.AwaitDelivered(t, 10)
			eventually(t, "all marks", func() bool { return unmarked(db) == left })
			kill(t, server)
			data, backup := filepath.Join(server.Dir(), "data"), filepath.Join(server.Dir(), "backup")
			copyTree(t, data, backup)
			if err := server.StartAgain(t.Context()); err != nil {
				t.Fatal(err)
			}
			db.Pool.Reset()
			r.awaitStreaming()
			insertAll(db, "a", numbered("undone", 10))
			sub.AwaitDelivered(t, 20)
			eventually(t, "all marks", func() bool { return unmarked(db) == left })

			kill(t, server)
			if err := os.RemoveAll(data); err != nil {
				t.Fatal(err)
			}
			copyTree(t, backup, data)
			if c.promoted {
				promote(t, server, db, true)
			} else if err := server.StartAgain(t.Context()); err != nil {
				t.Fatal(err)
			}
			db.Pool.Reset()
			insertAll(db, "a", numbered("after", 20))
			for _, id := range numbered("after", 20) {
				sub.await(t, id)
			}
			eventually(t, "all marks, nothing owed", func() bool { return unmarked(db) == left && owed(db, "sub", "waiting") == left })
			eventually(t, "it is well", func() bool { return r.Health().Ready && r.Health().State == relay.Streaming })
			r.shutDown()
			if got := stillToCome(db); got != 0 && !c.indebted {
				t.Errorf("after a clean stop the server would send %d rows again", got)
			}
		})
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v: %s", from, err, out)
	}
}

// A server that is still a standby is waited for.
func TestRelay_waitsForAStandbyToBePromoted(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	insert(db, "e", "a")
	kill(t, server)
	testdb.Standby(t, server, true)
	db.Pool.Reset()
	sub := subscribertest.Recording()
	r := start(t, options(t, db, sub))
	eventually(t, "it says why it waits", func() bool {
		h := r.Health()
		return !h.Ready && len(h.Problems) > 0 && h.State == relay.Reconnecting
	})
	db.Exec(`SELECT pg_promote()`)
	if got := sub.AwaitDelivered(t, 1); got[0] != "e" {
		t.Errorf("delivered %v, want e", got)
	}
}
