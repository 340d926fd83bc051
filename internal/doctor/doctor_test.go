package doctor_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

var discard = slog.New(slog.DiscardHandler)

// A sound server: nothing to report before the first start of a relay and after it, and every check reports.
func TestDoctor_hasNothingToSayAboutASoundServer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, testdb.NewServer(t, sound))
	for _, when := range []string{"before the first start", "after it"} {
		report := doctor.Run(t.Context(), h.options)
		var spoke []string
		for _, f := range report.Findings {
			spoke = append(spoke, f.Check)
			// Without a standby, it cannot be known.
			if !fine(f) && f.Check != "standby-sync" {
				t.Errorf("%s the doctor says%s", when, describe([]doctor.Finding{f}))
			}
		}
		if !slices.Equal(spoke, doctor.Checks()) {
			t.Errorf("%s %v speak, want %v", when, spoke, doctor.Checks())
		}
		h.relay()
	}
}

// F-61: everything that is missing is one report, and what it prints is enough for a relay that is neither
// superuser nor owner of anything.
func TestRights_thatArePrintedAreEnoughForARelay(t *testing.T) {
	t.Parallel()
	h := newHarnessOn(t, nil, testdb.New(t))
	role := h.role("")
	found := h.check("rights")
	if len(found) != 1 || found[0].Level != doctor.Problem {
		t.Fatalf("want one report, the doctor says%s", describe(found))
	}
	if sql := statements(found[0].Fix); strings.Contains(sql, "SUPERUSER") || strings.Contains(sql, "OWNER") || strings.Contains(sql, "GRANT CREATE") {
		t.Errorf("asks for more than is needed: %s", sql)
	}
	h.fix(found)
	h.db.Exec("INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 'x', '{}')")
	h.relay()
	if got := h.db.Int("SELECT count(*) FROM outbox WHERE published_at IS NOT NULL"); got != 1 {
		t.Errorf("%d rows are marked, want 1", got)
	}
	for _, f := range doctor.Run(t.Context(), h.options).Findings {
		if f.Level == doctor.Problem || f.Level == doctor.Unknown && f.Check != "standby-sync" {
			t.Errorf("role %s, and the doctor says%s", role, describe([]doctor.Finding{f}))
		}
	}
}

// The relay works without a right on a sequence, so that one lack alone is no problem: the check that needs it says
// how to give it.
func TestSequences_thatCannotBeReadAreUnknownAndTellTheGrant(t *testing.T) {
	t.Parallel()
	h := newHarnessOn(t, nil, testdb.New(t))
	role := h.role("")
	h.fix(h.check("rights"))
	for _, sequence := range []string{"audit_id_seq", "replays_id_seq"} {
		h.db.Exec(`REVOKE ALL ON SEQUENCE walpost.` + sequence + ` FROM "` + role + `"`)
	}
	if found := h.check("rights"); found[0].Level != doctor.OK {
		t.Errorf("rights says%s", describe(found))
	}
	found := h.check("sequences")
	if len(found) != 2 || found[0].Level != doctor.Unknown || found[1].Level != doctor.Unknown {
		t.Fatalf("sequences says%s", describe(found))
	}
	h.fix(found)
	if found := h.check("sequences"); found[0].Level != doctor.OK {
		t.Errorf("after the grants, sequences says%s", describe(found))
	}
}

// F-61: where the attribute cannot be set, the provider's role is asked for.
func TestRights_nameTheRoleOfAManagedService(t *testing.T) {
	t.Parallel()
	h := newHarness(t, testdb.NewServer(t, sound))
	h.db.Exec("CREATE ROLE rds_replication NOLOGIN")
	role := h.role("")
	if found := h.check("rights"); !strings.Contains(statements(found[0].Fix), `GRANT rds_replication TO "`+role+`"`) {
		t.Errorf("the doctor says%s", describe(found))
	}
}

