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

// A sound house: nothing to say before the first start of a relay and after it, and every check speaks.
func TestDoctor_hasNothingToSayAboutASoundHouse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.NewServer(t, sound))
	for _, when := range []string{"before the first start", "after it"} {
		report := doctor.Run(t.Context(), w.options)
		var spoke []string
		for _, f := range report.Findings {
			spoke = append(spoke, f.Check)
			// Without a standby, nobody can know about it.
			if f.Level != doctor.OK && f.Check != "standby-sync" {
				t.Errorf("%s the doctor says%s", when, describe([]doctor.Finding{f}))
			}
		}
		if !slices.Equal(spoke, doctor.Checks()) {
			t.Errorf("%s %v speak, want %v", when, spoke, doctor.Checks())
		}
		w.relay()
	}
}

// F-61: everything that is missing is one report, and what it prints is enough for a relay that is neither
// superuser nor owner of anything.
func TestRights_thatArePrintedAreEnoughForARelay(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, nil, testdb.New(t))
	role := w.role("")
	found := w.examine("rights")
	if len(found) != 1 || found[0].Level != doctor.Problem {
		t.Fatalf("want one report, the doctor says%s", describe(found))
	}
	if sql := strings.Join(found[0].Mend.SQL, "; "); strings.Contains(sql, "SUPERUSER") || strings.Contains(sql, "OWNER") || strings.Contains(sql, "GRANT CREATE") {
		t.Errorf("asks for more than is needed: %s", sql)
	}
	w.mend(found)
	w.db.Exec("INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 'x', '{}')")
	w.relay()
	if got := w.db.Int("SELECT count(*) FROM outbox WHERE published_at IS NOT NULL"); got != 1 {
		t.Errorf("%d rows are marked, want 1", got)
	}
	for _, f := range doctor.Run(t.Context(), w.options).Findings {
		if f.Level == doctor.Problem || f.Level == doctor.Unknown && f.Check != "standby-sync" {
			t.Errorf("role %s, and the doctor says%s", role, describe([]doctor.Finding{f}))
		}
	}
}

// The relay works without a right on a sequence, so that one lack alone is no problem: the check that needs it says
// how to give it.
func TestSequences_thatCannotBeReadAreUnknownAndTellTheGrant(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, nil, testdb.New(t))
	role := w.role("")
	w.mend(w.examine("rights"))
	for _, sequence := range []string{"audit_id_seq", "replays_id_seq"} {
		w.db.Exec(`REVOKE ALL ON SEQUENCE walpost.` + sequence + ` FROM "` + role + `"`)
	}
	if found := w.examine("rights"); found[0].Level != doctor.OK {
		t.Errorf("rights says%s", describe(found))
	}
	found := w.examine("sequences")
	if len(found) != 2 || found[0].Level != doctor.Unknown || found[1].Level != doctor.Unknown {
		t.Fatalf("sequences says%s", describe(found))
	}
	w.mend(found)
	if found := w.examine("sequences"); found[0].Level != doctor.OK {
		t.Errorf("after the grants, sequences says%s", describe(found))
	}
}

// F-61: where the attribute cannot be set, the provider's role is asked for.
func TestRights_nameTheRoleOfAManagedService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.NewServer(t, sound))
	w.db.Exec("CREATE ROLE rds_replication NOLOGIN")
	role := w.role("")
	if found := w.examine("rights"); !slices.Contains(found[0].Mend.SQL, `GRANT rds_replication TO "`+role+`"`) {
		t.Errorf("the doctor says%s", describe(found))
	}
}

// F-63: whatever stands beside the slot, no check stumbles over a NULL or a column of another version.
func TestDoctor_stumblesOverNoKindOfSlot(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, sound)
	w, other := newWorld(t, server), newWorld(t, server)
	other.slot(other.db.Name, "pgoutput")
	w.slot(w.db.Name+"_fresh", "test_decoding")
	w.db.Exec("SELECT pg_create_physical_replication_slot($1), pg_create_physical_replication_slot($2, true)", w.db.Name+"_p1", w.db.Name+"_p2")
	if _, err := w.connect().Exec(t.Context(), "SELECT pg_create_logical_replication_slot('fleeting', 'pgoutput', true)"); err != nil {
		t.Fatal(err)
	}
	w.slot(w.db.Name, "test_decoding")
	lose(w) // all that have a position
	for _, slot := range w.db.Texts("SELECT slot_name::text FROM pg_replication_slots") {
		w.options.Slot = slot
		for _, f := range doctor.Run(t.Context(), w.options).Findings {
			if f.Level == doctor.Unknown && f.Check != "standby-sync" {
				t.Errorf("slot %s: the doctor says%s", slot, describe([]doctor.Finding{f}))
			}
		}
	}
}

