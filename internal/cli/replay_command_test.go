package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// replayed are the ids of the replayed calls of a fake, in their order.
func replayed(fake *subscribertest.Fake) string {
	var ids []string
	for _, call := range fake.Calls() {
		if call.Replay {
			ids = append(ids, call.EventID)
		}
	}
	return strings.Join(ids, " ")
}

// replay runs `walpost replay` and checks what it says and how it ends.
func (d *commandTest) replay(args string, code int, want ...string) {
	d.t.Helper()
	got, stdout, stderr := d.run("replay "+args, "--why=its database was restored")
	if got != code {
		d.t.Errorf("walpost replay %s: exit code %d, want %d", args, got, code)
	}
	for _, w := range want {
		if !strings.Contains(stdout+stderr, w) {
			d.t.Errorf("walpost replay %s says\n%s%s\nwant %q in it", args, stdout, stderr, w)
		}
	}
}

func TestReplay_ofARunningRelay(t *testing.T) {
	d := newCommandTest(t)
	relay, ops := d.relay()
	d.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, created_at)
		SELECT id, 'lesson.completed', 'k-' || id, '{}', '2026-01-01Z'::timestamptz + n * interval '1 hour'
		FROM unnest('{e1,e2,bad}'::text[]) WITH ORDINALITY e(id, n)`)
	waitFor(t, "e1 and e2 to be marked", func() bool { return d.Int(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`) == 2 })

	d.replay("rec --since 2020-01-01 --dry-run", exitFine, "lessons  3", "Source lessons has rows from 2026-01-01T01:00:00Z on: retention deletes what was published 168h ago",
		"3 deliveries to rec, at most 500 a second, 1s or more", "Nothing was changed")
	d.replay("rec --since 2026-01-02", exitFine, "Nothing is to be sent; nothing was changed")
	if n := d.Int(`SELECT count(*) FROM walpost.replays`); n != 0 {
		t.Errorf("%d replays are recorded, want none so far", n)
	}
	d.replay("rec --key k-e2 --yes", exitFine, "is done: 1 delivered.")
	d.replay("rec --since 2026-01-01T02:30:00Z --type lesson.completed --yes --rate 0", exitFine, "1 delivery to rec, as fast as it takes them", "is done: 1 delivered.")
	if got, want := replayed(d.rec), "e2 bad"; got != want {
		t.Errorf("replayed %q, want %q", got, want)
	}
	d.replay("picky --source lessons --yes", exitFine, "is done: 2 delivered, 1 left out that are owed already.")
	d.replay("picky --source lessons --yes --json --detach", exitFine, `"sent": 2`, `"state": "waiting"`, `"rate": 500`)

	for args, why := range map[string]string{
		"rec":                                   "at least one of since, until, key, type and source",
		"rec --key a --rate=-1":                 "rate must not be negative",
		"rec --since 1h --until 2h":             "until must be after since",
		"rec --source nosuch":                   `no source "nosuch"`,
		"rec --key k-e1":                        "no one is here to ask: add --yes",
		"cancel nosuch":                         "nosuch",
		"list --limit 0":                        "--limit",
		"rec --since yesterday":                 "is no time",
		"rec --key a --yes --since 2999-01-01T": "is no time",
	} {
		if strings.HasPrefix(args, "list") {
			d.fails("replay "+args, exitUsage, why)
			continue
		}
		d.replay(args, exitUsage, why)
	}
	d.replay("missing --key a", exitFailed, `there is no subscriber "missing"`)
	d.fails("replay rec --key a --yes", exitUsage, "--why is missing")
	d.replay("cancel 999", exitFailed, "there is no replay 999")
	d.replay("cancel 1", exitFailed, "it is done since")

	if code, body := get(t, ops+"/v1/replays"); code != 200 || !strings.Contains(body, `"key": "k-e2"`) {
		t.Errorf("the ops API says %d %s", code, body)
	}
	// Ctrl-C leaves it running.
	p := start(t, d.kinds(), d.env, "replay", "rec", "--source=lessons", "--rate=1", "--yes", "--why=slowly")
	waitFor(t, "the replay to be recorded", func() bool { return strings.Contains(p.stderr.String(), "is recorded") })
	p.stop()
	if code := <-p.exited; code != exitFine || !strings.Contains(p.stderr.String(), "goes on without you") {
		t.Errorf("after Ctrl-C: exit code %d, %s", code, p.stderr.String())
	}
	waitFor(t, "it to be done all the same", func() bool { return replayed(d.rec) == "e2 bad e1 e2 bad" })
	waitFor(t, "that to be written", func() bool { return d.Int(`SELECT count(*) FROM walpost.replays WHERE state <> 'done'`) == 0 })
	d.stop(relay)
	d.replay("rec --key k-e1 --yes", exitFine, "No relay reads slot "+d.Name, "begins when one does", "is recorded")
	d.says("replay list", "waiting", "--key k-e1", "done", who())
	last := d.Int(`SELECT max(id) FROM walpost.replays`)
	d.replay(fmt.Sprintf("cancel %d", last), exitFine, "is cancelled", "0 of 1 row.")
	if got := d.Int(`SELECT count(*) FROM walpost.audit WHERE action IN ('replay', 'cancel replay') AND why = 'its database was restored'`); got != 6 {
		t.Errorf("%d notes in the audit, want 6", got)
	}
}