// F-63: whatever other slots there are, no check stumbles over a NULL or a column of another version.
func TestDoctor_stumblesOverNoKindOfSlot(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, sound)
	h, other := newHarness(t, server), newHarness(t, server)
	other.slot(other.db.Name, "pgoutput")
	h.slot(h.db.Name+"_fresh", "test_decoding")
	h.db.Exec("SELECT pg_create_physical_replication_slot($1), pg_create_physical_replication_slot($2, true)", h.db.Name+"_p1", h.db.Name+"_p2")
	if _, err := h.connect().Exec(t.Context(), "SELECT pg_create_logical_replication_slot('fleeting', 'pgoutput', true)"); err != nil {
		t.Fatal(err)
	}
	h.slot(h.db.Name, "test_decoding")
	lose(h) // all that have a position
	for _, slot := range h.db.Texts("SELECT slot_name::text FROM pg_replication_slots") {
		h.options.Slot = slot
		for _, f := range doctor.Run(t.Context(), h.options).Findings {
			if f.Level == doctor.Unknown && f.Check != "standby-sync" {
				t.Errorf("slot %s: the doctor says%s", slot, describe([]doctor.Finding{f}))
			}
		}
	}
}

// S-317: asking whether an owner's code would run does not run it.
func TestForeignCode_isNotRunByTheDoctor(t *testing.T) {
	t.Parallel()
	h := newHarnessOn(t, nil, testdb.New(t))
	theirs(theirTest, "CREATE INDEX spy ON public.outbox (id) WHERE public.fits('x')")(h)
	h.db.Exec(`INSERT INTO outbox (event_id, event_type, payload, created_at) VALUES ('1', 'x', '{}', now() - interval '1 day')`)
	h.db.Exec(`CREATE OR REPLACE FUNCTION public.fits(v text) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE 'it ran as %', CURRENT_USER; END $$`)
	h.options.StopOnLoss = true // counts what waits
	report := doctor.Run(t.Context(), h.options)
	if said := describe(report.Findings); strings.Contains(said, "it ran as") {
		t.Errorf("the doctor says%s", said)
	}
	if f := find(report, "foreign-code"); f.Level != doctor.Problem || !strings.Contains(f.Finding, "index public.spy") {
		t.Errorf("the doctor says%s", describe([]doctor.Finding{f}))
	}
	for _, check := range []string{"event-types", "oldest-unpublished", "start"} {
		if f := find(report, check); f.Level != doctor.Unknown || !strings.Contains(f.Reason, "foreign-code") {
			t.Errorf("the doctor says%s", describe([]doctor.Finding{f}))
		}
	}
	h.db.Exec(`DROP INDEX spy`)
	if f := find(doctor.Run(t.Context(), h.options), "oldest-unpublished"); f.Level != doctor.Warning {
		t.Errorf("without the index the doctor says%s", describe([]doctor.Finding{f}))
	}
}

