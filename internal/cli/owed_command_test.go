package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/app"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// commandTest is a database with the commands for people. rec takes every event, picky none that has "bad" in its id.
type commandTest struct {
	*testdb.DB
	t   *testing.T
	rec *subscribertest.Fake
	env map[string]string
	// picky takes every event from now on.
	fixed atomic.Bool
}

func newCommandTest(t *testing.T) *commandTest {
	t.Helper()
	t.Chdir(t.TempDir())
	db := testdb.New(t)
	d := &commandTest{DB: db, t: t, rec: subscribertest.Recording().Named("rec"), env: map[string]string{
		"WALPOST_DATABASE_URL": db.DSN, "WALPOST_SLOT": db.Name, "WALPOST_CONFIG": filepath.Join(t.TempDir(), "walpost.yaml"),
	}}
	d.configure("rec", "picky")
	return d
}

// configure writes a file that names these subscribers.
func (d *commandTest) configure(names ...string) {
	d.t.Helper()
	text := "subscribers:\n"
	for _, name := range names {
		text += "  - name: " + name + "\n"
	}
	if err := os.WriteFile(d.env["WALPOST_CONFIG"], []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *commandTest) kinds() app.Kinds {
	picky := subscribertest.Handling("picky", func(_ context.Context, delivery subscriber.Delivery) error {
		if strings.Contains(delivery.ID, "bad") && !d.fixed.Load() {
			return subscriber.Permanent(errors.New("no such user\x1b[2J"))
		}
		return nil
	})
	return app.Kinds{
		"rec":   {New: func(app.Resources) (subscriber.Subscriber, error) { return d.rec, nil }},
		"picky": {New: func(app.Resources) (subscriber.Subscriber, error) { return picky, nil }},
	}
}

// relay starts a relay and waits until it streams. It returns the URL of its ops server.
func (d *commandTest) relay() (*program, string) {
	d.t.Helper()
	p := start(d.t, d.kinds(), d.env, "relay", "--ops-listen=127.0.0.1:0", "--log-format=json")
	// A first start with very many rows takes its time on a busy machine.
	testprogram.Within(d.t, time.Minute, "the relay to stream", func() bool { return strings.Contains(p.stderr.String(), `"msg":"streaming"`) })
	_, rest, _ := strings.Cut(p.stderr.String(), `"ops":"`)
	ops, _, _ := strings.Cut(rest, `"`)
	return p, ops
}

// stop stops a relay, and waits until the server knows.
func (d *commandTest) stop(relay *program) {
	d.t.Helper()
	relay.stop()
	if code := <-relay.exited; code != exitFine {
		d.t.Errorf("the relay ends with exit code %d", code)
	}
	waitFor(d.t, "the slot to be free", func() bool {
		return d.Int(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`, d.Name) == 1
	})
}

func (d *commandTest) insert(ids ...string) {
	d.t.Helper()
	for _, id := range ids {
		d.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ($1::text, 'lesson.completed', 'k-' || $1::text, '{"n": 12345678901234567890}')`, id)
	}
}

// run runs a command to its end. Words of the command are separated by spaces, and arguments follow.
func (d *commandTest) run(command string, args ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	p := start(d.t, d.kinds(), d.env, append(strings.Fields(command), args...)...)
	code = <-p.exited
	return code, p.stdout.String(), p.stderr.String()
}

// unread is what status ends with while no relay runs.
const unread = "no relay answers, and no one reads the slot"

// says runs a command that must end well and say all of want. A status may end with unread.
func (d *commandTest) says(command string, want ...string) string {
	d.t.Helper()
	code, stdout, stderr := d.run(command)
	if strings.HasPrefix(command, "status") && code == exitFailed && strings.Contains(stderr, unread) {
		code, stderr = exitFine, ""
	}
	if code != exitFine || stderr != "" {
		d.t.Errorf("walpost %s: exit code %d: %s", command, code, stderr)
	}
	for _, w := range want {
		if !strings.Contains(stdout, w) {
			d.t.Errorf("walpost %s says\n%s\nwant %q in it", command, stdout, w)
		}
	}
	return stdout
}

// fails runs a command that must end with an exit code and say why.
func (d *commandTest) fails(command string, code int, why string) {
	d.t.Helper()
	got, stdout, stderr := d.run(command)
	if got != code || !strings.Contains(stderr, why) || stdout != "" {
		d.t.Errorf("walpost %s: exit code %d: %s%s; want %d and %q", command, got, stdout, stderr, code, why)
	}
}

// read runs a command with --json and reads what it prints.
func (d *commandTest) read(command string, into any) {
	d.t.Helper()
	if err := json.Unmarshal([]byte(d.says(command+" --json")), into); err != nil {
		d.t.Errorf("walpost %s --json: %v", command, err)
	}
}

// owed lists what fits as subscriber/event/state.
func (d *commandTest) owed(filter string) string {
	d.t.Helper()
	var list struct {
		Owed []struct{ Subscriber, Event, State string }
	}
	d.read("owed list "+filter, &list)
	var owed []string
	for _, o := range list.Owed {
		owed = append(owed, o.Subscriber+"/"+o.Event+"/"+o.State)
	}
	return strings.Join(owed, " ")
}

func TestCommands_pausesChangesAndResumesARunningRelay(t *testing.T) {
	d := newCommandTest(t)
	relay, ops := d.relay()
	d.insert("e1")
	d.rec.AwaitDelivered(t, 1)

	d.says("subscribers pause rec", "rec is paused", "within 2 seconds")
	waitFor(t, "the relay to see the pause", func() bool {
		_, body := get(t, ops+"/progress")
		return strings.Contains(body, `"paused": true`)
	})
	d.insert("e2", "e3")
	waitFor(t, "both to be owed", func() bool { return d.owed("--subscriber=rec") == "rec/e2/waiting rec/e3/waiting" })
	d.says("owed list --type=lesson.completed", "SUBSCRIBER", "e2", "waiting", "k-e3")
	status := d.says("status", "Slot "+d.Name+" is reserved", "term 1", "paused", "2 ")
	if strings.Contains(status, "Nothing is owed") {
		t.Errorf("two are owed, but the status says\n%s", status)
	}
	var parsed struct {
		Slot        struct{ Active bool }
		Subscribers []struct {
			Name, State string
			Holding     int64 `json:"holding_wal_bytes"`
			Waiting     struct{ Deliveries int }
		}
	}
	d.read("status", &parsed)
	if rec := parsed.Subscribers[1]; !parsed.Slot.Active || rec.Name != "rec" || rec.State != "paused" || rec.Waiting.Deliveries != 2 || rec.Holding <= 0 {
		t.Errorf("status is %+v", parsed)
	}
	if code, body := get(t, ops+"/v1/status"); code != 200 || !strings.Contains(body, `"paused"`) {
		t.Errorf("the ops API says %d %s", code, body)
	}

	code, stdout, stderr := d.run("owed discard --event=e2 --yes", "--why=sent by hand")
	if code != exitFine || !strings.HasSuffix(stdout, "1 delivery discarded.\n") {
		t.Errorf("discard: exit code %d: %s%s", code, stdout, stderr)
	}
	d.says("subscribers resume rec --why=over", "rec is resumed")
	d.rec.AwaitDelivered(t, 2)
	code, stdout, stderr = d.run("owed add e1 --subscriber=rec", "--why=lost by the receiver")
	if code != exitFine || !strings.Contains(stdout, "1 delivery now waiting for rec") {
		t.Errorf("add: exit code %d: %s%s", code, stdout, stderr)
	}
	if got := strings.Join(d.rec.AwaitDelivered(t, 3), " "); got != "e1 e3 e1" {
		t.Errorf("delivered %s, want e1 e3 and e1 again", got)
	}
	waitFor(t, "nothing to be owed", func() bool { return d.owed("") == "" })
	audit := strings.Join(d.Texts(`SELECT action || ' ' || why FROM walpost.audit WHERE who = $1 ORDER BY id`, who()), ", ")
	if want := "pause , discard sent by hand, resume over, add lost by the receiver"; audit != want {
		t.Errorf("audited %q, want %q", audit, want)
	}
	d.stop(relay)
	d.says("status", "no one reads the slot", "Nothing is owed")
}

func TestCommands_showsAndDiscardsDeadLettersWithoutARelay(t *testing.T) {
	d := newCommandTest(t)
	relay, _ := d.relay()
	d.insert("bad1", "bad2", "good")
	d.rec.AwaitDelivered(t, 3)
	waitFor(t, "the dead letters", func() bool { return d.owed("--state=dead") == "picky/bad1/dead picky/bad2/dead" })
	d.stop(relay)

	list := d.says("deadletters list", "picky", "bad1", "bad2", "no such user")
	if strings.ContainsRune(list, '\x1b') {
		t.Errorf("an error reaches the terminal as it is: %q", list)
	}
	d.says("deadletters list --limit=1", "There are more than these 1")
	d.says("owed list --state=waiting", "Nothing is owed that fits.")
	d.says("owed list --since=1h --until=30m", "Nothing is owed that fits.")
	d.says("deadletters show bad1", "bad1 is owed to picky: dead", "no such user", `"n": 12345678901234567890`)
	d.says("owed show bad1 --json", `"n": 12345678901234567890`)
	d.says("status", "2 deliveries wait for a person")

	d.fails("owed show good", exitFailed, "is owed to no one")
	d.fails("deadletters discard --subscriber=picky --why=x", exitUsage, "add --yes")
	d.fails("deadletters discard --subscriber=picky --yes", exitUsage, "--why")
	d.fails("deadletters discard --why=x --yes", exitUsage, "chooses everything")
	d.fails("deadletters list --state=waiting", exitUsage, "walpost owed has")
	d.fails("owed list --limit=0", exitUsage, "--limit")
	d.fails("owed list --since=yesterday", exitUsage, "how long ago")
	d.fails("owed add x --subscriber=missing --why=x", exitFailed, "no subscriber")
	d.fails("subscribers pause missing", exitFailed, "no subscriber")

	d.says("deadletters discard --subscriber=picky --dry-run", "picky", "dead", "2 deliveries would be discarded")
	d.says("deadletters discard --subscriber=picky --dry-run --json", `"would_discard": 2`)
	d.says("deadletters discard --event=bad1 --why=x --yes --json", `"discarded": 1`, `"result": "discarded"`)
	d.says("deadletters discard --type=none --why=x --yes", "Nothing is owed that fits")
	code, stdout, stderr := d.run("deadletters discard bad1 none --why=x --yes")
	if code != exitFailed || !strings.Contains(stdout, "none") || !strings.Contains(stderr, "not discarded: 1 of the deliveries that were named") {
		t.Errorf("discard: exit code %d: %s%s", code, stdout, stderr)
	}
	if got := d.owed(""); got != "picky/bad2/dead" {
		t.Errorf("owed is %q", got)
	}
	// With one that is nowhere the others are added, and the exit code tells.
	code, stdout, stderr = d.run("owed add good none --subscriber=picky --state=dead --why=x")
	if code != exitFailed || !strings.Contains(stdout, "1 delivery now dead") || !strings.Contains(stderr, "1 of the events: none") {
		t.Errorf("add: exit code %d: %s%s", code, stdout, stderr)
	}
	if got := d.owed("--event=good"); got != "picky/good/dead" {
		t.Errorf("owed is %q", got)
	}
}

// F-16: what is dead is sent again by a command, by the relay that runs and by the next one; an event is
// told what becomes of it.
func TestCommands_redrivesDeadLettersWithAndWithoutARelay(t *testing.T) {
	d := newCommandTest(t)
	relay, _ := d.relay()
	d.insert("bad1", "bad2", "bad3", "good")
	d.rec.AwaitDelivered(t, 4)
	published := func(n int64) func() bool {
		return func() bool { return d.Int(`SELECT count(*) FROM outbox WHERE published_at IS NOT NULL`) == n }
	}
	waitFor(t, "the dead letters", func() bool { return d.owed("--state=dead") == "picky/bad1/dead picky/bad2/dead picky/bad3/dead" })
	// Not fixed yet: it dies again.
	d.says("deadletters redrive bad1 --why=x", "bad1", "redriven", "1 delivery redriven")
	waitFor(t, "it to be dead again", func() bool {
		return d.Int(`SELECT count(*) FROM walpost.owed WHERE event_id = 'bad1' AND state = 'dead' AND attempts = 2`) == 1
	})
	d.fixed.Store(true)
	d.says("deadletters redrive bad1 --why=fixed --json", `"redriven": 1`, `"result": "redriven"`)
	waitFor(t, "the redriven one to be delivered and published", published(2))
	code, stdout, stderr := d.run("owed redrive bad1 bad2 nothing --why=fixed")
	if code != exitFailed || !strings.Contains(stdout, "is owed to no one") || !strings.Contains(stdout, "1 delivery redriven") ||
		!strings.Contains(stderr, "not going to be sent: 2 of the deliveries that were named") {
		t.Errorf("redrive: exit code %d: %s%s", code, stdout, stderr)
	}
	waitFor(t, "the second one to be published", published(3))
	d.stop(relay)

	d.fails("owed redrive --why=x --yes", exitUsage, "chooses everything")
	d.fails("owed redrive bad3 --state=waiting --why=x", exitUsage, "sent by themselves")
	d.fails("owed redrive --subscriber=missing --why=x --yes", exitFailed, "no subscriber")
	d.fails("owed redrive --subscriber=picky --why=x", exitUsage, "add --yes")
	d.says("deadletters redrive --subscriber=picky --dry-run", "picky", "1 delivery would be redriven. Nothing was changed.")
	d.says("deadletters redrive bad3 --dry-run --json", `"would_redrive": 1`)
	d.says("deadletters redrive --subscriber=picky --error=user --since=1h --why=fixed --yes", "1 delivery redriven")
	d.says("owed redrive bad3 --why=x", "waits already")
	d.says("owed redrive --subscriber=picky --why=x --yes", "Nothing dead fits")
	relay, _ = d.relay()
	waitFor(t, "the third one to be published by the next relay", published(4))
	waitFor(t, "nothing to be owed", func() bool { return d.owed("") == "" })
	d.stop(relay)
}

func TestCommands_forgetsOnlyWhoHasLeft(t *testing.T) {
	d := newCommandTest(t)
	d.says("subscribers list", "No subscriber is recorded")
	d.says("status", "does not exist, and no relay has used that name", "No relay has led yet")
	relay, _ := d.relay()
	d.insert("bad1")
	waitFor(t, "the dead letter", func() bool { return d.owed("") == "picky/bad1/dead" })
	d.fails("subscribers forget picky --why=x --yes", exitUsage, "in the configuration")
	d.configure("rec")
	d.fails("subscribers forget picky --why=x --yes", exitUsage, "the relay that runs has it")
	d.stop(relay)
	d.fails("subscribers forget picky --why=x --yes", exitUsage, "wait a minute")
	d.Exec(`UPDATE walpost.subscribers SET last_seen = now() - interval '2 minutes'`)
	d.says("subscribers forget picky --dry-run", "would discard 1 delivery", "Nothing was changed")

	relay, _ = d.relay() // without it
	d.says("subscribers list", "gone for")
	d.fails("subscribers forget picky --why=x", exitUsage, "add --yes")
	d.says("subscribers forget picky --why=x --yes", "picky is forgotten; 1 delivery discarded.")
	d.fails("subscribers forget picky --why=x --yes", exitFailed, "no subscriber")
	var list struct{ Subscribers []struct{ Name string } }
	d.read("subscribers list", &list)
	if len(list.Subscribers) != 1 || list.Subscribers[0].Name != "rec" {
		t.Errorf("left are %v", list)
	}
	d.insert("e2")
	d.rec.AwaitDelivered(t, 2)
	d.stop(relay)
}

func TestAnswered_takesNothingButYes(t *testing.T) {
	for typed, want := range map[string]bool{"yes\n": true, " YES \n": true, "y\n": false, "no\n": false, "": false, "yes, no\n": false} {
		var out strings.Builder
		err := answered(t.Context(), strings.NewReader(typed), &out, "Discard 3 deliveries for good?")
		if got := err == nil; got != want || !strings.HasPrefix(out.String(), "Discard 3 deliveries for good?") {
			t.Errorf("%q: %v after %q", typed, err, out.String())
		}
	}
	waiting, typing := net.Pipe() // no one types
	defer waiting.Close()
	defer typing.Close()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := answered(ctx, waiting, new(strings.Builder), "?"); err == nil {
		t.Error("Ctrl-C is a yes")
	}
}

func TestWhen_readsTimesAndAges(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-01-31":           time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC),
		"2026-01-31T15:04:05Z": time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
		"2h":                   time.Now().Add(-2 * time.Hour),
		"7d":                   time.Now().Add(-7 * 24 * time.Hour),
	} {
		var got when
		if err := got.UnmarshalText([]byte(text)); err != nil || got.Sub(want).Abs() > time.Minute {
			t.Errorf("%s is %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestAge_isShort(t *testing.T) {
	now := time.Now()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m",
		3*time.Hour + 5*time.Minute: "3h05m", 50 * time.Hour: "2d",
	} {
		if got := age(now, now.Add(-d)); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
	if got := age(now, time.Time{}); got != "-" {
		t.Errorf("never is %s", got)
	}
}

func TestPlain_leavesTheTerminalAlone(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb\nc": "a b c", "\x1b[2Jü": "\uFFFD[2Jü", "abcdefgh": "abcd…", "abcde": "abcde",
	} {
		if got := plain(text, 5); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// A stop is no failure, also while the database does not answer.
func TestMain_stopsWellWhileItWaitsForItsDatabase(t *testing.T) {
	t.Chdir(t.TempDir())
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	env := map[string]string{"WALPOST_DATABASE_URL": fmt.Sprintf("postgres://walpost@%s/app?sslmode=disable", silent.Addr())}
	for _, args := range []string{"relay --ops-listen=127.0.0.1:0", "api --auth=dev --api-listen=127.0.0.1:0"} {
		p := start(t, nil, env, strings.Fields(args)...)
		conn, err := silent.Accept()
		if err != nil {
			t.Fatal(err)
		}
		p.stop()
		if code := <-p.exited; code != exitFine {
			t.Errorf("walpost %s: exit code %d: %s", args, code, p.stderr.String())
		}
		conn.Close()
	}
}
