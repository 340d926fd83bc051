package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
)

// roles is a database of its own server that was set up as docs/security.md says, with deploy/sql/roles.sql.
type roles struct {
	*testdb.DB
	t   *testing.T
	sql string
}

func newRoles(t *testing.T) *roles {
	t.Helper()
	text, err := os.ReadFile("../../deploy/sql/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	r := &roles{testdb.NewEmptyOn(t, testdb.NewServer(t, nil)), t, string(text)}
	r.apply() // before the tables
	for _, role := range []string{"migrate", "relay", "api", "operator"} {
		r.Exec("ALTER ROLE walpost_" + role + " PASSWORD 'secret'")
	}
	if code, _, stderr := execute(t, r.env("migrate"), "migrate"); code != exitFine {
		t.Fatalf("migrate as walpost_migrate: exit code %d: %s", code, stderr)
	}
	r.apply()
	return r
}

// apply runs the file as psql does, as the superuser.
func (r *roles) apply() {
	r.t.Helper()
	conn := r.connect("")
	if _, err := conn.PgConn().Exec(r.t.Context(), r.sql).ReadAll(); err != nil {
		r.t.Fatalf("deploy/sql/roles.sql: %v", err)
	}
}

func (r *roles) dsn(role string) string {
	u, err := url.Parse(r.DSN)
	if err != nil {
		r.t.Fatal(err)
	}
	if role != "" {
		u.User = url.UserPassword("walpost_"+role, "secret")
	}
	return u.String()
}

func (r *roles) env(role string) map[string]string {
	return map[string]string{"WALPOST_DATABASE_URL": r.dsn(role), "WALPOST_SLOT": r.Name}
}

func (r *roles) connect(role string) *pgx.Conn {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.dsn(role))
	if err != nil {
		r.t.Fatalf("connect as %s: %v", role, err)
	}
	r.t.Cleanup(func() { conn.Close(r.t.Context()) })
	return conn
}

