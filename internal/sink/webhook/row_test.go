package webhook_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

// wholeRow is a delivery of a row in which every column has a value.
func wholeRow() subscriber.Delivery {
	d := delivery(1)
	e := *d.Event
	e.Version, e.Topic, e.AggregateType, e.AggregateID, e.Revision = "2", "school.lessons", "lesson", "7", "41"
	e.Headers = json.RawMessage(`{"correlation_id": "c-1", "org_id": "o 9", "Retries": 3, "nested": {"a": 1}, "none": null, "bad name": "x", "id": "not ours"}`)
	d.Event = &e
	return d
}

// S-319
func TestWebhook_carriesTheRowInHeaders(t *testing.T) {
	r := newReceiver(t, nil)
	if err := open(t, options(r.URL)).Handle(t.Context(), wholeRow()); err != nil {
		t.Fatal(err)
	}
	got := r.got()[0].header
	for name, want := range map[string]string{
		"Walpost-Version": "2", "Walpost-Topic": "school.lessons", "Walpost-Aggregate": "lesson/7", "Walpost-Revision": "41",
		"X-Correlation-Id": "c-1", "Walpost-Header-Org-Id": "o%209", "Walpost-Header-Retries": "3", "Walpost-Header-Id": "not%20ours",
		"Walpost-Header-Nested": "", "Walpost-Header-None": "", "Walpost-Header-Correlation-Id": "",
	} {
		if got := got.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestWebhook_sendsABoundedPartOfTheEventsHeaders(t *testing.T) {
	r := newReceiver(t, nil)
	d := wholeRow()
	many := map[string]string{}
	for _, letter := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
		many[letter] = strings.Repeat(letter, 500)
	}
	d.Event.Headers, _ = json.Marshal(many)
	if err := open(t, options(r.URL)).Handle(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	size := 0
	for name, values := range r.got()[0].header {
		if strings.HasPrefix(name, "Walpost-Header-") {
			size += len(name) + len(values[0])
		}
	}
	if size == 0 || size > 4<<10 {
		t.Errorf("%d bytes of own headers, want some and at most 4096", size)
	}
}

// S-319
func TestCloudEvents_haveTheRowAsAttributes(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL)
	o.Format = webhook.CloudEventsStructured
	if err := open(t, o).Handle(t.Context(), wholeRow()); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(r.got()[0].body), &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"subject": "7", "aggregatetype": "lesson", "version": "2", "topic": "school.lessons", "revision": "41",
		"orgid": "o 9", "retries": "3", "badname": "x", "id": "01K0WEBH00K000000000000001", "correlationid": "c-1",
	} {
		if got[name] != want {
			t.Errorf("%s: got %v, want %v", name, got[name], want)
		}
	}
}

// S-319: a text column may hold what looks like JSON, and a bytea what is none: the type of the column says what a payload is.
func TestWebhook_saysWhatThePayloadIsByTheTypeOfItsColumn(t *testing.T) {
	for name, test := range map[string]struct {
		typ                                  event.PayloadType
		payload                              string
		body, contentType, structured, batch string
	}{
		"json":         {event.JSON, `{"a": 1}`, `{"a": 1}`, "application/json", `"datacontenttype":"application/json","data":{"a": 1}}`, `"payload":{"a": 1}}]`},
		"text":         {event.Text, `{"a": 1}`, `{"a": 1}`, "text/plain; charset=utf-8", `"datacontenttype":"text/plain","data":"{\"a\": 1}"}`, `"payload_text":"{\"a\": 1}"}]`},
		"bytea":        {event.Binary, `\x00ff7b`, "\x00\xff{", "application/octet-stream", `"datacontenttype":"application/octet-stream","data_base64":"AP97"}`, `"payload_base64":"AP97"}]`},
		"empty bytea":  {event.Binary, `\x`, "", "application/octet-stream", `"data_base64":""}`, `"payload_base64":""}]`},
		"empty string": {event.Text, ``, "", "text/plain; charset=utf-8", `"data":""}`, `"payload_text":""}]`},
	} {
		t.Run(name, func(t *testing.T) {
			d := delivery(1)
			d.Payload, d.PayloadType = []byte(test.payload), test.typ
			r := newReceiver(t, nil)
			structured, batch := options(r.URL), options(r.URL)
			structured.Format, batch.Batch = webhook.CloudEventsStructured, 5
			for _, o := range []webhook.Options{options(r.URL), structured, batch} {
				if err := open(t, o).Handle(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			got := r.got()
			if got[0].body != test.body || got[0].header.Get("Content-Type") != test.contentType {
				t.Errorf("body %q of type %q, want %q of %q", got[0].body, got[0].header.Get("Content-Type"), test.body, test.contentType)
			}
			for i, want := range []string{test.structured, test.batch} {
				if !strings.HasSuffix(got[i+1].body, want) {
					t.Errorf("got %s, want it to end with %s", got[i+1].body, want)
				}
			}
			for _, request := range got {
				if err := verify(t, request, oldSecret); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestWebhook_leavesAConfiguredContentTypeAlone(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL)
	o.Headers = map[string]string{"content-type": "application/avro"}
	d := delivery(1)
	d.PayloadType = event.Text
	if err := open(t, o).Handle(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if got := r.got()[0].header[http.CanonicalHeaderKey("content-type")]; len(got) != 1 || got[0] != "application/avro" {
		t.Errorf("got %q", got)
	}
}
