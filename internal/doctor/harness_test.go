package doctor_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/migrations"
)

// sound are settings in which the doctor finds nothing to say, small enough for faults to be cheap.
var sound = map[string]string{
	"track_commit_timestamp": "on", "max_slot_wal_keep_size": "100GB", "max_prepared_transactions": "5",
	"autovacuum": "off", "max_wal_size": "32MB", "autovacuum_freeze_max_age": "100000",
}

// harness is a database with an outbox, and what the doctor knows about it.
type harness struct {
	t       *testing.T
	server  *pgserver.Server
	db      *testdb.DB
	options doctor.Options
	end     func() // of what a fault has begun
	folder  string // of a destination
}

// newServerWithArguments returns a sound server whose postgres gets what stands in a file "arguments" of its folder.
func newServerWithArguments(t *testing.T) *pgserver.Server {
	t.Helper()
	bin, err := pgserver.Find()
	if err != nil {
		t.Fatal(err)
	}
	here := publicDir(t)
	if err := os.Symlink(filepath.Join(bin, "initdb"), filepath.Join(here, "initdb")); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\" $(cat arguments)\n", filepath.Join(bin, "postgres"))
	if err := os.WriteFile(filepath.Join(here, "postgres"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	settings := maps.Clone(sound)
	maps.Copy(settings, map[string]string{"max_replication_slots": "100", "max_wal_senders": "100", "fsync": "off"})
	server, err := pgserver.Start(t.Context(), pgserver.Options{Bin: here, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return server
}

// publicDir is a temporary folder that the server's user can enter.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newHarness(t *testing.T, server *pgserver.Server) *harness {
	t.Helper()
	return newHarnessOn(t, server, testdb.On(t, server))
}

func newHarnessOn(t *testing.T, server *pgserver.Server, db *testdb.DB) *harness {
	t.Helper()
	h := &harness{t: t, server: server, db: db}
	h.options = doctor.Options{
		DatabaseURL: h.db.DSN, Slot: h.db.Name, Publication: "walpost", WALBudget: -1, Drain: 20 * time.Second,
		Sources: []*outbox.Source{{Name: "lessons", Schema: "public", Table: "outbox", Mark: true, Ours: true, Retention: time.Hour}},
		Subscribers: []doctor.Subscriber{{Name: "analytics", Timeout: 10 * time.Second, StallAfter: time.Minute,
			Tables: []doctor.Grant{{Schema: "public", Table: "analytics_events", Rights: []string{"SELECT", "INSERT"}}}}},
		Migrations: []migrations.Set{migrations.Walpost, migrations.Lessons},
	}
	return h
}

// taking is the subscriber of the relays of this package's tests.
const taking = "taking"

// newRelay makes one of the options, whose sessions closePool ends.
func (h *harness) newRelay() (r *relay.Relay, closePool func()) {
	h.t.Helper()
	pool, err := postgres.Open(h.t.Context(), h.options.DatabaseURL, "walpost/test") // as the role that the doctor was
	if err != nil {
		h.t.Fatal(err)
	}
	stream := h.options.ReplicationURL
	if stream == "" {
		stream = h.options.DatabaseURL
	}
	renamedFrom := ""
	for _, sub := range h.options.Subscribers {
		if sub.Name == taking {
			renamedFrom = sub.RenamedFrom
		}
	}
	return relay.New(relay.Options{
		Pool: pool, ReplicationURL: stream, Slot: h.options.Slot, Publication: h.options.Publication, Sources: h.options.Sources,
		Subscriptions: []relay.Subscription{{
			Subscriber:  subscribertest.Handling(taking, func(context.Context, subscriber.Delivery) error { return nil }),
			Lane:        lane.Options{Ordering: lane.ByKey, Concurrency: 1, Batch: 1, Timeout: time.Second, MaxAttempts: 1, StallAfter: time.Minute},
			RenamedFrom: renamedFrom,
		}},
		Window: ack.Window{Events: 100, Bytes: 1 << 20}, MaxEvent: 1 << 20, WALBudget: relay.Auto, Drain: time.Second,
		StopOnLostSlot: h.options.StopOnLoss, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	}), pool.Close
}

// relay runs one until it streams from a slot that is known to be made and every row is marked, and stops
// it.
func (h *harness) relay() {
	h.t.Helper()
	r, closePool := h.newRelay()
	defer closePool()
	table := pgx.Identifier{h.options.Sources[0].Schema, h.options.Sources[0].Table}.Sanitize()
	ctx, stop := context.WithCancel(h.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	h.await("the relay streams", func() bool {
		select {
		case err := <-ended:
			ended <- err
			h.t.Fatalf("the relay ended with %v", err)
		default:
		}
		return r.Health().State == relay.Streaming &&
			h.db.Int(`SELECT count(*) FROM walpost.slots WHERE slot = $1 AND state = 'ready'`, h.options.Slot) == 1 &&
			h.db.Int(`SELECT count(*) FROM `+table+` WHERE published_at IS NULL`) == 0
	})
	stop()
	if err := <-ended; err != nil {
		h.t.Fatal(err)
	}
}

// slot makes one that no program reads.
func (h *harness) slot(name, plugin string) {
	h.t.Helper()
	h.db.Exec(`SELECT pg_create_logical_replication_slot($1, $2)`, name, plugin)
}

// wal moves the end of the WAL on by segments of 16 MB.
func (h *harness) wal(segments int) {
	h.t.Helper()
	for range segments {
		h.db.Exec(`SELECT pg_logical_emit_message(false, 'junk', 'x')`)
		h.db.Exec(`SELECT pg_switch_wal()`)
	}
}

// role makes a role of its own and lets the doctor be it.
func (h *harness) role(attributes string) string {
	h.t.Helper()
	return h.roleNamed(h.db.Name+"_role", attributes)
}

// holdLock lets a role that may only connect hold the advisory lock that is made of a slot's name.
func (h *harness) holdLock(slot string) (end func()) {
	h.t.Helper()
	ours := h.options.DatabaseURL
	h.roleNamed(h.db.Name+"_stranger", "")
	conn, err := pgx.Connect(h.t.Context(), h.options.DatabaseURL)
	h.options.DatabaseURL = ours
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := conn.Exec(h.t.Context(), `SELECT pg_advisory_lock(hashtextextended('walpost/' || $1, 0))`, slot); err != nil {
		h.t.Fatal(err)
	}
	return func() {
		_ = conn.Close(context.WithoutCancel(h.t.Context()))
		h.await("the end of the session", func() bool {
			return h.db.Int(`SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, conn.PgConn().PID()) == 0
		})
	}
}

func (h *harness) roleNamed(name, attributes string) string {
	h.t.Helper()
	quoted := pgx.Identifier{name}.Sanitize()
	h.db.Exec("CREATE ROLE " + quoted + " LOGIN PASSWORD 'secret' " + attributes)
	h.t.Cleanup(func() { h.db.Exec("DROP OWNED BY " + quoted + "; DROP ROLE " + quoted) })
	u, err := url.Parse(h.db.DSN)
	if err != nil {
		h.t.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret")
	h.options.DatabaseURL = u.String()
	return name
}

func (h *harness) await(what string, so func() bool) {
	h.t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-deadline:
			h.t.Fatalf("waited too long: %s", what)
		case <-tick.C:
		}
	}
}

// check returns what one check says.
func (h *harness) check(check string) []doctor.Finding {
	h.t.Helper()
	report := doctor.RunOnly(h.t.Context(), h.options, check)
	found := slices.DeleteFunc(report.Findings, func(f doctor.Finding) bool { return f.Check != check })
	if len(found) == 0 {
		h.t.Fatalf("the check %s says nothing", check)
	}
	return found
}

// checkUntil checks again for some seconds while the check does not say what it should: the statistics of
// Postgres 14 arrive half a second late.
func (h *harness) checkUntil(check string, so func([]doctor.Finding) bool) []doctor.Finding {
	h.t.Helper()
	deadline := time.After(5 * time.Second)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		found := h.check(check)
		if so(found) {
			return found
		}
		select {
		case <-deadline:
			return found
		case <-tick.C:
		}
	}
}

// fix does what the findings say, as a superuser: their SQL, one statement after the other, and a restart.
func (h *harness) fix(findings []doctor.Finding) {
	h.t.Helper()
	restart := false
	for _, f := range findings {
		if f.Fix == nil {
			continue
		}
		for _, sql := range f.Fix.SQL {
			execute(h.t, h.db.DSN, sql.String())
		}
		restart = restart || f.Fix.Restart
	}
	if restart {
		h.restart()
	}
}

// restart restarts the server. The pool's sessions have not heard of it.
func (h *harness) restart() {
	h.t.Helper()
	if err := h.server.Restart(context.WithoutCancel(h.t.Context())); err != nil {
		h.t.Fatal(err)
	}
	h.db.Pool.Reset()
}

// execute runs a statement as psql would: what a reload changes is there for the next session. A replication
// command needs a connection of that kind.
func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	if err := tryToExecute(t, dsn, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func tryToExecute(t *testing.T, dsn, sql string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second) // for cleanups, too
	defer cancel()
	config, err := postgres.ConnConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(sql, "ALTER_REPLICATION_SLOT") {
		config.RuntimeParams["replication"] = "database"
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return postgres.ConnectError(err, dsn)
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// statements are those of a fix, in one line.
func statements(fix *doctor.Fix) string {
	var texts []string
	for _, sql := range fix.SQL {
		texts = append(texts, sql.String())
	}
	return strings.Join(texts, "; ")
}

// describe writes findings for the message of a test.
func describe(findings []doctor.Finding) string {
	var text strings.Builder
	for _, f := range findings {
		text.WriteString("\n" + string(f.Level) + " " + f.Check + " " + f.Subject + ": " + f.Finding + " (" + f.Reason + ")")
		if f.Fix != nil {
			text.WriteString(" fix: " + statements(f.Fix) + " " + f.Fix.Do)
		}
	}
	return text.String()
}
