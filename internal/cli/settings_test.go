package cli

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/debt/debttest"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// hostile are settings that a server, a database or a role may have, each of which changes what a session reads or
// writes, or ends it. What a start and a repair do takes longer than their timeouts allow.
var hostile = []string{
	"statement_timeout = '150ms'", "lock_timeout = '1ms'", "idle_in_transaction_session_timeout = '20ms'", "idle_session_timeout = '5s'",
	"default_transaction_read_only = on", "default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on",
	"client_encoding = 'LATIN1'", "search_path = 'nowhere'", "row_security = on", "synchronous_commit = off", "standard_conforming_strings = off",
	"array_nulls = off", "transform_null_equals = on", "bytea_output = 'escape'", "datestyle = 'German'", "timezone = 'America/New_York'",
	"intervalstyle = 'iso_8601'", "extra_float_digits = -3", "lc_monetary = 'POSIX'", "jit = on", "jit_above_cost = 0", "jit_inline_above_cost = 0",
}

// friendly is a connection string for the test's own sessions, which have what a database sets unless they say otherwise.
func friendly(db *testdb.DB) string {
	options := url.Values{}
	for name, value := range map[string]string{
		"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0", "default_transaction_read_only": "off",
		"default_transaction_isolation": "read committed", "client_encoding": "UTF8", "search_path": "public", "standard_conforming_strings": "on",
		"default_transaction_deferrable": "off", "jit": "off",
	} {
		options.Set(name, value)
	}
	if db.Int(`SELECT current_setting('server_version_num')::int`) >= 170000 {
		options.Set("transaction_timeout", "0")
	}
	return db.DSN + "&" + strings.ReplaceAll(options.Encode(), "+", "%20")
}

// S-81 (docs/postgres.md §9): with many rows that wait (100,000 where WALPOST_ROUNDS asks for full numbers), a first
// start, its marks, a repair and every command take as long as they need in a database whose settings are all against
// us, and none of them begins again for ever.
func TestProgram_worksWhateverTheDatabaseSets(t *testing.T) {
	d := newCommandTest(t)
	waiting := int64(20_000)
	if os.Getenv("WALPOST_ROUNDS") != "" {
		waiting = 100_000
	}
	d.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'e' || n, 'lesson.completed', (n % 1000)::text, jsonb_build_object('n', n) FROM generate_series(1, $1) n`, waiting)
	settings := hostile
	if d.Int(`SELECT current_setting('server_version_num')::int`) >= 170000 {
		settings = append(settings[:len(settings):len(settings)], "transaction_timeout = '150ms'")
	}
	hospitable := friendly(d.DB)
	for _, setting := range settings {
		d.Exec(`ALTER DATABASE ` + d.Name + ` SET ` + setting)
	}
	d.Use(hospitable)
	d.configure("rec")

	code, _, stderr := d.run("migrate")
	if code != exitFine {
		t.Fatalf("migrate: %s", stderr)
	}
	var delivered atomic.Int64
	d.rec = subscribertest.Handling("rec", func(context.Context, subscriber.Delivery) error {
		delivered.Add(1)
		return nil
	})
	allMarked := func(least int64) {
		t.Helper()
		testprogram.Within(t, 2*time.Minute, "all marks", func() bool {
			return d.Int(`SELECT count(*) FROM (SELECT FROM outbox WHERE published_at IS NULL LIMIT 1) o`) == 0
		})
		if got := delivered.Load(); got < least {
			t.Errorf("%d events are delivered, want %d", got, least)
		}
	}
	relay, ops := d.relay()
	d.env["WALPOST_OPS_URL"] = ops
	allMarked(waiting)
	for _, command := range []string{
		"status", "doctor", "event e1", "subscribers list", "subscribers pause rec", "owed list", "owed add --subscriber=rec --why=test e7", "owed show e7",
		"deadletters list", "owed redrive --event=e7 --dry-run", "owed discard --event=e7 --subscriber=rec --why=test --yes", "subscribers resume rec",
		"replay rec --since=1d --key=7 --again --why=test --yes", "replay list",
	} {
		if code, stdout, stderr := d.run(command); code == exitUsage || strings.Contains(stdout+stderr, "SQLSTATE") {
			t.Errorf("walpost %s ends with %d: %s%s", command, code, stdout, stderr)
		}
	}
	d.stop(relay)
	if again := strings.Count(relay.stderr.String(), "SQLSTATE"); again != 0 {
		t.Errorf("%d lines name an error of the server", again)
	}

	// A repair of as many.
	d.Exec(`SELECT pg_drop_replication_slot($1)`, d.Name)
	d.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload)
		SELECT 'late' || n, 'lesson.completed', (n % 1000)::text, jsonb_build_object('n', n) FROM generate_series(1, $1) n`, waiting)
	relay, _ = d.relay()
	allMarked(2 * waiting)
	if got := debttest.Unpaid(d); got != 0 {
		t.Errorf("%d deliveries are still owed", got)
	}
	d.stop(relay)
	if again := strings.Count(relay.stderr.String(), "SQLSTATE"); again != 0 {
		t.Errorf("%d lines of the repair name an error of the server", again)
	}
}