// S-312: who follows the advice about mark: off has no row sent twice after a lost slot, and loses none.
func TestMark_thatWasOffIsMadeUpForAsPrinted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ alter, published string }{
		"a time":          {"", "published_at IS NOT NULL"},
		"a boolean":       {"ALTER TABLE outbox DROP published_at, ADD delivered boolean NOT NULL DEFAULT false", "delivered"},
		"local times":     {"ALTER TABLE outbox ALTER created_at TYPE timestamp", "published_at IS NOT NULL"},
		"no time to read": {"ALTER TABLE outbox DROP created_at", "published_at IS NOT NULL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarnessOn(t, nil, testdb.New(t))
			if c.alter != "" {
				h.db.Exec(c.alter)
			}
			timed := !strings.Contains(c.alter, "DROP created_at")
			h.db.Exec(`INSERT INTO outbox (event_id, event_type, payload) SELECT x, 'x', '{}' FROM unnest('{delivered,waiting,dead,fresh}'::text[]) x`)
			if timed {
				h.db.Exec(`UPDATE outbox SET created_at = now() - interval '1 day' WHERE event_id <> 'fresh'`)
			}
			h.db.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, state, epoch, commit_lsn, ordinal, event_type, key)
				SELECT $1, 's', 'lessons', x, '', x, 1, '0/1', n, 'x', '' FROM unnest('{waiting,dead}'::text[]) WITH ORDINALITY u(x, n)`, h.db.Name)
			h.options.Sources[0].Mark = false
			found := h.check("source-repair")
			if found[0].Fix == nil || found[0].Fix.SQL != nil {
				t.Fatalf("the doctor says%s", describe(found))
			}
			_, sql, printed := strings.Cut(found[0].Fix.Do, ": UPDATE ")
			if printed != timed || !timed && !strings.Contains(found[0].Fix.Do, `set column "published_at" of the rows`) {
				t.Fatalf("the doctor says%s", describe(found))
			}
			want := []string{}
			if printed {
				execute(t, h.db.DSN, "SET TimeZone = 'Asia/Tokyo'; UPDATE "+sql)
				want = []string{"delivered"}
			}
			if got := h.db.Texts(`SELECT event_id FROM outbox WHERE ` + c.published); !slices.Equal(got, want) {
				t.Errorf("%q count as published, want %q", got, want)
			}
		})
	}
}

// F-68: addresses of IPv6, in brackets and in key=value form.
func TestDoctor_reachesAServerByIPv6(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"listen_addresses": "127.0.0.1, ::1"})
	h := newHarness(t, server)
	u, err := url.Parse(h.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	inBrackets := *u
	inBrackets.Host = "[::1]:" + u.Port()
	for _, dsn := range []string{inBrackets.String(),
		"host=::1 port=" + u.Port() + " user=postgres password=" + password + " dbname=" + h.db.Name + " sslmode=disable"} {
		h.options.DatabaseURL = dsn
		if found := h.check("replication-connection"); found[0].Level != doctor.OK {
			t.Errorf("the doctor says%s", describe(found))
		}
	}
}

// A standby is distinguished from a primary, and every check that can be made there is. Either way that is printed leads
// away from it: the primary's address, or both with target_session_attrs.
func TestPrimary_isFoundAsPrinted(t *testing.T) {
	t.Parallel()
	primary := testdb.NewServer(t, sound)
	h := newHarness(t, primary)
	before := h.options
	before.StandbyURL = before.DatabaseURL
	if found := find(doctor.Run(t.Context(), before), "standby-sync"); found.Level != doctor.Problem || !strings.Contains(found.Finding, "is no standby") {
		t.Errorf("a primary as --standby: the doctor says%s", describe([]doctor.Finding{found}))
	}
	standby := testdb.NewStandby(t, primary, sound) // a copy, with the database
	h.db.Pool.Reset()
	here, there := fmt.Sprintf("127.0.0.1:%d", primary.Port()), fmt.Sprintf("127.0.0.1:%d", standby.Port())
	reached := func(hosts string) string { return strings.Replace(h.db.DSN, here, hosts, 1) }
	h.options.DatabaseURL, h.options.StandbyURL = reached(there), reached(there)
	report := doctor.Run(t.Context(), h.options)
	if f := find(report, "primary"); f.Level != doctor.Problem || f.Fix == nil || !strings.Contains(f.Fix.Do, "target_session_attrs=read-write") {
		t.Errorf("the doctor says%s", describe(report.Findings))
	}
	for _, f := range report.Findings {
		if f.Level == doctor.Unknown {
			t.Errorf("on a standby the doctor says%s", describe([]doctor.Finding{f}))
		}
	}
	for _, fixed := range []string{h.db.DSN, reached(there+","+here) + "&target_session_attrs=read-write"} {
		h.options.DatabaseURL = fixed
		for _, check := range []string{"connection", "primary", "replication-connection"} {
			if found := h.check(check); found[0].Level != doctor.OK {
				t.Errorf("the doctor says%s", describe(found))
			}
		}
	}
}

func find(report doctor.Report, check string) doctor.Finding {
	for _, f := range report.Findings {
		if f.Check == check {
			return f
		}
	}
	return doctor.Finding{}
}

// F-69: a standby that copies no slots, and then one that does, once all that is printed was done. A slot of its own
// of the same name, as an old primary has that comes back as a standby, keeps the copy away.
func TestStandbySync_isFineOnceTheStandbyCopiesTheSlot(t *testing.T) {
	t.Parallel()
	primary := testdb.NewServer(t, sound)
	h := newHarness(t, primary)
	h.relay()
	settings := maps.Clone(sound)
	settings["primary_conninfo"] = fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", primary.Port())
	standby := testdb.NewStandby(t, primary, settings)
	h.db.Pool.Reset()
	h.options.StandbyURL = strings.Replace(h.options.DatabaseURL, fmt.Sprintf(":%d/", primary.Port()), fmt.Sprintf(":%d/", standby.Port()), 1)
	if h.db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < 17 {
		if found := h.check("standby-sync"); found[0].Level != doctor.Skipped || !strings.Contains(found[0].Finding, "before Postgres 17") {
			t.Errorf("on a version that copies no slots, the doctor says%s", describe(found))
		}
		return
	}
	found := h.check("standby-sync")
	for _, want := range []string{"hot_standby_feedback is off", "sync_replication_slots is off", "primary_slot_name is not set", "names no dbname", "has no slot"} {
		if !strings.Contains(describe(found), want) {
			t.Errorf("want %q, the doctor says%s", want, describe(found))
		}
	}
	u, err := url.Parse(h.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	h.db.Exec(`SELECT pg_create_physical_replication_slot('standby')`)
	execute(t, h.options.StandbyURL, `ALTER SYSTEM SET primary_slot_name = 'standby'`)
	execute(t, h.options.StandbyURL, fmt.Sprintf(`ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=%d user=postgres password=%s dbname=postgres'`, primary.Port(), password))
	for _, f := range found {
		for _, sql := range f.Fix.SQL {
			execute(t, h.options.StandbyURL, sql.String())
		}
	}
	h.await("the standby has a copy that can be used", func() bool {
		h.db.Exec(`SELECT pg_log_standby_snapshot()`)
		h.db.Exec(`INSERT INTO outbox (event_id, event_type, payload) SELECT 'n' || count(*), 'x', '{}' FROM outbox`)
		h.relay() // moves the slot
		found = h.check("standby-sync")
		return found[0].Level == doctor.OK
	})

	// The primary comes back as a standby of the one that took over.
	for _, server := range []*pgserver.Server{primary, standby} {
		if err := server.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	testdb.Promote(t, standby, true)
	testdb.Standby(t, primary, true)
	h.options.DatabaseURL, h.options.StandbyURL = h.options.StandbyURL, h.options.DatabaseURL
	const leftOver = "of its own, which keeps the copy away"
	found = slices.DeleteFunc(h.check("standby-sync"), func(f doctor.Finding) bool { return !strings.Contains(f.Finding, leftOver) })
	if len(found) != 1 || found[0].Level != doctor.Problem {
		t.Fatalf("of an old primary the doctor says%s", describe(h.check("standby-sync")))
	}
	for _, sql := range found[0].Fix.SQL {
		execute(t, h.options.StandbyURL, sql.String())
	}
	if found = h.check("standby-sync"); strings.Contains(describe(found), leftOver) {
		t.Errorf("after what it printed the doctor says%s", describe(found))
	}
}

// S-87: one check that cannot be made says why, and hides none of the others.
func TestDoctor_saysWhatItCannotSee(t *testing.T) {
	t.Parallel()
	h := newHarnessOn(t, nil, testdb.New(t))
	locker, err := h.connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Exec(t.Context(), "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	report := doctor.Run(t.Context(), h.options)
	if f := find(report, "oldest-unpublished"); f.Level != doctor.Unknown || !strings.Contains(f.Reason, "lock timeout") {
		t.Errorf("the doctor says%s", describe([]doctor.Finding{f}))
	}
	if got := report.Count(doctor.OK) + report.Count(doctor.Skipped); got < len(doctor.Checks())-5 {
		t.Errorf("only %d checks are fine: %s", got, describe(report.Findings))
	}

	h.options.DatabaseURL = "postgres://postgres:zebra@127.0.0.1:1/none?sslmode=disable"
	report = doctor.Run(t.Context(), h.options)
	if report.Count(doctor.Problem) != 1 || len(report.Findings) != 1 {
		t.Errorf("without a server the doctor says%s", describe(report.Findings))
	}
	if strings.Contains(describe(report.Findings)+report.Server, "zebra") {
		t.Error("a password is printed")
	}
}

// What keeps a replication connection away, one after the other on one server, and each fixed as printed.
func TestReplicationConnection_isRefusedByWords(t *testing.T) {
	t.Parallel()
	server := testdb.NewForeignServer(t, map[string]string{"max_wal_senders": "1"})
	db := testdb.On(t, server)

	t.Run("the only sender is in use", func(t *testing.T) {
		h := newHarnessOn(t, server, db)
		h.holdSender()
		if found := h.check("replication-connection"); found[0].Level != doctor.Problem || !strings.Contains(found[0].Fix.Do, "raise max_wal_senders") {
			t.Errorf("the doctor says%s", describe(found))
		}
		found := h.check("free-senders")
		if found[0].Level != doctor.Problem || found[0].Fix == nil {
			t.Fatalf("the doctor says%s", describe(found))
		}
		h.fix(found)
		h.holdSender() // the restart has ended the other one
		for _, check := range []string{"free-senders", "replication-connection"} {
			if found := h.check(check); found[0].Level != doctor.OK {
				t.Errorf("with more senders the doctor says%s", describe(found))
			}
		}
	})

	t.Run("the role may not replicate", func(t *testing.T) {
		h := newHarnessOn(t, server, db)
		role := h.role("")
		if found := h.check("replication-connection"); found[0].Level != doctor.Problem || !strings.Contains(found[0].Finding, role) || found[0].Fix.Do != "see the check rights" {
			t.Errorf("the doctor says%s", describe(found))
		}
		h.fix(h.check("rights"))
		if found := h.check("replication-connection"); found[0].Level != doctor.OK {
			t.Errorf("with what the check rights printed the doctor says%s", describe(found))
		}
	})

	// Two servers that are no copies of each other, each with a database of the name.
	t.Run("it leads to another server", func(t *testing.T) {
		h := newHarnessOn(t, nil, testdb.New(t))
		execute(t, server.DSN("postgres"), "CREATE DATABASE "+h.db.Name)
		h.options.ReplicationURL = server.DSN(h.db.Name)
		found := h.check("replication-connection")
		if found[0].Level != doctor.Problem || !strings.Contains(found[0].Fix.Do, "point both at the same database of the same primary") {
			t.Errorf("the doctor says%s", describe(found))
		}
		h.options.ReplicationURL = h.db.DSN
		if found := h.check("replication-connection"); found[0].Level != doctor.OK {
			t.Errorf("of the same server the doctor says%s", describe(found))
		}
	})

	// A line of pg_hba.conf for "replication" lets no logical stream in; one for the database does.
	t.Run("pg_hba.conf has no line for it", func(t *testing.T) {
		h := newHarnessOn(t, server, db)
		h.db.Exec("CREATE ROLE streaming LOGIN REPLICATION PASSWORD 'secret'")
		h.options.ReplicationURL = "postgres://streaming:secret" + h.db.DSN[strings.Index(h.db.DSN, "@"):]
		admit := func(line string) {
			t.Helper()
			lines := "host all postgres 127.0.0.1/32 scram-sha-256\n" + line + "\n"
			if err := os.WriteFile(filepath.Join(server.Dir(), "data", "pg_hba.conf"), []byte(lines), 0o600); err != nil {
				t.Fatal(err)
			}
			execute(t, server.DSN("postgres"), "SELECT pg_reload_conf()")
		}
		admit("host replication streaming 127.0.0.1/32 scram-sha-256")
		refused := func(found []doctor.Finding) bool { return found[0].Level == doctor.Problem }
		want := fmt.Sprintf("let role %q in by pg_hba.conf: it needs a line for database %q", "streaming", h.db.Name)
		if found := h.checkUntil("replication-connection", refused); !refused(found) || !strings.Contains(found[0].Fix.Do, want) {
			t.Fatalf("want %q, the doctor says%s", want, describe(found))
		}
		admit("host " + h.db.Name + " streaming 127.0.0.1/32 scram-sha-256")
		fine := func(found []doctor.Finding) bool { return found[0].Level == doctor.OK }
		if found := h.checkUntil("replication-connection", fine); !fine(found) {
			t.Errorf("with that line the doctor says%s", describe(found))
		}
	})
}

// holdSender opens a replication connection that stays until the test ends.
func (h *harness) holdSender() {
	h.t.Helper()
	config, err := postgres.ReplicationConfig(h.db.DSN)
	if err != nil {
		h.t.Fatal(err)
	}
	conn, err := pgconn.ConnectConfig(h.t.Context(), config)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close(context.WithoutCancel(h.t.Context())) })
}

