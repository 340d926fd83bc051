package outbox_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
)

var messages = outbox.Source{Name: "games", Messages: "games"}

func TestEventFromMessage_readsTheEnvelope(t *testing.T) {
	got := messages.EventFromMessage([]byte(`{"id": "e1", "type": "moved", "version": 2, "aggregate_type": "game",
		"aggregate_id": 9007199254740993, "key": "k", "topic": "t", "revision": "r", "occurred_at": "now",
		"payload": {"n":  12345678901234567890.123456789, "a":1,"a":2, "nul": "\u0000"}, "headers": {"x" : "y"}, "unknown": [1]}`))
	want := event.Event{Source: "games", ID: "e1", Type: "moved", Version: "2", AggregateType: "game",
		AggregateID: "9007199254740993", Key: "k", Topic: "t", Revision: "r", OccurredAt: "now", Occurrence: "now",
		Payload: json.RawMessage(`{"n":  12345678901234567890.123456789, "a":1,"a":2, "nul": "\u0000"}`), // F-49
		Headers: json.RawMessage(`{"x" : "y"}`)}
	if text(got) != text(&want) {
		t.Errorf("got  %s\nwant %s", text(got), text(&want))
	}
}

func TestEventFromMessage_orderIsByAggregateWhereThereIsNoKey(t *testing.T) {
	e := messages.EventFromMessage([]byte(`{"id": "1", "type": "t", "payload": null, "aggregate_id": "a"}`))
	if e.Key != "a" || e.Invalid != "" {
		t.Errorf("got key %q (%s), want %q", e.Key, e.Invalid, "a")
	}
	if string(e.Payload) != "null" {
		t.Errorf("payload: got %#v, want JSON null", e.Payload)
	}
	if e := messages.EventFromMessage([]byte(`{"id": "1", "type": "t"}`)); e.Payload != nil {
		t.Errorf("payload that is missing: got %q, want nil", e.Payload)
	}
}

func TestEventFromMessage_keepsTheContentOfWhatIsNoEvent(t *testing.T) {
	for _, test := range []struct{ name, content, wantReason, wantPayload string }{
		{"no JSON", `hello`, "no JSON object", `hello`},
		{"empty", ``, "no JSON object", ``},
		{"null", `null`, "no JSON object", `null`},
		{"array", `[1]`, "no JSON object", `[1]`},
		{"bytes", "\x00\xff", "no JSON object", `\x00ff`},
		{"wrong encoding", "{\"id\": \"caf\xe9\"}", "no valid UTF-8", `\x7b226964223a2022636166e9227d`},
		{"no id", `{"type": "t", "payload": 1}`, "event id is empty", `{"type": "t", "payload": 1}`},
		{"names are not matched without case", `{"ID": "i", "type": "t"}`, "event id is empty", `{"ID": "i", "type": "t"}`},
		{"id that is an object", `{"id": {}, "type": "t"}`, "event id is empty", `{"id": {}, "type": "t"}`},
		{"id with U+0000", `{"id": "a\u0000", "type": "t"}`, "event id \"a\\x00\" contains U+0000", `{"id": "a\u0000", "type": "t"}`},
		{"no type", `{"id": "i"}`, "event type is empty", `{"id": "i"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := messages.EventFromMessage([]byte(test.content))
			if !strings.Contains(e.Invalid, test.wantReason) {
				t.Errorf("reason: got %q, want %q", e.Invalid, test.wantReason)
			}
			if e.ID == "" || strings.Contains(e.ID, "\x00") || string(e.Payload) != test.wantPayload {
				t.Errorf("got id %q, payload %q, want an id and %q", e.ID, e.Payload, test.wantPayload)
			}
		})
	}
}

// FuzzEventFromMessage: every role that can connect can emit, so nothing may panic, and what comes out must be
// storable as a dead letter.
func FuzzEventFromMessage(f *testing.F) {
	for _, seed := range []string{`{"id": "1", "type": "t", "payload": {}}`, `null`, "\x00", `{"id":"\u0000","key":"\ud800"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		e := messages.EventFromMessage(content)
		if e.ID == "" || len(e.ID) > 256 || len(e.Type) > 256 {
			t.Errorf("id %q, type %q", e.ID, e.Type)
		}
		for _, s := range []string{e.ID, e.Type, e.Key, e.Version, string(e.Payload), string(e.Headers), e.Invalid} {
			if strings.ToValidUTF8(s, "") != s || strings.Contains(s, "\x00") {
				t.Errorf("%q cannot be stored", s)
			}
		}
	})
}

// S-07: a key of megabytes would stand in memory, in walpost.owed and in the log.
func TestEvent_withAKeyOrAggregateThatIsTooLongIsADeadLetter(t *testing.T) {
	long := strings.Repeat("k", 5<<20)
	for member, name := range map[string]string{
		"key": "key", "aggregate_type": "aggregate type", "aggregate_id": "aggregate id",
		"version": "version", "topic": "topic", "revision": "revision", "occurred_at": "time",
	} {
		e := messages.EventFromMessage([]byte(`{"id": "1", "type": "x", "payload": {}, "` + member + `": "` + long + `"}`))
		if want := name + " has 5242880 bytes, at most 1024 are allowed"; !strings.Contains(e.Invalid, want) || len(e.Invalid) > 300 {
			t.Errorf("%s: invalid is %.300q, want %q", name, e.Invalid, want)
		}
		kept := len(e.Key) + len(e.AggregateType) + len(e.AggregateID) + len(e.Version) + len(e.Topic) + len(e.Revision) + len(e.OccurredAt)
		if kept > 300 {
			t.Errorf("%s: %d bytes are kept", name, kept)
		}
	}
	fits := messages.EventFromMessage([]byte(`{"id": "1", "type": "x", "payload": {}, "key": "` + long[:1024] + `"}`))
	if fits.Invalid != "" || len(fits.Key) != 1024 {
		t.Errorf("a key of 1024 bytes: %s", fits.Invalid)
	}
}
