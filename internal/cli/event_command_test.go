package cli

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/internal/testprogram"
)

// noOne is an address where no relay answers.
const noOne = "http://127.0.0.1:1"

func TestEvent_showsWhatIsStoredAndWhatTheRelayRemembers(t *testing.T) {
	d := newCommandTest(t)
	d.env["WALPOST_OPS_URL"] = noOne
	d.fails("event e1", exitFailed, `event "e1" is not known`)
	relay, url := d.relay()
	d.env["WALPOST_OPS_URL"] = url
	d.insert("good", "bad1")
	waitFor(t, "the dead letter", func() bool { return d.owed("") == "picky/bad1/dead" })
	waitFor(t, "the mark", func() bool {
		return d.Int(`SELECT count(*) FROM outbox WHERE event_id = 'good' AND published_at IS NOT NULL`) == 1
	})

	d.says("event good", "Event good of source lessons", "key", "k-good", `{"n":12345678901234567890}`, "picky", "finished", "Attempts that the relay remembers", "delivered")
	bad := d.says("event bad1", "published  no", "dead", "1 failed", "no such user", "finished")
	if strings.ContainsRune(bad, '\x1b') {
		t.Errorf("an error reaches the terminal as it is: %q", bad)
	}
	var event admin.Event
	d.read("event bad1", &event)
	states := map[string]string{}
	for _, s := range event.Deliveries {
		states[s.Subscriber] = s.State
	}
	if states["rec"] != admin.Finished || states["picky"] != admin.Dead || event.Relay == nil || len(event.Relay.Attempts) != 2 {
		t.Errorf("the event is %+v", event)
	}
	d.fails("event none", exitFailed, "Retention deletes published rows")

	// A relay of another slot is not taken for this one's, and one that is away is no failure.
	d.says("event bad1 --ops-url="+noOne, "picky", "dead", "What a running relay remembers is not shown: ask the relay at "+noOne)
	d.env["WALPOST_SLOT"] = "another"
	d.says("event bad1", "No subscriber is recorded", `it has slot "`+d.Name+`", not "another"`)
	d.env["WALPOST_SLOT"] = d.Name
	if code, _, stderr := d.run("owed discard --event=bad1 --yes", "--why=test data"); code != exitFine {
		t.Errorf("discard: %d %s", code, stderr)
	}
	d.says("event bad1", "People have changed", "discard")
	d.stop(relay)
	d.says("event bad1 --json", `"relay_error"`, `"state": "finished"`)
}

func TestStatus_showsAnOutageFromItsBeginning(t *testing.T) {
	d := newCommandTest(t)
	d.rec = subscribertest.Failing(-1).Named("rec")
	relay, url := d.relay()
	d.env["WALPOST_OPS_URL"] = url
	if healthy := d.says("status", "The relay is streaming and has 0 open events"); strings.Contains(healthy, "LAST ERROR") {
		t.Errorf("all is well, but the status says\n%s", healthy)
	}
	d.insert("e1", "e2")
	waitFor(t, "the outage in the status", func() bool {
		status := d.says("status")
		return strings.Contains(status, "away") && strings.Contains(status, "e1, ") && strings.Contains(status, subscribertest.ErrFailing.Error())
	})
	var status struct {
		Relay struct {
			Subscribers []struct {
				Name string
				Away bool
				Open int
			}
		}
	}
	d.read("status", &status)
	if rec := status.Relay.Subscribers[0]; rec.Name != "rec" || !rec.Away || rec.Open != 2 {
		t.Errorf("in JSON it is %+v", status)
	}
	d.says("status --ops-url="+noOne, "What the running relay has in memory is not shown")
	d.stop(relay)
	d.says("status", "no one reads the slot")
}

// S-72
func TestStatus_namesAPositionThatCannotBeTrue(t *testing.T) {
	d := newCommandTest(t)
	relay, _ := d.relay()
	d.stop(relay)
	if text := d.says("status", "rec"); strings.Contains(text, "cannot be") {
		t.Errorf("all is well, but the status says\n%s", text)
	}
	d.Exec(`UPDATE walpost.subscribers SET secured_commit = 'FFFF/0' WHERE name = 'rec'`)
	d.says("status", "rec: its position FFFF/0 lies beyond", "restart the relay")
	d.says("status --json", `"not_believed": "its position FFFF/0`)
}