// What depends on versions that are not at hand everywhere.
func TestDoctor_judgesServersByTheirFacts(t *testing.T) {
	for major, want := range map[int]doctor.Level{13: doctor.Problem, 14: "", 18: "", 19: doctor.Warning} {
		if got := level(doctor.JudgeVersion(major)); got != want {
			t.Errorf("Postgres %d is %q, want %q", major, got, want)
		}
	}
	for state, want := range map[string]doctor.Level{"": doctor.Problem, "synced": "", "temporary": doctor.Warning,
		"left over": doctor.Problem, "foreign": doctor.Problem, "rows_removed": doctor.Problem} {
		var states []string
		if state != "" {
			states = []string{state}
		}
		if got := level(doctor.JudgeSynced("walpost", states)); got != want {
			t.Errorf("a copy that is %q is %q, want %q", state, got, want)
		}
	}
	found := doctor.JudgeStandbySlots(`here, "gone"`, []string{"here", "third"})
	if level(found) != doctor.Problem || found[0].Fix.SQL[0].String() != "ALTER SYSTEM SET synchronized_standby_slots = 'here'" {
		t.Errorf("the doctor says%s", describe(found))
	}
	if found := doctor.JudgeStandbySlots("here", []string{"here"}); found != nil {
		t.Errorf("all are here, and the doctor says%s", describe(found))
	}
}

