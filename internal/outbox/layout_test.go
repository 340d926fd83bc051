package outbox_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/outbox"
)

var ourColumns = []string{"id", "event_id", "event_type", "aggregate_type", "aggregate_id", "partition_key",
	"payload", "headers", "created_at", "published_at", "attempts"}

// eventOf makes an event of a row given as names and values; a value of "NULL" is SQL NULL.
func eventOf(t *testing.T, source outbox.Source, row ...string) *event.Event {
	t.Helper()
	var columns []string
	var values [][]byte
	for i := 0; i < len(row); i += 2 {
		columns = append(columns, row[i])
		if row[i+1] == "NULL" {
			values = append(values, nil)
		} else {
			values = append(values, []byte(row[i+1]))
		}
	}
	return layoutOf(t, source, columns...).Event(values)
}

func layoutOf(t *testing.T, source outbox.Source, columns ...string) *outbox.Layout {
	t.Helper()
	layout, err := source.Layout(columns)
	if err != nil {
		t.Fatal(err)
	}
	return layout
}

func TestLayout_findsOurOwnTable(t *testing.T) {
	layout := layoutOf(t, outbox.Source{Name: "lessons"}, ourColumns...)
	if got := layout.Warnings(); len(got) != 0 {
		t.Errorf("warnings: got %q, want none", got)
	}
	got := layout.Event([][]byte{[]byte("7"), []byte("01J"), []byte("lesson.completed"), []byte("lesson"), []byte("3"),
		[]byte("42"), []byte(`{"a": 1}`), []byte("{}"), []byte("2024-03-10 06:30:00+00"), nil, []byte("0")})
	want := event.Event{Source: "lessons", ID: "01J", Type: "lesson.completed", AggregateType: "lesson", AggregateID: "3",
		Key: "42", Payload: json.RawMessage(`{"a": 1}`), Headers: json.RawMessage("{}"), OccurredAt: "2024-03-10 06:30:00+00", Occurrence: "2024-03-10 06:30:00+00", Row: "01J"}
	if text(got) != text(&want) {
		t.Errorf("got  %s\nwant %s", text(got), text(&want))
	}
}

func TestLayout_findsOtherPeoplesTables(t *testing.T) {
	for _, test := range []struct {
		name   string
		source outbox.Source
		row    []string
		want   event.Event
	}{
		{"Debezium", outbox.Source{},
			[]string{"id", "u-1", "aggregatetype", "order", "aggregateid", "9", "type", "OrderCreated", "payload", "{}"},
			event.Event{ID: "u-1", Type: "OrderCreated", AggregateType: "order", AggregateID: "9", Key: "9", Payload: json.RawMessage("{}"), Row: "u-1",
				Occurrence: "a8af168eb3b40479acda85fb9b28a94b8141a702f2deac878394f9e24df2cf31"}},
		{"event store", outbox.Source{},
			[]string{"seq", "5", "type", "moved", "data", "x", "metadata", "{}", "event_version", "2", "revision", "8", "topic", "games", "occurred_at", "now", "aggregate_id", "g1"},
			event.Event{ID: "5", Type: "moved", Version: "2", Revision: "8", Topic: "games", AggregateID: "g1", Key: "g1", Payload: json.RawMessage("x"), Headers: json.RawMessage("{}"), OccurredAt: "now", Occurrence: "now", Row: "5"}},
		{"all mapped", outbox.Source{Columns: outbox.Columns{ID: "a", Type: "b", Payload: "c", Key: "d", Time: "e"}},
			[]string{"id", "no", "type", "no", "payload", "no", "a", "A", "b", "B", "c", "C", "d", "D", "e", "E"},
			event.Event{ID: "A", Type: "B", Key: "D", Payload: json.RawMessage("C"), OccurredAt: "E", Occurrence: "E", Row: "A"}},
		{"a column whose name has a dot is no path", outbox.Source{Columns: outbox.Columns{Key: "payload.x"}},
			[]string{"id", "1", "type", "t", "payload", `{"x": "path"}`, "payload.x", "column"},
			event.Event{ID: "1", Type: "t", Key: "column", Payload: json.RawMessage(`{"x": "path"}`), Row: "1",
				Occurrence: "13ce007a01a960401e47e25c7f8782bd5a3733d60960d598a02c98707ceee606"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := eventOf(t, test.source, test.row...); text(got) != text(&test.want) {
				t.Errorf("got  %s\nwant %s", text(got), text(&test.want))
			}
		})
	}
}