// WAL that others write is confirmed in large steps, and no one is behind for it.
func TestStatus_putsNoOneBehindForTheWALOfOthers(t *testing.T) {
	d := newCommandTest(t)
	relay, url := d.relay()
	d.env["WALPOST_OPS_URL"] = url
	const foreign = 2 << 20
	var status admin.Status
	waitFor(t, "a relay that has read on and has not confirmed", func() bool {
		if d.read("status", &status); status.Slot.LagBytes < foreign {
			d.Exec(`SELECT pg_logical_emit_message(false, 'others', repeat('x', $1))`, foreign)
			return false
		}
		return status.Slot.LagBytes-status.Subscribers[0].LagBytes > foreign/2
	})
	d.stop(relay)
}

// On another server, with positions far ahead, a slot may have the same name. Only the answer is made up here, from
// that of a real relay.
func TestStatus_doesNotTakeAnotherServersRelayForItsOwn(t *testing.T) {
	d := newCommandTest(t)
	first, url := d.relay()
	_, answer := get(t, url+"/progress")
	var other relay.Progress
	if err := json.Unmarshal([]byte(answer), &other); err != nil {
		t.Fatal(err)
	}
	other.ReceivedLSN = "FFFF/0"
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = other
		if r.URL.Path == "/ready" {
			answer = relay.Health{Ready: true, State: relay.Streaming}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer elsewhere.Close()
	d.env["WALPOST_OPS_URL"] = elsewhere.URL
	type answered struct {
		admin.Status
		Relay *relay.Progress `json:"relay"`
	}

	var own answered
	if d.read("status", &own); own.Relay == nil {
		t.Error("the answer of the leader is not taken")
	}
	d.stop(first)
	const unread = 2 << 20
	d.Exec(`SELECT pg_logical_emit_message(true, 'others', repeat('x', $1))`, unread) // the commit flushes it
	var down answered
	if d.read("status", &down); down.Relay != nil || down.Subscribers[0].LagBytes < unread {
		t.Errorf("no one reads the slot, and the status is %+v", down)
	}
	second, _ := d.relay()
	var led answered
	if d.read("status", &led); led.Relay != nil {
		t.Errorf("another relay leads, and that of term %d is taken for it", led.Relay.Term)
	}
	d.says("status", "What the running relay has in memory is not shown", "of another server")
	d.stop(second)
}

func TestMain_takesWhatPeopleTryFirst(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, says := range map[string]string{
		"help": "Commands:", "help relay": "(WALPOST_SLOT", "help owed list": "--subscriber",
		"--version": "walpost ", "--version --json": `"version"`,
	} {
		code, stdout, stderr := execute(t, nil, strings.Fields(args)...)
		if code != exitFine || stderr != "" || !strings.Contains(stdout, says) {
			t.Errorf("walpost %s: exit code %d: %s%s", args, code, stdout, stderr)
		}
	}
	if code, _, _ := execute(t, nil, "help", "nonsense"); code != exitUsage {
		t.Errorf("help for a command that is not there ends with %d", code)
	}
}

func TestTail_saysWhyItCannotFollow(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"tail --ops-url=" + noOne:           {exitFailed, "ask the relay at " + noOne},
		"tail --ops-url=nowhere":            {exitUsage, "not an address to ask"},
		"tail --outcome=paid":               {exitUsage, "outcome"},
		"tail --last=-1 --ops-url=" + noOne: {exitUsage, "negative"},
	} {
		code, stdout, stderr := execute(t, nil, strings.Fields(args)...)
		if code != want.code || stdout != "" || !strings.Contains(stderr, want.says) {
			t.Errorf("walpost %s: exit code %d: %s%s; want %d and %q", args, code, stdout, stderr, want.code, want.says)
		}
	}
	code, _, stderr := execute(t, map[string]string{"WALPOST_OPS_LISTEN": ":0"}, "tail")
	if code != exitUsage || !strings.Contains(stderr, "--ops-url") {
		t.Errorf("with a free port: exit code %d: %s", code, stderr)
	}
}