func level(found []doctor.Finding) doctor.Level {
	if len(found) == 0 {
		return ""
	}
	return found[0].Level
}

func TestWatcher_saysEachThingOnceAndWhenItIsFixed(t *testing.T) {
	t.Parallel()
	h := newHarnessOn(t, nil, testdb.New(t))
	h.db.Exec("ALTER DATABASE " + h.db.Name + " SET track_activities = off")
	var log lines
	registry := prometheus.NewRegistry()
	watcher := doctor.NewWatcher(h.options, registry, slog.New(slog.NewTextHandler(&log, nil)))
	watcher.Every(10 * time.Millisecond)
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- watcher.Run(ctx) }()
	warnings := func(n float64) func() bool {
		return func() bool {
			families, err := registry.Gather()
			if err != nil {
				t.Error(err)
			}
			for _, m := range families[0].GetMetric() {
				if m.GetLabel()[0].GetValue() == "warning" {
					return m.GetGauge().GetValue() == n
				}
			}
			return false
		}
	}
	const others = 2 // of the server that all tests share: wal-keep-size, commit-timestamps
	h.await("the warning", warnings(others+1))
	h.db.Exec("ALTER DATABASE " + h.db.Name + " RESET track_activities")
	h.await("the fix", warnings(others))
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"check=track-activities severity=warning", "check=wal-keep-size severity=warning", "finding is gone\" check=track-activities"} {
		if got := strings.Count(log.String(), want); got != 1 {
			t.Errorf("%q is said %d times, want once:\n%s", want, got, log.String())
		}
	}
}

type lines struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A reader looks an id up: the page and the program have the same ones, in the same order.
func TestDocs_explainEachCheck(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, heading := range regexp.MustCompile("(?m)^### `([a-z-]+)`$").FindAllStringSubmatch(string(page), -1) {
		got = append(got, heading[1])
	}
	if want := doctor.Checks(); !slices.Equal(got, want) {
		t.Errorf("docs/doctor.md explains %v, want %v", got, want)
	}
}
