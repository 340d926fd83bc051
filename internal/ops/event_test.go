package ops

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
)

// standings are the deliveries of an event as the API shows it.
func (c *counter) standings(t *testing.T, id string) string {
	t.Helper()
	code, answer := c.request(t, "GET", "/v1/events/"+id, "")
	if code != 200 {
		t.Fatalf("%s: %d %v", id, code, answer)
	}
	var states []string
	for _, d := range answer["deliveries"].([]any) {
		standing := d.(map[string]any)
		states = append(states, fmt.Sprintf("%s %s", standing["subscriber"], standing["state"]))
	}
	return strings.Join(states, ", ")
}

func TestEvent_tellsHowFarEachSubscriberIs(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "") // analytics is owed e1 and e2, billing, which is gone, has the dead e3
	of := c.server.options.Relay.(*standing)
	for _, name := range []string{"mail", "search"} {
		c.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ('walpost', $1)`, name)
	}
	c.server.options.Admin.Filtering(func(subscriber, _, _ string) bool { return subscriber != "search" })
	check := func(id, want string) {
		t.Helper()
		if got := c.standings(t, id); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
	check("e1", "analytics waiting, mail unknown, search unwanted")
	check("e3", "analytics unknown, billing dead, mail unknown, search unwanted")
	check("e4", "analytics unknown, mail unknown, search unwanted")

	// Others are owed it at a position: who is secured beyond that, and is not owed it, has it.
	c.Exec(`UPDATE walpost.subscribers SET secured_epoch = 1, secured_commit = '0/8' WHERE name = 'mail'`)
	check("e1", "analytics waiting, mail finished, search unwanted")
	check("e2", "analytics waiting, mail unknown, search unwanted")
	// The effect is in the database.
	c.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence) VALUES ('walpost', 'mail', 'lessons', 'e2', $1)`, written)
	check("e2", "analytics waiting, mail finished, search unwanted")
	// What the running relay has in hand, and what it remembers.
	attempt(of, "analytics", "e4", lane.Failed, "503")
	attempt(of, "analytics", "e4", lane.Delivered, "")
	of.open = []string{"mail"}
	check("e4", "analytics finished, mail open, search unwanted")
	of.open = nil
	// A row that is marked.
	c.Exec(`UPDATE outbox SET published_at = now(), attempts = 1 WHERE event_id = 'e4'`)
	check("e4", "analytics finished, mail finished, search unwanted")
	// An event without a row, in hand and tried.
	attempt(of, "analytics", "m1", lane.Failed, "503")
	of.open = []string{"analytics", "mail"}
	check("m1", "analytics open, mail open")
}

func TestEvent_showsWhatIsStored(t *testing.T) {
	c := newCounter(t, "unix:/run/walpost/ops.sock", "")
	if code, _ := c.request(t, "POST", "/v1/owed/add", `{"subscriber": "analytics", "events": ["e4"], "why": "lost by the receiver"}`); code != 200 {
		t.Fatalf("add: %d", code)
	}
	_, answer := c.request(t, "GET", "/v1/events/e4", "")
	row := answer["rows"].([]any)[0].(map[string]any)
	for name, want := range map[string]any{"source": "lessons", "row": "4", "type": "lesson.completed", "key": "k4", "published": false, "attempts": 0.0} {
		if row[name] != want {
			t.Errorf("%s is %v, want %v", name, row[name], want)
		}
	}
	if row["committed_at"] == nil != (c.Text(`SHOW track_commit_timestamp`) == "off") {
		t.Errorf("the commit time is %v", row["committed_at"])
	}
	if notes := fmt.Sprint(answer["audit"]); !strings.Contains(notes, "lost by the receiver") {
		t.Errorf("the audit is %s", notes)
	}
	c.Exec(`UPDATE outbox SET published_at = '2026-01-31 08:00:00+00', attempts = 7 WHERE event_id = 'e3'`)
	_, answer = c.request(t, "GET", "/v1/events/e3", "")
	row = answer["rows"].([]any)[0].(map[string]any)
	if row["published"] != true || row["published_at"] != "2026-01-31 08:00:00+00" || row["attempts"] != 7.0 || row["committed_at"] != nil {
		t.Errorf("the published row is %v", row)
	}
	if owed := fmt.Sprint(answer["deliveries"]); !strings.Contains(owed, "503 from <the receiver>") {
		t.Errorf("the dead letter is %s", owed)
	}
	if code, answer := c.request(t, "GET", "/v1/events/none", ""); code != 404 || !strings.Contains(fmt.Sprint(answer["detail"]), "Retention") {
		t.Errorf("an id that is unknown: %d %v", code, answer)
	}
}

// S-36: the same id in one table at two times, and the outbox has the newer one.
func TestEvent_tellsTheOccurrencesOfAnIDApart(t *testing.T) {
	c := newCounter(t, "127.0.0.1:8081", "") // analytics is owed e1, as it was written then
	of := c.server.options.Relay.(*standing)
	c.Exec(`INSERT INTO walpost.subscribers (slot, name) VALUES ('walpost', 'mail')`)
	c.Exec(`DELETE FROM outbox WHERE event_id = 'e1'`)
	c.Exec(`INSERT INTO outbox (event_id, event_type, partition_key, payload, created_at) VALUES ('e1', 'lesson.completed', 'k1', '{}', '2199-01-01Z')`)
	c.Exec(`INSERT INTO walpost.inbox (slot, subscriber, source, event_id, occurrence) VALUES ('walpost', 'mail', 'lessons', 'e1', $1)`, written)
	of.attempts.Record("analytics", time.Now(), 0, []lane.Attempt{{
		Event:   &event.Event{Source: "lessons", ID: "e1", Occurrence: "2199-01-01 00:00:00+00", Position: event.Position{Epoch: 1, Commit: 800}},
		Outcome: lane.Delivered, Number: 1,
	}})
	_, answer := c.request(t, "GET", "/v1/events/e1", "")
	var got []string
	for _, d := range answer["deliveries"].([]any) {
		d := d.(map[string]any)
		got = append(got, fmt.Sprint(d["occurrence"], " ", d["subscriber"], " ", d["state"]))
	}
	want := []string{written + " analytics waiting", written + " mail finished", "2199-01-01 00:00:00+00 analytics finished", "2199-01-01 00:00:00+00 mail unknown"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
