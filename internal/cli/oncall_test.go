package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-14: a person on call has the address of the database, and not each secret of each receiver.
func TestCommands_needNoSecretThatTheyDoNotUse(t *testing.T) {
	t.Chdir(t.TempDir())
	db := testdb.New(t)
	file := filepath.Join(t.TempDir(), "walpost.yaml")
	err := os.WriteFile(file, []byte(`
database_url: ${DATABASE}
smtp_url: ${SMTP}
jwt_secret: {file: /nowhere/jwt}
sources: [{name: lessons, table: public.outbox}]
subscribers:
  - {name: billing, kind: webhook, url: "https://${HOST}/hooks", secret: "${SECRET}", headers: {Authorization: "Bearer ${TOKEN}"}}
  - {name: crm, kind: webhook, url: "https://crm.example/hooks", secret: {file: /nowhere/secret}}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	// No relay is asked: one of someone else's can listen at the default address, and "tail" would follow it for ever.
	env := map[string]string{"DATABASE": db.DSN, "WALPOST_SLOT": db.Name, "WALPOST_CONFIG": file, "WALPOST_OPS_URL": "http://127.0.0.1:1"}
	for _, command := range []string{
		"migrate", "doctor", "status", "owed list", "deadletters list", "subscribers list", "subscribers pause billing", "replay list", "event x", "tail",
	} {
		_, stdout, stderr := execute(t, env, strings.Fields(command)...)
		if said := stdout + stderr; strings.Contains(said, "environment variable") || strings.Contains(said, "/nowhere") {
			t.Errorf("%s: %s", command, said)
		}
	}
	// What it uses it must have, and what sends it all.
	delete(env, "DATABASE")
	for command, want := range map[string]string{
		"status": "DATABASE is not set",
		"config": "HOST is not set\nSECRET is not set\nTOKEN is not set\n/nowhere/secret\nSMTP is not set\n/nowhere/jwt",
		"relay":  "HOST is not set\nSECRET is not set\nTOKEN is not set\n/nowhere/secret",
		"api":    "/nowhere/jwt",
	} {
		code, _, stderr := execute(t, env, command)
		for _, word := range strings.Split(want, "\n") {
			if code != exitUsage || !strings.Contains(stderr, word) {
				t.Errorf("%s: exit code %d, want %q: %s", command, code, word, stderr)
			}
		}
		if command == "status" && strings.Contains(stderr, "SECRET") {
			t.Errorf("status: %s", stderr)
		}
	}
}

// S-16: who types status because something is wrong reads what is wrong first.
func TestStatus_beginsWithTheProblemsOfReady(t *testing.T) {
	d := newCommandTest(t)
	relay, url := d.relay()
	d.env["WALPOST_OPS_URL"] = url
	if text := d.says("status", "Ready: the relay is streaming."); strings.Index(text, "Ready") > strings.Index(text, "Slot") {
		t.Errorf("status begins with\n%s", text)
	}
	d.Exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no marks today'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	d.insert("e1")
	var text string
	waitFor(t, "a relay that is not ready", func() bool {
		var code int
		code, text, _ = d.run("status")
		return code == exitFailed
	})
	if !strings.HasPrefix(text, "Not ready: ") || !strings.Contains(text, "no marks today") || strings.Index(text, "no marks today") > strings.Index(text, "Slot") {
		t.Errorf("status says\n%s", text)
	}
	var parsed struct {
		Ready    *bool
		Problems []string
	}
	_, text, _ = d.run("status --json")
	if err := json.Unmarshal([]byte(text), &parsed); err != nil || parsed.Ready == nil || *parsed.Ready || len(parsed.Problems) == 0 {
		t.Errorf("in JSON: %v %s", err, text)
	}
	relay.stop()
	<-relay.exited
	// S-176: and without a relay, that none is there.
	waitFor(t, "a slot without a reader", func() bool {
		return d.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`, d.Name) == 1
	})
	if code, _, stderr := d.run("status"); code != exitFailed || !strings.Contains(stderr, unread) {
		t.Errorf("without a relay: exit code %d, %s", code, stderr)
	}
}