// S-11: each role of deploy/sql/roles.sql can do its work.
func TestRoles_areEnoughForTheirWork(t *testing.T) {
	r := newRoles(t)
	api := start(t, nil, r.env("api"), "api", "--auth=dev", "--api-listen=127.0.0.1:0", "--log-format=json")
	relay := start(t, nil, r.env("relay"), "relay", "--ops-listen=127.0.0.1:0", "--log-format=json")
	waitFor(t, "the relay to stream", func() bool { return strings.Contains(relay.stderr.String(), `"msg":"streaming"`) })
	waitFor(t, "the API", func() bool { return strings.Contains(api.stderr.String(), `"url":"`) })
	_, rest, _ := strings.Cut(api.stderr.String(), `"url":"`)
	base, _, _ := strings.Cut(rest, `"`)
	askAPI := func(method, path, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("X-User-ID", "42")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s %s answers %s", method, path, response.Status)
		}
	}
	for range 2 {
		askAPI("PUT", "/api/progress/lessons/1/complete", `{"track_slug":"go-basics","lesson_slug":"channels"}`)
	}
	askAPI("PUT", "/api/progress/lessons/2/complete", `{"track_slug":"go-basics","lesson_slug":"slices"}`)
	waitFor(t, "both events to be delivered and marked", func() bool {
		return r.Int(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`) == 2
	})
	for _, path := range []string{"/api/progress", "/api/achievements", "/api/notifications", "/api/recommendations", "/ready"} {
		askAPI("GET", path, "")
	}

	operate := func(line string) string {
		t.Helper()
		code, stdout, stderr := execute(t, r.env("operator"), strings.Fields(line)...)
		if code != exitFine {
			t.Errorf("walpost %s as operator: exit code %d: %s%s", line, code, stdout, stderr)
		}
		return stdout
	}
	operate("status")
	operate("subscribers pause analytics --why=maintenance")
	lesson := 2
	waitFor(t, "debt of the paused subscriber", func() bool { // the relay sees the pause within two seconds
		lesson++
		askAPI("PUT", fmt.Sprintf("/api/progress/lessons/%d/complete", lesson), `{"track_slug":"go-basics","lesson_slug":"maps"}`)
		return r.Int(`SELECT count(*) FROM walpost.owed WHERE subscriber = 'analytics' AND state = 'waiting'`) > 0
	})
	id := r.Text(`SELECT min(event_id) FROM walpost.owed WHERE state = 'waiting'`)
	operate("owed list")
	operate("owed show " + id)
	operate("event " + id)
	operate("owed add --subscriber=analytics --state=dead --why=test " + id)
	operate("deadletters list")
	operate("owed redrive --why=test -y " + id)
	operate("subscribers resume analytics")
	waitFor(t, "the redriven event to be paid and marked", func() bool {
		return r.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0
	})
	operate("owed add --subscriber=analytics --state=dead --why=test " + id)
	operate("owed discard --why=test -y " + id)
	operate("replay analytics --since=1h --why=test -y")
	operate("replay list")
	waitFor(t, "the replay", func() bool { return r.Int(`SELECT count(*) FROM walpost.replays WHERE state = 'done'`) == 1 })
	r.Exec(`INSERT INTO walpost.subscribers (slot, name, gone_at, last_seen) VALUES ($1, 'old', '2024-01-01', '2024-01-01')`, r.Name)
	r.Exec(`INSERT INTO walpost.owed (slot, subscriber, source, event_id, occurrence, event_type, key, epoch, commit_lsn, ordinal, state)
		VALUES ($1, 'old', 'lessons', 'x', 'x', 'x', 'x', 1, '0/1', 0, 'dead')`, r.Name)
	for _, line := range []string{
		"subscribers list", "subscribers forget old --why=test -y", "replay analytics --since=1h --why=test --dry-run",
	} {
		operate(line)
	}
	for _, p := range []*program{relay, api} {
		p.stop()
		if code := <-p.exited; code != exitFine {
			t.Errorf("exit code %d", code)
		}
	}
	for _, text := range []string{relay.stderr.String(), api.stderr.String()} {
		if strings.Contains(text, "42501") || strings.Contains(text, "permission denied") {
			t.Errorf("a right is missing: %s", text)
		}
	}
	if code, stdout, stderr := execute(t, r.env("relay"), "doctor", "--json"); strings.Contains(stdout, `"level": "problem"`) {
		t.Errorf("the doctor, as the relay: exit code %d: %s%s", code, stdout, stderr)
	}
	if code, _, stderr := execute(t, r.env("migrate"), "migrate"); code != exitFine {
		t.Errorf("migrate again: exit code %d: %s", code, stderr)
	}
}

// S-11: and none can do what is another's.
func TestRoles_canDoNothingElse(t *testing.T) {
	r := newRoles(t)
	r.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('1', 'x', '{}')`)
	r.Exec(`INSERT INTO walpost.leader (slot, holder, term) VALUES ('walpost', 'host/1', 1)`)
	const own, all = "api relay operator migrate", "api relay operator"
	grantsRelay := own
	if r.Int(`SELECT current_setting('server_version_num')::int`) < 150_000 {
		grantsRelay = "api operator migrate" // until 14 a role that can log in may give itself away, whatever its rights
	}
	for sql, forbidden := range map[string]string{
		// leadership, slot and what is recorded
		`UPDATE walpost.leader SET term = term + 1`:                                            "api operator",
		`DELETE FROM walpost.leader`:                                                           "api operator",
		`UPDATE walpost.fence SET term = 0`:                                                    "api operator",
		`UPDATE walpost.slots SET state = 'creating'`:                                          "api operator",
		`INSERT INTO walpost.inbox VALUES ('a', 'b', 'c', 'd', 'e')`:                           "api operator",
		`DELETE FROM walpost.audit`:                                                            "api operator",
		`SELECT FROM walpost.owed`:                                                             "api",
		`UPDATE walpost.owed SET state = 'dead'`:                                               "api",
		`UPDATE walpost.subscribers SET name = 'x'`:                                            "api",
		`INSERT INTO walpost.walpost_schema_version (version_id, is_applied) VALUES (9, true)`: all,
		`SELECT pg_create_logical_replication_slot('stolen', 'pgoutput')`:                      "api operator migrate",
		`SELECT pg_drop_replication_slot('walpost')`:                                           "api operator migrate",
		// events
		`UPDATE outbox SET payload = '{"forged": true}'`:                             all,
		`UPDATE outbox SET event_type = 'order.paid'`:                                all,
		`INSERT INTO outbox (event_id, event_type, payload) VALUES ('2', 'x', '{}')`: "relay operator",
		`DELETE FROM outbox`:                                                        "api operator",
		`UPDATE outbox SET published_at = now()`:                                    "api",
		`SELECT FROM outbox`:                                                        "api",
		`SELECT pg_logical_emit_message(true, 'orders', '{}')`:                      own,
		`UPDATE lesson_progress SET completed = false`:                              "relay operator",
		`SELECT FROM analytics_events`:                                              "api operator",
		`INSERT INTO user_achievements (user_id, achievement_slug) VALUES (1, 'x')`: "api operator",
		`DELETE FROM lesson_progress`:                                               all,
		// other people's code
		`CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.now()'`: all,
		`CREATE TABLE public.loot (a int)`: all,
		`CREATE SCHEMA loot`:               all,
		`CREATE FUNCTION walpost.f() RETURNS int LANGUAGE sql AS 'SELECT 1'`:                                          all,
		`ALTER TABLE outbox DISABLE TRIGGER ALL`:                                                                      all,
		`CREATE TRIGGER t BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`: all,
		`DROP PUBLICATION walpost`:                            all,
		`ALTER PUBLICATION walpost SET TABLE lesson_progress`: all,
		`TRUNCATE outbox`:                                     all,
		// the server
		`CREATE ROLE loot SUPERUSER`:                own,
		`ALTER ROLE walpost_relay PASSWORD 'x'`:     "api operator migrate",
		`ALTER SYSTEM SET fsync = off`:              own,
		`COPY outbox TO PROGRAM 'true'`:             own,
		`SELECT pg_read_file('/etc/passwd')`:        own,
		`GRANT walpost_relay TO walpost_api`:        grantsRelay,
		`SET ROLE walpost_relay`:                    "api operator migrate",
		`SET SESSION AUTHORIZATION walpost_migrate`: all,
	} {
		for _, role := range strings.Fields(forbidden) {
			conn := r.connect(role)
			_, err := conn.Exec(t.Context(), sql)
			switch code := postgres.Code(err); {
			case err == nil:
				t.Errorf("%s can: %s", role, sql)
			case code != "42501" && code != "42939": // insufficient_privilege, reserved_name
				t.Errorf("%s: %s fails for another reason: %v", role, sql, err)
			}
			conn.Close(t.Context())
		}
	}
	if got := r.Text(`SELECT coalesce(string_agg(rolname, ' ' ORDER BY rolname), '') FROM pg_roles WHERE rolname LIKE 'walpost%'
		AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls OR rolreplication AND rolname <> 'walpost_relay')`); got != "" {
		t.Errorf("%s have attributes that they do not need", got)
	}
}