func TestLayout_namesTheColumnThatIsMissing(t *testing.T) {
	for _, test := range []struct {
		name    string
		columns outbox.Columns
		has     string
		want    []string
	}{
		{"id", outbox.Columns{}, "type payload", []string{"lessons", "public.o", "event id", "event_id, id, seq", "columns.id"}},
		{"type", outbox.Columns{}, "id payload", []string{"event type", "event_type, type"}},
		{"payload", outbox.Columns{}, "id type", []string{"event payload", "payload, data"}},
		{"a mapped one", outbox.Columns{Topic: "tpoic"}, "id type payload topic", []string{"columns.topic", `"tpoic"`, "id, type, payload, topic"}},
		{"the column of a path", outbox.Columns{Key: "body.user"}, "id type payload", []string{"columns.key", `"body.user"`}},
		{"the member of a path", outbox.Columns{Key: "payload."}, "id type payload", []string{"columns.key", `"payload."`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			source := outbox.Source{Name: "lessons", Schema: "public", Table: "o", Columns: test.columns}
			_, err := source.Layout(strings.Fields(test.has))
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want it to contain %q", err, want)
				}
			}
		})
	}
}

func TestLayout_warnsWhenAllEventsShareOneKey(t *testing.T) {
	got := layoutOf(t, outbox.Source{Name: "lessons"}, "id", "type", "payload").Warnings()
	if len(got) != 1 || !strings.Contains(got[0], "columns.key") {
		t.Errorf("got %q, want one warning that names columns.key", got)
	}
}

func TestEvent_keyComesFromAPathIntoThePayload(t *testing.T) {
	for _, test := range []struct{ name, path, payload, want string }{
		{"string", "payload.user_id", `{"user_id": "u1"}`, "u1"},
		{"large number keeps its digits", "payload.user_id", `{"user_id": 9007199254740993}`, "9007199254740993"}, // F-49
		{"number keeps its form", "payload.n", `{"n": 1.50e3}`, "1.50e3"},
		{"boolean", "payload.b", `{"b": true}`, "true"},
		{"nested, after what is skipped", "payload.user.id", `{"id": 0, "a": [{"user": 1}], "user": {"x": {}, "id": 5}}`, "5"},
		{"escaped name and value", "payload.naïve", `{"na\u00efve": "\u00e9"}`, "é"},
		{"U+0000 cannot be stored", "payload.k", `{"k": "a\u0000b"}`, "a\uFFFDb"},
		{"missing: the aggregate id", "payload.user_id", `{"user": 1}`, "agg"},
		{"null: the aggregate id", "payload.user_id", `{"user_id": null}`, "agg"},
		{"object: the aggregate id", "payload.user_id", `{"user_id": {}}`, "agg"},
		{"path through a number", "payload.a.b", `{"a": 1}`, "agg"},
		{"no JSON", "payload.a", `<a/>`, "agg"},
		{"cut JSON", "payload.b", `{"a": [1, `, "agg"},
		{"SQL NULL", "payload.a", "NULL", "agg"},
	} {
		t.Run(test.name, func(t *testing.T) {
			source := outbox.Source{Columns: outbox.Columns{Key: test.path}}
			e := eventOf(t, source, "id", "1", "type", "t", "data", test.payload, "aggregate_id", "agg")
			if e.Key != test.want {
				t.Errorf("key: got %q, want %q", e.Key, test.want)
			}
		})
	}
}