// S-18: a stop says that it begins, that it drains, and what came of it.
func TestRelay_saysThatItStopsAndWhatCameOfIt(t *testing.T) {
	d := newCommandTest(t)
	blocking := subscribertest.Blocking()
	d.rec = blocking.Named("rec")
	running, url := d.relay()
	d.insert("e1", "e2")
	blocking.AwaitCalls(t, 2)
	// The other subscriber has finished both: what it has not been given by now stays open, and is counted.
	waitFor(t, "the other subscriber", func() bool {
		_, answer := get(t, url+"/progress")
		var progress relay.Progress
		return json.Unmarshal([]byte(answer), &progress) == nil && len(progress.Subscribers) == 2 &&
			progress.Subscribers[1].Delivered == 2
	})
	running.stop()
	waitFor(t, "a relay that says that it drains", func() bool {
		code, answer := get(t, url+"/ready")
		return code == http.StatusServiceUnavailable && strings.Contains(answer, `"state": "stopping"`)
	})
	blocking.Release()
	if code := <-running.exited; code != exitFine {
		t.Errorf("exit code %d", code)
	}
	log := running.stderr.String()
	begin, end := strings.Index(log, `"msg":"stopping: what is in hand is finished"`), strings.Index(log, `"msg":"stopped"`)
	if begin < 0 || end < begin {
		t.Fatalf("the log says\n%s", log)
	}
	for _, fact := range []string{`"open":2`, `"drain":"`} {
		if !strings.Contains(log[begin:end], fact) {
			t.Errorf("the begin has no %s: %s", fact, log[begin:end])
		}
	}
	for _, fact := range []string{`"finished":2`, `"left_open":0`, `"confirmed":"`, `"took":"`} {
		if !strings.Contains(log[end:], fact) {
			t.Errorf("the end has no %s: %s", fact, log[end:])
		}
	}
}

// S-171: what no one gets is counted by reason, named once a type, in status, and never called finished.
func TestEvents_thatGoToNoOneAreCountedAndExplained(t *testing.T) {
	d := newCommandTest(t)
	config := "subscribers:\n  - {name: rec, events: [\"lesson.c*\", \"oder.*\"]}\n  - {name: picky, events: [\"lesson.*\"]}\n"
	if err := os.WriteFile(d.env["WALPOST_CONFIG"], []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	running, url := d.relay()
	d.env["WALPOST_OPS_URL"] = url
	d.Exec(`INSERT INTO outbox (event_id, event_type, payload) VALUES ('o1', 'order.paid', '{}'), ('o2', 'order.paid', '{}'), ('l1', 'lesson.opened', '{}')`)
	d.Exec(`INSERT INTO outbox (event_id, event_type, payload, published_at) VALUES ('born', 'lesson.completed', '{}', now())`)
	d.insert("bad1", "bad2", "last")
	waitFor(t, "the dead letters", func() bool { return d.owed("") == "picky/bad1/dead picky/bad2/dead" })
	waitFor(t, "the marks", func() bool { return d.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 2 })

	_, metrics := get(t, url+"/metrics")
	for _, line := range []string{
		`walpost_undelivered_total{reason="unwanted",source="lessons"} 2`,
		`walpost_undelivered_total{reason="published_before",source="lessons"} 1`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("no %s in the metrics", line)
		}
	}
	if n := strings.Count(running.stderr.String(), "no subscriber takes events of this type"); n != 1 {
		t.Errorf("%d warnings, want one for order.paid", n)
	}
	d.says("status", `No subscriber takes events of type "order.paid" of source lessons`, `rec: no event has matched "oder.*" of its events:`)

	if code, _, stderr := d.run("owed discard --event=bad1 --yes", "--why=test data"); code != exitFine {
		t.Errorf("discard: %d %s", code, stderr)
	}
	if code, _, stderr := d.run("owed discard --subscriber=picky --yes", "--why=the others, too"); code != exitFine {
		t.Errorf("discard: %d %s", code, stderr)
	}
	waitFor(t, "the marks of what was discarded", func() bool { return d.Int(`SELECT count(*) FROM outbox WHERE published_at IS NULL`) == 0 })
	want := map[string][2]string{ // of picky and rec
		"o1": {admin.Unwanted, admin.Unwanted}, "l1": {admin.Finished, admin.Unwanted},
		"born": {admin.PublishedBefore, admin.PublishedBefore}, "bad1": {admin.GivenUp, admin.Finished}, "bad2": {admin.GivenUp, admin.Finished},
	}
	compare := func() {
		t.Helper()
		for id, states := range want {
			var event admin.Event
			d.read("event "+id, &event)
			if len(event.Deliveries) != 2 || event.Deliveries[0].State != states[0] || event.Deliveries[1].State != states[1] {
				t.Errorf("event %s: %+v, want %q", id, event.Deliveries, states)
			}
		}
	}
	compare()
	d.stop(running)
	d.env["WALPOST_OPS_URL"] = noOne
	compare()
}

