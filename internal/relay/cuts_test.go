package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/lease"
	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/testdb"
)

// withLease lets a relay lead by a lease, over connections of its own to url that carry its name.
func withLease(t *testing.T, o relay.Options, url string) relay.Options {
	t.Helper()
	o.Lease = lease.New(lease.Options{URL: url, Slot: o.Slot, Log: o.Log})
	pool, err := postgres.Open(t.Context(), url, o.Lease.Application())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o.ReplicationURL, o.Pool = url, pool
	return o
}

// lines counts what the relay says that is no mere information.
func (l *logbook) lines() int {
	return strings.Count(l.String(), "level=WARN") + strings.Count(l.String(), "level=ERROR")
}

const (
	walsenders = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'walsender' AND application_name = $1`
	lockHolder = `SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a JOIN pg_locks l USING (pid)
		WHERE l.locktype = 'advisory' AND a.application_name = $1 AND backend_type = 'client backend'` // the walsender has one, too
	poolOnly = `SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a WHERE backend_type = 'client backend' AND application_name = $1
		AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')`
	everySession = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1`
)

// F-32, F-45: whichever sessions of the relay are ended, again and again under load, it comes back by itself, and
// nothing is lost, repeated or swapped: it was not the process that ended.
func TestRelay_comesBackWhicheverOfItsSessionsAreEnded(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{"walsender": walsenders, "lease": lockHolder, "pool": poolOnly, "all of them": everySession} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			sub := keeping(nil)
			o, said := logged(t, options(t, db, sub))
			o = withLease(t, o, db.DSN)
			r := streaming(t, o)
			var want []string
			const rounds = 3
			for round := range rounds {
				batch := numbered(fmt.Sprintf("round-%d", round), 20)
				want = append(want, batch...)
				insertAll(db, "a", batch[:10])
				eventually(t, "the end of a session", func() bool { return db.Int(end, o.Lease.Application()) > 0 })
				insertAll(db, "a", batch[10:])
				sub.AwaitDelivered(t, len(want))
				r.awaitStreaming()
			}
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			eventually(t, "it is well", func() bool { return r.Health().Ready && o.Lease.Valid() })
			eventually(t, "the figures of the slot", func() bool { return metric(t, o, "walpost_slot_active", "") == 1 })
			r.shutDown()
			if got := ids(sub.Calls()); !slices.Equal(got, want) {
				t.Errorf("handed over %v, want %v", got, want)
			}
			if got := stillToCome(db); got != 0 {
				t.Errorf("the server would send %d rows again", got)
			}
			if got := said.lines(); got > 10*rounds {
				t.Errorf("%d lines for %d cuts: %s", got, rounds, said)
			}
		})
	}
}

// refusal is a server that takes no connection of the relay for a while.
type refusal struct {
	refuse, allow func(t *testing.T, server *pgserver.Server, admin *pgx.Conn, role string)
	words         []string // one of them is in the reason that people see
}

func sql(text string) func(*testing.T, *pgserver.Server, *pgx.Conn, string) {
	return func(t *testing.T, _ *pgserver.Server, admin *pgx.Conn, role string) {
		mustExec(t, admin, strings.ReplaceAll(text, "{role}", role))
	}
}

// F-32: errors that end by themselves or by a person's hand: what refuses the relay says so in /ready, costs a few
// attempts and lines, and leaves nothing behind.
func TestRelay_comesBackWhenTheServerTakesItsConnectionsAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]refusal{
		"53300, too many connections": {sql(`ALTER ROLE {role} CONNECTION LIMIT 0`), sql(`ALTER ROLE {role} CONNECTION LIMIT -1`), []string{"53300"}},
		"28P01, another password":     {sql(`ALTER ROLE {role} PASSWORD 'another'`), sql(`ALTER ROLE {role} PASSWORD 'secret'`), []string{"28P01"}},
		"28000, no right to log in":   {sql(`ALTER ROLE {role} NOLOGIN`), sql(`ALTER ROLE {role} LOGIN`), []string{"28000"}},
		"57P03, a server that shuts down slowly and comes again": {
			func(t *testing.T, server *pgserver.Server, _ *pgx.Conn, _ string) {
				// A smart shutdown takes no one new and waits for who is there: for the test.
				if err := syscall.Kill(server.PID(), syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, server *pgserver.Server, admin *pgx.Conn, _ string) {
				_ = admin.Close(t.Context())
				eventually(t, "the end of the server", func() bool { return server.PID() == 0 })
				if err := server.StartAgain(t.Context()); err != nil {
					t.Fatal(err)
				}
			}, []string{"57P03", "refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testdb.NewServer(t, nil)
			db := testdb.On(t, server)
			who, url := role(t, db, "LOGIN REPLICATION")
			db.Exec(`GRANT ` + db.Text(`SELECT current_user`) + ` TO ` + who) // owns what that one owns, and is no superuser
			sub := keeping(nil)
			o, said := logged(t, options(t, db, sub))
			o = withLease(t, o, url)
			r := streaming(t, o)
			insertAll(db, "a", numbered("before", 20))
			admin := session(t, server.DSN(db.Name))

			before := said.lines()
			insertAll(db, "a", numbered("cut", 20))
			db.Pool.Reset()
			db.Pinned.Reset()
			c.refuse(t, server, admin, who)
			mustExec(t, admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, who)
			eventually(t, "it is not ready and says why", func() bool {
				h := r.Health()
				return !h.Ready && slices.ContainsFunc(c.words, func(w string) bool { return strings.Contains(fmt.Sprint(h.Problems), w) })
			})
			for range 20 {
				mustExec(t, admin, `INSERT INTO outbox (event_id, event_type, partition_key, payload)
					SELECT 'away-' || count(*) FILTER (WHERE event_id LIKE 'away-%'), 't', 'a', '{}' FROM outbox`)
			}
			time.Sleep(5 * time.Second) // how often it tries meanwhile is what this test is about
			if got := said.lines() - before; got > 15 {
				t.Errorf("%d lines in five seconds: %s", got, said)
			}
			if o.Lease.Valid() { // the lease is three seconds longer than its session
				t.Error("it may act although no one has answered for five seconds")
			}
			c.allow(t, server, admin, who)
			db.Pool.Reset()
			db.Pinned.Reset()
			begun := time.Now()
			r.awaitStreaming()
			eventually(t, "it is well", func() bool { return r.Health().Ready && o.Lease.Valid() })
			t.Logf("streaming again %v after the server took connections, %d lines", time.Since(begun).Round(time.Millisecond), said.lines()-before)
			insertAll(db, "a", numbered("after", 20))
			want := slices.Concat(numbered("before", 20), numbered("cut", 20), numbered("away", 20), numbered("after", 20))
			sub.AwaitDelivered(t, len(want))
			eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
			r.shutDown()
			if got := ids(sub.Calls()); !slices.Equal(got, want) {
				t.Errorf("handed over %v, want %v", got, want)
			}
			if got := stillToCome(db); got != 0 {
				t.Errorf("the server would send %d rows again", got)
			}
		})
	}
}

// F-32: connections of which the other end is gone without a word: neither side hears of it, and new ones work.
func TestRelay_noticesConnectionsThatAreHalfOpen(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	sub := keeping(nil)
	o := options(t, db, sub)
	line, url := newLine(t, db.DSN)
	o = withLease(t, o, url)
	r := streaming(t, o)
	insertAll(db, "a", numbered("before", 10))
	sub.AwaitDelivered(t, 10)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	begun := time.Now()
	line.swallow()
	insertAll(db, "a", numbered("after", 10))
	eventually(t, "it knows that it may not act", func() bool { return !o.Lease.Valid() })
	t.Logf("the lease was over after %v", time.Since(begun).Round(time.Millisecond))
	eventually(t, "the events that were swallowed", func() bool { return len(sub.events()) == 20 })
	t.Logf("delivered after %v", time.Since(begun).Round(time.Millisecond))
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	r.awaitStreaming()
	once(t, sub, append(numbered("before", 10), numbered("after", 10)...))
}

// F-31: neither the stream, nor the session of the lease, nor who stands by holds up the shutdown of the server.
func TestRelay_letsPostgresStopWhileOneLeadsAndOneStandsBy(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	handle, release := blockingOne("open")
	leading, standing := keeping(handle), keeping(handle)
	first := withLease(t, options(t, db, leading), db.DSN)
	second := withLease(t, options(t, db, standing), db.DSN)
	first.Subscriptions[0].Lane.Timeout, second.Subscriptions[0].Lane.Timeout = time.Minute, time.Minute
	leader := streaming(t, first)
	standby := start(t, second)
	eventually(t, "one stands by", func() bool { return standby.Health().State == relay.Waiting })
	for _, what := range []string{"idle", "with an open event"} {
		if what != "idle" {
			insert(db, "open", "a")
			eventually(t, "an open event", func() bool { return len(leading.events())+len(standing.events()) > 0 })
		}
		begun := time.Now()
		if err := stopServer(t.Context(), server); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Logf("%s: pg_ctl stop -m fast took %v", what, time.Since(begun).Round(time.Millisecond))
		for _, r := range []*running{leader, standby} {
			eventually(t, "it says that Postgres is away", func() bool { h := r.Health(); return !h.Ready && len(h.Problems) > 0 })
		}
		if err := server.StartAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Pool.Reset()
		eventually(t, "one leads again", func() bool {
			return (first.Lease.Valid() && leader.Health().State == relay.Streaming) != (second.Lease.Valid() && standby.Health().State == relay.Streaming)
		})
	}
	release()
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
}

// stopServer is pg_ctl stop -m fast.
func stopServer(ctx context.Context, server *pgserver.Server) error {
	pid := server.PID()
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for server.PID() != 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server has not stopped: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}