// S-82: a database in another encoding is written and read as UTF-8, by stream and by table.
func TestProgram_speaksUTF8WithDatabasesOfOtherEncodings(t *testing.T) {
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			t.Chdir(t.TempDir())
			db := testdb.NewEncoded(t, encoding)
			db.Exec(`ALTER DATABASE ` + db.Name + ` SET client_encoding = 'LATIN1'`)
			got := map[string]string{}
			sub := subscribertest.Handling("rec", func(_ context.Context, delivery subscriber.Delivery) error {
				got[delivery.ID] = string(delivery.Payload)
				return nil
			})
			kinds := app.Kinds{"rec": {New: func(app.Resources) (subscriber.Subscriber, error) { return sub, nil }}}
			env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name,
				"WALPOST_CONFIG": configFile(t, "subscribers:\n  - name: rec\n    concurrency: 1\n")}
			insert := func(id string) {
				db.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1, 'lesson.completed', 'é', '{"grüße": "é"}')`, id)
			}
			insert("by table")
			p := start(t, kinds, env, "relay", "--ops-listen=127.0.0.1:0", "--log-format=json")
			waitFor(t, "the relay to stream", func() bool { return strings.Contains(p.stderr.String(), `"msg":"streaming"`) })
			insert("by stream")
			waitFor(t, "both marks", func() bool { return db.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0 })
			look := start(t, kinds, env, "event", "by table")
			if code := <-look.exited; code != exitFine || !strings.Contains(look.stdout.String(), "é") {
				t.Errorf("event: %s%s", look.stdout.String(), look.stderr.String())
			}
			p.stop()
			if code := <-p.exited; code != exitFine {
				t.Errorf("the relay ends with exit code %d", code)
			}
			const want = `{"grüße": "é"}`
			if len(got) != 2 || got["by table"] != want || got["by stream"] != want {
				t.Errorf("delivered %s, want twice %s", fmt.Sprint(got), want)
			}
		})
	}
}

// S-84: with one session, a first start over rows that wait would wait for itself; with as many as are asked for it does not.
func TestProgram_refusesAPoolThatIsTooSmall(t *testing.T) {
	d := newCommandTest(t)
	d.insert("e1")
	url := d.env["WALPOST_DATABASE_URL"]
	d.env["WALPOST_DATABASE_URL"] = url + "&pool_max_conns=1"
	d.fails("relay --ops-listen=127.0.0.1:0", exitUsage, "pool_max_conns is 1, and a first start or a repair holds 2 sessions")
	d.env["WALPOST_DATABASE_URL"] = url + "&pool_max_conns=2"
	relay, _ := d.relay()
	waitFor(t, "the mark", func() bool { return d.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0 })
	d.stop(relay)
}
