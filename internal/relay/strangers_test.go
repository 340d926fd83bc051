package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	platform "github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/migrations"
)

// intruder has a role that may only connect. It holds or awaits each advisory lock that it sees in pg_locks, and those
// that it can guess, and calls its sessions like those of a relay.
type intruder struct {
	t    *testing.T
	dsn  string // with the role's password
	stop context.CancelFunc
	all  sync.WaitGroup

	mu   sync.Mutex
	pids map[uint32]string // what each session waits for or holds; guarded by mu
}

func intrude(t *testing.T, db *testdb.DB, application string, guesses ...string) *intruder {
	t.Helper()
	role := db.Name + "_stranger"
	db.Exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'`)
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "secret")
	query := u.Query()
	query.Set("application_name", application)
	u.RawQuery = query.Encode()
	ctx, cancel := context.WithCancel(context.Background())
	in := &intruder{t: t, dsn: u.String(), stop: cancel, pids: map[uint32]string{}}
	t.Cleanup(func() {
		cancel()
		in.all.Wait()
		db.Exec(`DROP ROLE ` + role)
	})
	for _, guess := range guesses {
		in.waitForLock(ctx, `SELECT pg_advisory_lock(`+guess+`)`)
	}
	looking, err := pgx.Connect(ctx, in.dsn)
	if err != nil {
		t.Fatal(err)
	}
	in.all.Go(func() {
		defer func() { _ = looking.Close(context.Background()) }()
		seen := map[string]bool{}
		for ctx.Err() == nil {
			rows, err := looking.Query(ctx, `SELECT DISTINCT CASE objsubid
				WHEN 1 THEN 'SELECT pg_advisory_lock(' || (classid::bigint << 32 | objid::bigint) || ')'
				ELSE 'SELECT pg_advisory_lock(' || classid::bigint::int || ',' || objid::bigint::int || ')' END
				FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
			if err != nil {
				return
			}
			locks, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return
			}
			for _, lock := range locks {
				if !seen[lock] {
					seen[lock] = true
					in.waitForLock(ctx, lock)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	return in
}

// waitFor lets a session of its own wait for a lock, and hold it then.
func (in *intruder) waitForLock(ctx context.Context, lock string) {
	conn, err := pgx.Connect(ctx, in.dsn)
	if err != nil {
		if ctx.Err() == nil {
			in.t.Error(err)
		}
		return
	}
	in.mu.Lock()
	in.pids[conn.PgConn().PID()] = lock
	in.mu.Unlock()
	in.all.Go(func() {
		defer func() { _ = conn.Close(context.Background()) }()
		if _, err := conn.Exec(ctx, lock); err == nil {
			<-ctx.Done()
		}
	})
}

// named reports whether each problem of a stranger names one of its sessions, and there is at least one.
func (in *intruder) named(problems []string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.ContainsFunc(problems, func(problem string) bool {
		for pid := range in.pids {
			if strings.HasPrefix(problem, fmt.Sprintf("pid %d of role", pid)) && strings.Contains(problem, "advisory lock of this slot") {
				return true
			}
		}
		return false
	})
}

// S-60, S-62, S-63: whatever advisory lock a role that may only connect holds or awaits, events flow, the next relay
// takes over from one that dies, migrations run, completions are stored. /ready names it.
func TestRelay_goesOnWhileAStrangerHoldsEveryAdvisoryLock(t *testing.T) {
	t.Parallel()
	db := testdb.On(t, testdb.NewServer(t, nil))
	ours, dsn := role(t, db, "LOGIN REPLICATION") // no superuser: it may not end the sessions of others
	db.Exec(`GRANT ` + db.Text(`SELECT current_user`) + ` TO ` + ours)
	line, lineDSN := newLine(t, dsn)
	firstSub, secondSub := keeping(nil), keeping(nil)
	first := withLease(t, options(t, db, firstSub), lineDSN)
	first.Drain = 50 * time.Millisecond // the dead deliver nothing
	second := withLease(t, options(t, db, secondSub), dsn)
	in := intrude(t, db, first.Lease.Application(),
		fmt.Sprintf(`hashtextextended('walpost/%s', 0)`, db.Name), fmt.Sprintf(`hashtextextended('walpost/%s/session', 0)`, db.Name),
		fmt.Sprintf(`hashtextextended('walpost audit %s', 0)`, db.Name), fmt.Sprintf(`hashtextextended('walpost add %s', 0)`, db.Name),
		`4097083626`, `x'6c65'::int, hashint8(42)`)

	leader := streaming(t, first)
	standby := start(t, second)
	eventually(t, "the other one stands by", func() bool { return standby.Health().State == relay.Waiting })
	insertAll(db, "a", numbered("before", 20))
	firstSub.AwaitDelivered(t, 20)
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	for what, r := range map[string]*running{"the leader": leader, "the standby": standby} {
		eventually(t, what+" names the stranger and is ready", func() bool {
			h := r.Health()
			return h.Ready && in.named(h.Problems)
		})
	}
	if _, err := platform.New(db.Pinned).Complete(t.Context(), platform.Completion{UserID: 42, LessonID: 1, TrackSlug: "go", LessonSlug: "x"}); err != nil {
		t.Error(err)
	}
	if err := migrations.Up(t.Context(), db.DSN, slog.New(slog.DiscardHandler), migrations.Walpost, migrations.Lessons); err != nil {
		t.Error(err)
	}

	begun := time.Now()
	line.end()
	leader.stop()
	eventually(t, "the other one leads", second.Lease.Valid)
	standby.awaitStreaming()
	t.Logf("the next relay streams after %v", time.Since(begun).Round(time.Millisecond))
	insertAll(db, "a", numbered("after", 20))
	eventually(t, "all marks", func() bool { return unmarked(db) == 0 })
	eventually(t, "the new leader names the stranger and is ready", func() bool {
		h := standby.Health()
		return h.Ready && in.named(h.Problems)
	})
	if got := len(firsts(append(ids(firstSub.Calls()), ids(secondSub.Calls())...))); got != 41 {
		t.Errorf("%d events were delivered, want 41", got)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	t.Logf("%d advisory locks are held or awaited by the stranger", len(in.pids))
}