// The relay is killed in the middle of a replay; the counter of lessons, which is not idempotent by itself,
// then says that each effect happened exactly once more.
func TestProgram_aReplayGoesOnAfterAKillAndDoesEachEffectOnceMore(t *testing.T) {
	db := testdb.New(t)
	api := startAPI(t, db).AwaitAPI()
	first := startRelay(t, db)
	first.AwaitStreaming()
	total := int64(0)
	for user := range 4 {
		total += int64(len(complete(t, &testprogram.Learner{User: int64(user + 1)}, api, 25)))
	}
	testprogram.AwaitEffects(t, db)
	counted := func() int64 { return db.Int(`SELECT coalesce(sum(completed), 0)::bigint FROM recommendations`) }
	if got := counted(); got != total {
		t.Fatalf("%d lessons counted, want %d", got, total)
	}
	askForReplay := func(args ...string) string {
		command := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN},
			append([]string{"replay", "recommendations", "--slot=" + db.Name, "--source=lessons", "--yes", "--why=counted wrong"}, args...)...)
		return command.Await(`(?s)(.*(?:is done|is recorded).*)`)
	}
	if said := askForReplay(); !strings.Contains(said, fmt.Sprintf("Effects of %d of them are recorded in its inbox and are skipped", total)) || counted() != total {
		t.Errorf("without --again %d lessons are counted, want %d; it says %s", counted(), total, said)
	}
	askForReplay("--again", "--rate=40", "--detach")
	testprogram.Eventually(t, "some lessons to be counted again", func() bool { return counted() >= total+20 })
	first.Kill()
	at := counted()
	if at >= 2*total {
		t.Fatal("the kill came after the replay")
	}
	startRelay(t, db).AwaitStreaming()
	testprogram.Eventually(t, "the replay to be done", func() bool {
		return db.Int(`SELECT count(*) FROM walpost.replays WHERE state = 'done'`) == 2
	})
	if got := counted(); got != 2*total {
		t.Errorf("%d lessons are counted after the replay (%d at the kill), want %d", got, at, 2*total)
	}
	if got := db.Int(`SELECT count(*) FROM walpost.inbox WHERE subscriber = 'recommendations'`); got != total {
		t.Errorf("%d events in the inbox, want %d", got, total)
	}
}

func TestProgressOf_saysWhatAPersonWantsToKnow(t *testing.T) {
	at := replayAt(50, 200)
	if got, want := progressOf(at, 90*time.Second), "[#######.......................] 50 of 200, 1m30s, dead 1, left out 4; waits\n"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func replayAt(seen, of int64) replay.Replay {
	return replay.Replay{Estimated: of, State: replay.Running, Problem: "waits", Progress: replay.Progress{
		Delivered: seen - 5, Dead: 1, Owed: 2, Unwanted: 1, Invalid: 1,
	}}
}