// F-68: addresses of IPv6, in brackets and in key=value form.
func TestDoctor_reachesAServerByIPv6(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"listen_addresses": "127.0.0.1, ::1"})
	w := newWorld(t, server)
	u, err := url.Parse(w.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	inBrackets := *u
	inBrackets.Host = "[::1]:" + u.Port()
	for _, dsn := range []string{inBrackets.String(),
		"host=::1 port=" + u.Port() + " user=postgres password=" + password + " dbname=" + w.db.Name + " sslmode=disable"} {
		w.options.DatabaseURL = dsn
		if found := w.examine("replication-connection"); found[0].Level != doctor.OK {
			t.Errorf("the doctor says%s", describe(found))
		}
	}
}

// A standby is told from a primary, and every check that can be made there is. Either way that is printed leads
// away from it: the primary's address, or both with target_session_attrs.
func TestPrimary_isFoundAsPrinted(t *testing.T) {
	t.Parallel()
	primary := testdb.NewServer(t, sound)
	w := newWorld(t, primary)
	before := w.options
	before.StandbyURL = before.DatabaseURL
	if found := find(doctor.Run(t.Context(), before), "standby-sync"); found.Level != doctor.Problem || !strings.Contains(found.Finding, "is no standby") {
		t.Errorf("a primary as --standby: the doctor says%s", describe([]doctor.Finding{found}))
	}
	standby := testdb.NewStandby(t, primary, sound) // a copy, with the database
	w.db.Pool.Reset()
	here, there := fmt.Sprintf("127.0.0.1:%d", primary.Port()), fmt.Sprintf("127.0.0.1:%d", standby.Port())
	reached := func(hosts string) string { return strings.Replace(w.db.DSN, here, hosts, 1) }
	w.options.DatabaseURL, w.options.StandbyURL = reached(there), reached(there)
	report := doctor.Run(t.Context(), w.options)
	if f := find(report, "primary"); f.Level != doctor.Problem || f.Mend == nil || !strings.Contains(f.Mend.Do, "target_session_attrs=read-write") {
		t.Errorf("the doctor says%s", describe(report.Findings))
	}
	for _, f := range report.Findings {
		if f.Level == doctor.Unknown {
			t.Errorf("on a standby the doctor says%s", describe([]doctor.Finding{f}))
		}
	}
	for _, mended := range []string{w.db.DSN, reached(there+","+here) + "&target_session_attrs=read-write"} {
		w.options.DatabaseURL = mended
		for _, check := range []string{"connection", "primary", "replication-connection"} {
			if found := w.examine(check); found[0].Level != doctor.OK {
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
	w := newWorld(t, primary)
	w.relay()
	settings := maps.Clone(sound)
	settings["primary_conninfo"] = fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", primary.Port())
	standby := testdb.NewStandby(t, primary, settings)
	w.db.Pool.Reset()
	w.options.StandbyURL = strings.Replace(w.options.DatabaseURL, fmt.Sprintf(":%d/", primary.Port()), fmt.Sprintf(":%d/", standby.Port()), 1)
	if w.db.Int(`SELECT current_setting('server_version_num')::int / 10000`) < 17 {
		if found := w.examine("standby-sync"); found[0].Level != doctor.OK || !strings.Contains(found[0].Finding, "before Postgres 17") {
			t.Errorf("on a version that copies no slots, the doctor says%s", describe(found))
		}
		return
	}
	found := w.examine("standby-sync")
	for _, want := range []string{"hot_standby_feedback is off", "sync_replication_slots is off", "primary_slot_name is not set", "names no dbname", "has no slot"} {
		if !strings.Contains(describe(found), want) {
			t.Errorf("want %q, the doctor says%s", want, describe(found))
		}
	}
	u, err := url.Parse(w.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	w.db.Exec(`SELECT pg_create_physical_replication_slot('standby')`)
	execute(t, w.options.StandbyURL, `ALTER SYSTEM SET primary_slot_name = 'standby'`)
	execute(t, w.options.StandbyURL, fmt.Sprintf(`ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=%d user=postgres password=%s dbname=postgres'`, primary.Port(), password))
	for _, f := range found {
		for _, sql := range f.Mend.SQL {
			execute(t, w.options.StandbyURL, sql)
		}
	}
	w.await("the standby has a copy that can be used", func() bool {
		w.db.Exec(`SELECT pg_log_standby_snapshot()`)
		w.db.Exec(`INSERT INTO outbox (event_id, event_type, payload) SELECT 'n' || count(*), 'x', '{}' FROM outbox`)
		w.relay() // moves the slot
		found = w.examine("standby-sync")
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
	w.options.DatabaseURL, w.options.StandbyURL = w.options.StandbyURL, w.options.DatabaseURL
	const leftOver = "of its own, which keeps the copy away"
	found = slices.DeleteFunc(w.examine("standby-sync"), func(f doctor.Finding) bool { return !strings.Contains(f.Finding, leftOver) })
	if len(found) != 1 || found[0].Level != doctor.Problem {
		t.Fatalf("of an old primary the doctor says%s", describe(w.examine("standby-sync")))
	}
	for _, sql := range found[0].Mend.SQL {
		execute(t, w.options.StandbyURL, sql)
	}
	if found = w.examine("standby-sync"); strings.Contains(describe(found), leftOver) {
		t.Errorf("after what it printed the doctor says%s", describe(found))
	}
}

// One check that cannot be made says why, and hides none of the others.
func TestDoctor_saysWhatItCannotSee(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, nil, testdb.New(t))
	locker, err := w.connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Exec(t.Context(), "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	report := doctor.Run(t.Context(), w.options)
	if f := find(report, "oldest-unpublished"); f.Level != doctor.Unknown || !strings.Contains(f.Reason, "lock timeout") {
		t.Errorf("the doctor says%s", describe([]doctor.Finding{f}))
	}
	if got := report.Count(doctor.OK); got < len(doctor.Checks())-5 {
		t.Errorf("only %d checks are fine: %s", got, describe(report.Findings))
	}

	w.options.DatabaseURL = "postgres://postgres:zebra@127.0.0.1:1/none?sslmode=disable"
	report = doctor.Run(t.Context(), w.options)
	if report.Count(doctor.Problem) != 1 || report.Count(doctor.Unknown) != len(doctor.Checks())-1 {
		t.Errorf("without a server the doctor says%s", describe(report.Findings))
	}
	if strings.Contains(describe(report.Findings)+report.Server, "zebra") {
		t.Error("a password is printed")
	}
}

// What keeps a replication connection away, one after the other on one server, and each mended as printed.
func TestReplicationConnection_isRefusedByWords(t *testing.T) {
	t.Parallel()
	server := testdb.NewServer(t, map[string]string{"max_wal_senders": "1"})
	db := testdb.On(t, server)

	t.Run("the only sender is in use", func(t *testing.T) {
		w := newWorldOn(t, server, db)
		w.holdSender()
		if found := w.examine("replication-connection"); found[0].Level != doctor.Problem || !strings.Contains(found[0].Mend.Do, "raise max_wal_senders") {
			t.Errorf("the doctor says%s", describe(found))
		}
		found := w.examine("free-senders")
		if found[0].Level != doctor.Problem || found[0].Mend == nil {
			t.Fatalf("the doctor says%s", describe(found))
		}
		w.mend(found)
		w.holdSender() // the restart has ended the other one
		for _, check := range []string{"free-senders", "replication-connection"} {
			if found := w.examine(check); found[0].Level != doctor.OK {
				t.Errorf("with more senders the doctor says%s", describe(found))
			}
		}
	})

	t.Run("the role may not replicate", func(t *testing.T) {
		w := newWorldOn(t, server, db)
		role := w.role("")
		if found := w.examine("replication-connection"); found[0].Level != doctor.Problem || !strings.Contains(found[0].Finding, role) || found[0].Mend.Do != "see the check rights" {
			t.Errorf("the doctor says%s", describe(found))
		}
		w.mend(w.examine("rights"))
		if found := w.examine("replication-connection"); found[0].Level != doctor.OK {
			t.Errorf("with what the check rights printed the doctor says%s", describe(found))
		}
	})

	// Two servers that are no copies of each other, each with a database of the name.
	t.Run("it leads to another server", func(t *testing.T) {
		w := newWorldOn(t, nil, testdb.New(t))
		execute(t, server.DSN("postgres"), "CREATE DATABASE "+w.db.Name)
		w.options.ReplicationURL = server.DSN(w.db.Name)
		found := w.examine("replication-connection")
		if found[0].Level != doctor.Problem || !strings.Contains(found[0].Mend.Do, "lead both to the same database of the same primary") {
			t.Errorf("the doctor says%s", describe(found))
		}
		w.options.ReplicationURL = w.db.DSN
		if found := w.examine("replication-connection"); found[0].Level != doctor.OK {
			t.Errorf("of the same server the doctor says%s", describe(found))
		}
	})

	// A line of pg_hba.conf for "replication" lets no logical stream in; one for the database does.
	t.Run("pg_hba.conf has no line for it", func(t *testing.T) {
		w := newWorldOn(t, server, db)
		w.db.Exec("CREATE ROLE streaming LOGIN REPLICATION PASSWORD 'secret'")
		w.options.ReplicationURL = "postgres://streaming:secret" + w.db.DSN[strings.Index(w.db.DSN, "@"):]
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
		want := fmt.Sprintf("lets role %q in by pg_hba.conf: a line for database %q", "streaming", w.db.Name)
		if found := w.examineUntil("replication-connection", refused); !refused(found) || !strings.Contains(found[0].Mend.Do, want) {
			t.Fatalf("want %q, the doctor says%s", want, describe(found))
		}
		admit("host " + w.db.Name + " streaming 127.0.0.1/32 scram-sha-256")
		fine := func(found []doctor.Finding) bool { return found[0].Level == doctor.OK }
		if found := w.examineUntil("replication-connection", fine); !fine(found) {
			t.Errorf("with that line the doctor says%s", describe(found))
		}
	})
}

// holdSender opens a replication connection that stays until the test ends.
func (w *world) holdSender() {
	w.t.Helper()
	config, err := postgres.ReplicationConfig(w.db.DSN)
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := pgconn.ConnectConfig(w.t.Context(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close(context.WithoutCancel(w.t.Context())) })
}

// What depends on versions that are not at hand everywhere.
func TestDoctor_judgesServersByTheirFacts(t *testing.T) {
	for major, want := range map[int]doctor.Level{13: doctor.Problem, 14: "", 18: "", 19: doctor.Warning} {
		if got := level(doctor.JudgeVersion(major)); got != want {
			t.Errorf("Postgres %d is %q, want %q", major, got, want)
		}
	}
	for state, want := range map[string]doctor.Level{"": doctor.Problem, "synced": "", "temporary": doctor.Warning,
		"left over": doctor.Problem, "rows_removed": doctor.Problem} {
		var states []string
		if state != "" {
			states = []string{state}
		}
		if got := level(doctor.JudgeSynced("walpost", states)); got != want {
			t.Errorf("a copy that is %q is %q, want %q", state, got, want)
		}
	}
	found := doctor.JudgeStandbySlots(`here, "gone"`, []string{"here", "third"})
	if level(found) != doctor.Problem || found[0].Mend.SQL[0] != "ALTER SYSTEM SET synchronized_standby_slots = 'here'" {
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

func TestWatcher_saysEachThingOnceAndWhenItIsMended(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, nil, testdb.New(t))
	w.db.Exec("ALTER DATABASE " + w.db.Name + " SET track_activities = off")
	var log lines
	registry := prometheus.NewRegistry()
	watcher := doctor.NewWatcher(w.options, registry, slog.New(slog.NewTextHandler(&log, nil)))
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
	w.await("the warning", warnings(others+1))
	w.db.Exec("ALTER DATABASE " + w.db.Name + " RESET track_activities")
	w.await("the mending", warnings(others))
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"check=track-activities level=warning", "check=wal-keep-size level=warning", "finding is mended\" check=track-activities"} {
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

// Whoever meets an id looks it up: the page and the program have the same ones, in the same order.
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