func TestTail_printsWhatTheFiltersChoose(t *testing.T) {
	d := newCommandTest(t)
	relay, url := d.relay()
	d.env["WALPOST_OPS_URL"] = url
	d.insert("old", "bad1")
	d.rec.AwaitDelivered(t, 2)
	waitFor(t, "the dead letter", func() bool { return d.owed("") == "picky/bad1/dead" })
	people := start(t, d.kinds(), d.env, "tail", "--subscriber=picky", "--outcome=dead")
	programs := start(t, d.kinds(), d.env, "tail", "--json", "-n", "0", "--key=k-new")
	waitFor(t, "the past", func() bool { return strings.Contains(people.stdout.String(), "bad1") })
	// The second prints nothing of the past, so events come until it surely follows.
	n := 0
	waitFor(t, "what is new", func() bool {
		d.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload) VALUES ('new' || $1::int, 'lesson.completed', 'k-new', '{}')`, n)
		n++
		return programs.stdout.String() != ""
	})
	d.insert("bad2")
	waitFor(t, "the next dead letter", func() bool { return strings.Contains(people.stdout.String(), "bad2") })
	for _, p := range []*program{people, programs} {
		p.stop()
		if code := <-p.exited; code != exitFine {
			t.Errorf("after Ctrl-C the exit code is %d", code)
		}
	}
	lines := strings.Split(strings.TrimSpace(people.stdout.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "picky  dead       bad1  lesson.completed  key k-bad1  attempt 1") || !strings.Contains(lines[0], "no such user") {
		t.Errorf("people read\n%s", people.stdout.String())
	}
	for line := range strings.Lines(programs.stdout.String()) {
		var got admin.Line
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.Attempt == nil || got.Key != "k-new" || got.Position == "" {
			t.Errorf("programs read %s: %v", line, err)
		}
	}
	d.stop(relay)
}

// The relay is killed, and starts again at the same address.
func TestTail_comesBackWhenTheRelayDoes(t *testing.T) {
	db := testdb.New(t)
	api := startAPI(t, db).AwaitAPI()
	address := freeAddress(t)
	startThere := func() *testprogram.Process {
		relay := testprogram.Start(t, []string{"WALPOST_DATABASE_URL=" + db.DSN}, "relay", "--slot="+db.Name, "--ops-listen="+address)
		relay.AwaitStreaming()
		return relay
	}
	first := startThere()
	learner := &testprogram.Learner{User: 1}
	tail := testprogram.Start(t, []string{"WALPOST_OPS_LISTEN=" + address}, "tail", "--subscriber=analytics")
	for _, id := range complete(t, learner, api, 2) {
		tail.Await(id)
	}
	first.Kill()
	tail.Await("does not answer any more")
	ids := complete(t, learner, api, 2)
	second := startThere()
	tail.Await("the relay answers again")
	for _, id := range append(ids, complete(t, learner, api, 1)...) {
		tail.Await("analytics  delivered  " + id)
		if got := strings.Count(tail.Output(), id); got != 1 {
			t.Errorf("%s is there %d times", id, got)
		}
	}
	second.Stop()
	tail.Stop()
}

// freeAddress is one that no one listens at: others may take it, but seldom do.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestTail_endsWhenNoOneTakesWhatItPrints(t *testing.T) {
	line := `{"seq": 7, "event": "e1", "subscriber": "analytics"}`
	err := (&tail{out: brokenPipe{}}).print(strings.NewReader(line))
	if failed := (outputError{}); !errors.As(err, &failed) {
		t.Errorf("ends with %v", err)
	}
}

func TestTail_saysWhatIsLeftOut(t *testing.T) {
	var out, errs strings.Builder
	people := &tail{out: &out, err: &errs}
	people.print(strings.NewReader(`{"missed": 12}` + "\n" + `{"after": 99}`))
	if people.after != 99 || out.String() != "" || !strings.Contains(errs.String(), "12 attempts") {
		t.Errorf("people: after %d, %q %q", people.after, out.String(), errs.String())
	}
	errs.Reset()
	programs := &tail{tailCommand: tailCommand{JSON: true}, out: &out, err: &errs}
	programs.print(strings.NewReader(`{"missed": 12}` + "\n" + `{"after": 99}`))
	if got, want := out.String(), "{\"missed\": 12}\n"; got != want || errs.String() != "" {
		t.Errorf("programs: %q %q, want %q", got, errs.String(), want)
	}
}
