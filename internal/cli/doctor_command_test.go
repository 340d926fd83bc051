package cli

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/testdb"
)

func TestDoctor_exitCodeTellsProblemsFromWarnings(t *testing.T) {
	t.Chdir(t.TempDir())
	db := testdb.New(t)
	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name}
	code, stdout, stderr := execute(t, env, "doctor")
	if code != exitFine || stderr != "" {
		t.Errorf("exit code %d with warnings at most, want %d: %s%s", code, exitFine, stdout, stderr)
	}
	for _, want := range []string{"warning  wal-keep-size", "ALTER SYSTEM SET max_slot_wal_keep_size = ", "SELECT pg_reload_conf();", "0 problems, "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	db.Exec("CREATE PUBLICATION walpost") // without the table, and of someone else: a relay does not start
	code, stdout, stderr = execute(t, env, "doctor", "--json")
	if code != exitFailed || !strings.Contains(stderr, "the doctor found problems: 2") {
		t.Errorf("exit code %d with a problem, want %d: %s", code, exitFailed, stderr)
	}
	var report doctor.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	if report.Count(doctor.Problem) != 2 || len(report.Findings) != len(doctor.Checks()) {
		t.Errorf("the report is %s", stdout)
	}
	if code, _, stderr := execute(t, env, "doctor", "--standby=postgres://a@b@c"); code != exitUsage || !strings.Contains(stderr, "standby_url") {
		t.Errorf("exit code %d, says %q, want %d and the option", code, stderr, exitUsage)
	}
}

// The doctor's word on the rights of the built-in subscribers is no more and no less than they need.
func TestDoctor_asksForTheRightsThatTheBuiltInSubscribersNeed(t *testing.T) {
	t.Chdir(t.TempDir())
	db := testdb.New(t)
	role := db.Name + "_role"
	db.Exec("CREATE ROLE " + role + " LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { db.Exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	env := map[string]string{"WALPOST_DATABASE_URL": withUser(t, db.DSN, role, "secret"), "WALPOST_SLOT": db.Name}
	_, stdout, _ := execute(t, env, "doctor", "--json")
	var report doctor.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		if f.Check == "rights" && f.Fix != nil {
			for _, sql := range f.Fix.SQL {
				db.Exec(sql.String())
			}
		}
	}
	if code, stdout, stderr := execute(t, env, "doctor"); code != exitFine {
		t.Fatalf("exit code %d after the fix: %s%s", code, stdout, stderr)
	}
	relay := start(t, nil, env, "relay", "--ops-listen=127.0.0.1:0", "--log-format=text")
	for lesson := 1; lesson <= 3; lesson++ {
		db.Exec(`INSERT INTO lesson_progress (user_id, lesson_id, track_slug, lesson_slug, completed, completed_at) VALUES (1, $1, 'go', 'x', true, now())`, lesson)
		db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1::int::text, 'lesson.completed', '1', jsonb_build_object(
			'event_id', $1::int::text, 'type', 'lesson.completed', 'correlation_id', 'c', 'occurred_at', '2026-01-31T15:04:05Z',
			'user_id', 1, 'lesson_id', $1::int, 'track_slug', 'go', 'lesson_slug', 'x'))`, lesson)
	}
	waitFor(t, "every row to be marked", func() bool { return db.Int("SELECT count(*) FROM outbox WHERE published_at IS NULL") == 0 })
	relay.stop()
	if code := <-relay.exited; code != exitFine {
		t.Errorf("exit code after a soft stop is %d, want %d", code, exitFine)
	}
	if strings.Contains(relay.stderr.String(), "permission denied") {
		t.Errorf("a right is missing: %s", relay.stderr.String())
	}
}

// withUser returns the connection string for another role.
func withUser(t *testing.T, dsn, user, password string) string {
	t.Helper()
	if !strings.Contains(dsn, "://") {
		return dsn + " user=" + user + " password=" + password // the last one counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}