func TestEvent_keyThatIsNullFallsBackToTheAggregate(t *testing.T) { // F-54
	for _, test := range []struct{ key, aggregate, want string }{
		{"k", "a", "k"}, {"NULL", "a", "a"}, {"", "a", "a"}, {"NULL", "NULL", ""},
	} {
		e := eventOf(t, outbox.Source{}, "id", "1", "type", "t", "payload", "", "partition_key", test.key, "aggregate_id", test.aggregate)
		if e.Key != test.want || e.Invalid != "" {
			t.Errorf("key %s, aggregate %s: got %q (%s), want %q", test.key, test.aggregate, e.Key, e.Invalid, test.want)
		}
	}
}

func TestEvent_tellsSQLNullFromJSONNull(t *testing.T) { // F-54
	for _, payload := range []string{"null", "{}", `""`, "[]", "", "NULL"} {
		e := eventOf(t, outbox.Source{}, "id", "1", "type", "t", "payload", payload)
		if payload == "NULL" {
			if e.Payload != nil {
				t.Errorf("SQL NULL: got %q, want nil", e.Payload)
			}
			continue
		}
		if e.Payload == nil || string(e.Payload) != payload {
			t.Errorf("got %#v, want %q", e.Payload, payload)
		}
	}
}

func TestEvent_saysWhyARowIsNone(t *testing.T) {
	long := strings.Repeat("x", 257)
	for _, test := range []struct{ name, id, typ, wantReason, wantID, wantType string }{
		{"empty id", "", "t", "event id is empty", "row:", "t"},
		{"NULL id", "NULL", "t", "event id is empty", "row:", "t"},
		{"long id", long, "t", "event id has 257 bytes", "row:", "t"},
		{"id in another encoding", "caf\xe9", "t", "no valid UTF-8", "row:", "t"},
		{"empty type", "i", "", "event type is empty", "i", ""},
		{"long type", "i", long, "event type has 257 bytes", "i", long[:256]},
		{"type in another encoding", "i", "caf\xe9", "no valid UTF-8", "i", "caf\uFFFD"},
		{"both", "", "", "event id is empty; event type is empty", "row:", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			make := func() *event.Event {
				return eventOf(t, outbox.Source{}, "id", test.id, "type", test.typ, "payload", "body", "headers", "h")
			}
			e := make()
			if !strings.Contains(e.Invalid, test.wantReason) {
				t.Errorf("reason: got %q, want %q", e.Invalid, test.wantReason)
			}
			if !strings.HasPrefix(e.ID, test.wantID) || len(e.ID) > 256 || e.Type != test.wantType {
				t.Errorf("got id %q, type %q, want %q, %q", e.ID, e.Type, test.wantID, test.wantType)
			}
			if string(e.Payload) != "body" || string(e.Headers) != "h" {
				t.Errorf("got payload %q, headers %q, want them as they are in the row", e.Payload, e.Headers)
			}
			if again := make().ID; again != e.ID {
				t.Errorf("the same row got ids %q and %q", e.ID, again)
			}
		})
	}
}

func TestEvent_namesOf256BytesAreValid(t *testing.T) {
	name := strings.Repeat("é", 128)
	if e := eventOf(t, outbox.Source{}, "id", name, "type", name, "payload", ""); e.Invalid != "" || e.ID != name || e.Type != name {
		t.Errorf("got %q", e.Invalid)
	}
}

func TestEvent_keepsNothingOfTheBuffer(t *testing.T) {
	layout := layoutOf(t, outbox.Source{}, "id", "type", "payload", "headers")
	values := [][]byte{[]byte("i"), []byte("t"), []byte("p"), []byte("h")}
	e := layout.Event(values)
	for _, value := range values {
		value[0] = 'X'
	}
	if got, want := e.ID+e.Type+string(e.Payload)+string(e.Headers), "itph"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if grown := append(e.Payload, '!'); string(e.Headers) != "h" {
		t.Errorf("appending to the payload (%s) changed the headers to %q", grown, e.Headers)
	}
}

