package kafka

import (
	"fmt"
	"testing"

	"github.com/backendstart/walpost/internal/config"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// F-42, F-49: what stands in a header or payload is sent as it is. The outside test compares these with the records of a real Debezium.
func TestDebezium_makesTheRecordsOfItsOutboxEventRouter(t *testing.T) {
	for name, test := range map[string]struct {
		options *DebeziumOptions
		event   event.Event
		want    string
	}{
		"as it is":           {nil, event.Event{Payload: []byte(`{"n": 12345678901234567890.1}`)}, `key="7" value="{\"n\": 12345678901234567890.1}"`},
		"NULL":               {nil, event.Event{}, `key="7" value=null`},
		"an empty text":      {nil, event.Event{PayloadType: event.Text, Payload: []byte{}}, `key="7" value=""`},
		"bytes":              {nil, event.Event{PayloadType: event.Binary, Payload: []byte(`\x00ff`)}, `key="7" value="\x00\xff"`},
		"a blank, tombstone": {&DebeziumOptions{TombstoneOnEmptyPayload: true}, event.Event{PayloadType: event.Text, Payload: []byte(" \n")}, `key="7" value=null`},
		"a space in bytes":   {&DebeziumOptions{TombstoneOnEmptyPayload: true}, event.Event{PayloadType: event.Binary, Payload: []byte(`\x20`)}, `key="7" value=" "`},
		"in JSON": {&DebeziumOptions{KeyConverter: JSONConverter, ValueConverter: JSONConverter}, event.Event{Payload: []byte(`{"a": "é 😀 <\u0001>"}`)},
			`key="\"7\"" value="\"{\\\"a\\\": \\\"é \\uD83D\\uDE00 <\\\\u0001>\\\"}\""`},
		"characters in JSON":      {&DebeziumOptions{ValueConverter: JSONConverter}, event.Event{PayloadType: event.Text, Payload: []byte("\x0b\n\u2028\x7f")}, "key=\"7\" value=\"\\\"\\\\u000B\\\\n\\u2028\\x7f\\\"\""},
		"bytes in JSON":           {&DebeziumOptions{ValueConverter: JSONConverter}, event.Event{PayloadType: event.Binary, Payload: []byte(`\x00ff`)}, `key="7" value="\"AP8=\""`},
		"NULL in JSON":            {&DebeziumOptions{ValueConverter: JSONConverter}, event.Event{}, `key="7" value="null"`},
		"NULL in JSON, tombstone": {&DebeziumOptions{ValueConverter: JSONConverter, TombstoneOnEmptyPayload: true}, event.Event{}, `key="7" value=null`},
		"expanded":                {&DebeziumOptions{ValueConverter: JSONConverter, ExpandJSONPayload: true}, event.Event{Payload: []byte(`{"n": 1e400}`)}, `key="7" value="{\"n\": 1e400}"`},
		"an expanded list":        {&DebeziumOptions{ValueConverter: JSONConverter, ExpandJSONPayload: true}, event.Event{PayloadType: event.Text, Payload: []byte(`[1]`)}, `key="7" value="[1]"`},
		"no JSON to expand":       {&DebeziumOptions{ValueConverter: JSONConverter, ExpandJSONPayload: true}, event.Event{PayloadType: event.Text, Payload: []byte(`{1`)}, `key="7" value="\"{1\""`},
		"nothing to expand":       {&DebeziumOptions{ValueConverter: JSONConverter, ExpandJSONPayload: true}, event.Event{PayloadType: event.Text, Payload: []byte{}}, `key="7" value="\"\""`},
	} {
		c := NewConfig()
		c.Brokers, c.Format, c.Debezium, c.Topic = []string{"127.0.0.1:1"}, Debezium, test.options, "outbox.event.{aggregate_type}"
		c.Headers = map[string]config.Secret{"eventType": "{type}", "note": "{header.note}", "org": "{header.org}", "none": "{header.none}"}
		k, err := New(Options{Config: c, Name: "payments", Slot: "s"})
		if err != nil {
			t.Fatal(err)
		}
		e := test.event
		e.Source, e.ID, e.Type, e.AggregateType, e.AggregateID, e.Key, e.Headers = "s", "id-1", "made", "order", "7", "7", []byte(`{"org": "o\r\nx: 1", "note": ""}`)
		r, err := k.recordOf(subscriber.Delivery{Attempt: 2, Term: 3, Replay: true, Event: &e})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := fmt.Sprintf("key=%s value=%s", quoted(r.Key), quoted(r.Value)); got != test.want || r.Topic != "outbox.event.order" {
			t.Errorf("%s: got %s in %s, want %s", name, got, r.Topic, test.want)
		}
		headers := ""
		for _, h := range r.Headers {
			headers += fmt.Sprintf(" %s=%s", h.Key, quoted(h.Value))
		}
		if want := fmt.Sprintf(` id="id-1" eventType="made" none=null note="" org="o\r\nx: 1" walpost-position=%q walpost-attempt="2" walpost-term="3" walpost-replay="true"`, e.Position.String()); headers != want {
			t.Errorf("%s: headers%s, want%s", name, headers, want)
		}
	}
}

func quoted(text []byte) string {
	if text == nil {
		return "null"
	}
	return fmt.Sprintf("%q", text)
}
