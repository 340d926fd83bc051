package event_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/backendstart/walpost/internal/event"
)

func TestHeader_isEmptyWhereThereIsNoSuchString(t *testing.T) {
	for _, test := range []struct{ headers, want string }{
		{``, ""},
		{`null`, ""},
		{`[]`, ""},
		{`{`, ""},
		{`{"Correlation_ID": "x"}`, ""},
		{`{"correlation_id": null}`, ""},
		{`{"correlation_id": 7}`, ""},
		{`{"correlation_id": {"correlation_id": "x"}}`, ""},
		{`{"traceparent": "00-1", "correlation_id": "c-1"}`, "c-1"},
		{`{"correlation_id": "\u00e4"}`, "ä"},
		{`{"a": {"correlation_id": "x", "b": ["}", "\""]}, "correlation\u005fid" : "c-2" }`, "c-2"},
		{`{"correlation_id": "c-1", "correlation_id": "c-2"}`, "c-2"},
		{"\n{\"a\":[1,{\"b\":2}],\"correlation_id\"\t:\n\"c \\\"3\\\"\"}", `c "3"`},
		{`{"correlation_id`, ""},
		{`{"correlation_id"`, ""},
		{`{"correlation_id": "x`, ""},
	} {
		e := &event.Event{Headers: []byte(test.headers)}
		if got := e.CorrelationID(); got != test.want {
			t.Errorf("headers %s: got %q, want %q", test.headers, got, test.want)
		}
	}
}

// The window is bounded by this number, so whatever comes from a row has to be in it.
func TestSize_countsEveryTextThatARowCanFill(t *testing.T) {
	const ten = "0123456789"
	e := event.Event{
		ID: ten, Type: ten, Version: ten, AggregateType: ten, AggregateID: ten, Topic: ten, Revision: ten,
		Key: ten, Payload: []byte(ten), Headers: []byte(ten), OccurredAt: ten, Row: ten,
	}
	if got, want := e.Size(), 120; got != want {
		t.Errorf("got %d, want %d", got, want)
	}
	if got := new(event.Event).Size(); got != 0 {
		t.Errorf("of an empty event: got %d, want 0", got)
	}
}

// What the walk over the text finds is what a decoder finds.
func FuzzHeader(f *testing.F) {
	for _, seed := range []string{`{"a": "b"}`, `{"a": {"a": "c"}, "b": [1, "]"]}`, `{"a": "\"", "a": 1}`, `{"\u0061": "b" }`, `[{"a": "b"}]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, headers string) {
		got := (&event.Event{Headers: []byte(headers)}).Header("a")
		if !json.Valid([]byte(headers)) || !utf8.ValidString(headers) {
			return // it must not panic
		}
		var decoded map[string]json.RawMessage
		var want string
		if json.Unmarshal([]byte(headers), &decoded) == nil && json.Unmarshal(decoded["a"], &want) != nil {
			want = ""
		}
		if got != want {
			t.Errorf("headers %s: got %q, want %q", headers, got, want)
		}
	})
}

func TestAddHeaders_keepsWhatStandsThereAsItIsWritten(t *testing.T) {
	added := []event.AddedHeader{{Name: "org", Value: `a "b"`}, {Name: "plan", Value: ""}}
	for _, test := range []struct{ headers, want string }{
		{``, `{"org": "a \"b\"", "plan": ""}`},
		{`{}`, `{"org": "a \"b\"", "plan": ""}`},
		{` {"n" : 1.50 , "x":{"org":[1,"}"]} } `, `{"n": 1.50, "x": {"org":[1,"}"]}, "org": "a \"b\"", "plan": ""}`},
		{`{"plan": "own", "o\u0072g": 7, "z": null}`, `{"z": null, "org": "a \"b\"", "plan": ""}`},
	} {
		got := event.AddHeaders(json.RawMessage(test.headers), added)
		if string(got) != test.want || !json.Valid(got) {
			t.Errorf("%s: got %s, want %s", test.headers, got, test.want)
		}
	}
}