func TestEvent_takesThreeAllocations(t *testing.T) {
	layout := layoutOf(t, outbox.Source{Name: "lessons"}, ourColumns...)
	values := make([][]byte, len(ourColumns))
	for i := range values {
		values[i] = []byte("some value")
	}
	if got, most := testing.AllocsPerRun(1000, func() { sink = layout.Event(values) }), 3.0; got > most {
		t.Errorf("allocations: got %v, want at most %v", got, most)
	}
}

var sink *event.Event

func TestPublished_isARowThatCameMarked(t *testing.T) {
	for _, test := range []struct {
		column, value string
		want          bool
	}{
		{"published_at", "NULL", false}, {"published_at", "2024-03-10 06:30:00+00", true},
		{"delivered", "f", false}, {"delivered", "NULL", false}, {"delivered", "t", true},
	} {
		layout := layoutOf(t, outbox.Source{}, "id", "type", "payload", test.column)
		values := [][]byte{nil, nil, nil, []byte(test.value)}
		if test.value == "NULL" {
			values[3] = nil
		}
		if got := layout.Published(values); got != test.want {
			t.Errorf("%s = %s: got %t, want %t", test.column, test.value, got, test.want)
		}
	}
	if layoutOf(t, outbox.Source{}, "id", "type", "payload").Published(make([][]byte, 3)) {
		t.Error("a table without such a column: got true, want false")
	}
}

// text writes all of an event for comparing.
func text(e *event.Event) string {
	b, err := json.Marshal(struct {
		event.Event
		Payload, Headers *string
	}{*e, raw(e.Payload), raw(e.Headers)})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func raw(m json.RawMessage) *string {
	if m == nil {
		return nil
	}
	s := string(m)
	return &s
}

// A key in debt is remembered for as long as it is: the payload that came with it must not be.
func TestEvent_namesDoNotKeepALargePayloadAlive(t *testing.T) {
	source := &outbox.Source{Name: "lessons", Schema: "public", Table: "outbox"}
	layout, err := source.Layout([]string{"event_id", "event_type", "partition_key", "payload"})
	if err != nil {
		t.Fatal(err)
	}
	var shelf outbox.Shelf
	payload := make([]byte, 1<<20)
	keys := make([]string, 20)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range keys {
		keys[i] = layout.EventOn(&shelf, [][]byte{[]byte("id"), []byte("type"), fmt.Appendf(nil, "key %d", i), payload}).Key
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("%d keys keep %d KiB", len(keys), grown>>10)
	}
	runtime.KeepAlive(keys)
}

// A column that is there and is not meant is mapped to none; what every event needs cannot be, and a column may have that
// name.
func TestLayout_leavesOutWhatIsMappedToNone(t *testing.T) {
	row := []string{"id", "7", "type", "x", "payload", "{}", "aggregate_id", "a", "created_at", "2024-03-10 06:30:00+00"}
	none := outbox.Source{Columns: outbox.Columns{Time: "none", AggregateID: "none"}}
	if e := eventOf(t, none, row...); e.OccurredAt != "" || e.AggregateID != "" || e.Key != "" {
		t.Errorf("got time %q, aggregate %q, key %q; want none of them", e.OccurredAt, e.AggregateID, e.Key)
	}
	if e := eventOf(t, none, append(row, "none", "later")...); e.OccurredAt != "later" {
		t.Errorf("got time %q, want that of the column none", e.OccurredAt)
	}
	required := outbox.Source{Columns: outbox.Columns{Type: "none"}}
	if _, err := required.Layout([]string{"id", "type", "payload"}); err == nil {
		t.Error("an event without a type")
	}
}