// S-173
func TestStatus_namesTheSlotOfAFormerName(t *testing.T) {
	d := newCommandTest(t)
	relay, _ := d.relay()
	d.stop(relay)
	old := d.Name + "_old"
	d.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, old)
	t.Cleanup(func() { d.Exec(`SELECT pg_drop_replication_slot($1)`, old) })
	d.Exec(`INSERT INTO walpost.slots (slot, system_id, timeline, epoch, confirmed, state, ours)
		SELECT $1, system_id, timeline, epoch, confirmed, state, ours FROM walpost.slots`, old)
	d.says("status", "Slot "+old+", too, is one of walpost's here: no one reads it, and the server keeps")
	var status admin.Status
	if d.read("status", &status); len(status.Unread) != 1 || status.Unread[0].Name != old || status.Unread[0].RetainedBytes == 0 {
		t.Errorf("in JSON: %+v", status.Unread)
	}
}

// S-175: a command that waits for a lock names who holds it; so does a migration.
func TestCommands_sayWhoHoldsALockThatTheyWaitFor(t *testing.T) {
	d := newCommandTest(t)
	relay, _ := d.relay()
	d.stop(relay)
	for command, lock := range map[string]string{"subscribers pause rec": "walpost.subscribers", "migrate": "walpost.migrating"} {
		tx, err := d.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "LOCK TABLE "+lock); err != nil {
			t.Fatal(err)
		}
		p := start(t, d.kinds(), d.env, strings.Fields(command)...)
		held := fmt.Sprintf("pid %d of role", tx.Conn().PgConn().PID())
		waitFor(t, command+" that says so", func() bool {
			return strings.Contains(p.stderr.String(), held) && strings.Contains(p.stderr.String(), "LOCK TABLE "+lock)
		})
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if code := <-p.exited; code != exitFine {
			t.Errorf("%s: exit code %d: %s", command, code, p.stderr.String())
		}
	}
}

// S-180
func TestStatus_saysWhyTheSlotIsLost(t *testing.T) {
	t.Chdir(t.TempDir())
	db := testdb.On(t, testdb.NewServer(t, map[string]string{"max_slot_wal_keep_size": "1MB"}))
	db.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, db.Name)
	env := map[string]string{"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name}
	db.Exec(`CREATE TABLE junk (x text)`)
	waitFor(t, "a slot that is lost", func() bool {
		db.Exec(`INSERT INTO junk VALUES ('x')`)
		db.Exec(`SELECT pg_switch_wal()`)
		db.Exec(`CHECKPOINT`)
		return db.Text(`SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1`, db.Name) == "lost"
	})
	_, stdout, _ := execute(t, env, "status")
	if db.Int(`SELECT current_setting('server_version_num')::int / 10000`) >= 18 {
		t.Run("idle", func(t *testing.T) { statusOfASlotThatWasIdle(t, db, env) })
	}
	if want := "is lost (the server has removed WAL that it needed: it kept more than max_slot_wal_keep_size (wal_removed))"; !strings.Contains(stdout, want) {
		t.Errorf("status says\n%s\nwant %q in it", stdout, want)
	}
}

func statusOfASlotThatWasIdle(t *testing.T, db *testdb.DB, env map[string]string) {
	t.Helper()
	db.Exec(`SELECT pg_create_logical_replication_slot('idle', 'pgoutput')`)
	db.Exec(`ALTER SYSTEM SET idle_replication_slot_timeout = '1s'`)
	db.Exec(`SELECT pg_reload_conf()`)
	waitFor(t, "a slot that is lost to its idleness", func() bool {
		db.Exec(`CHECKPOINT`)
		return db.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'idle' AND to_jsonb(pg_replication_slots)->>'invalidation_reason' = 'idle_timeout'`) == 1
	})
	_, stdout, _ := execute(t, env, "status", "--slot=idle")
	if want := "is lost (no relay read it for as long as idle_replication_slot_timeout allows (idle_timeout))"; !strings.Contains(stdout, want) {
		t.Errorf("status says\n%s\nwant %q in it", stdout, want)
	}
}
