package webhook_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

func TestCloudEvents_binaryModeHasTheAttributesInHeaders(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL)
	o.Format = webhook.CloudEvents
	d := delivery(1)
	d.Key, d.AggregateID = "Ключ 42", "lesson-7"
	if err := open(t, o).Handle(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	got := r.got()[0]
	if got.body != string(d.Payload) {
		t.Errorf("body %s, want %s", got.body, d.Payload)
	}
	for name, want := range map[string]string{
		"ce-specversion": "1.0", "ce-id": d.ID, "ce-source": "/walpost/lessons", "ce-type": "lesson.completed",
		"ce-subject": "lesson-7", "ce-time": "2026-01-02T03:04:05.678901Z", "ce-partitionkey": "Ключ 42",
		"ce-sequence": d.Position.String(), "ce-correlationid": "c-1",
		"ce-traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "content-type": "application/json",
	} {
		if got, err := url.PathUnescape(got.header.Get(name)); got != want || err != nil {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if err := verify(t, got, oldSecret); err != nil {
		t.Error(err)
	}
}

func TestCloudEvents_structuredModeHoldsThePayloadByteForByte(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL)
	o.Format = webhook.CloudEventsStructured
	sub := open(t, o)
	const attributes = `{"specversion":"1.0","id":"01K0WEBH00K000000000000001","source":"/walpost/lessons","type":"lesson.completed",` +
		`"time":"2026-01-02T03:04:05.678901Z","partitionkey":"user-42","sequence":"00000000-00000000016b3748-00000001",` +
		`"correlationid":"c-1","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"`
	for _, test := range []struct {
		payload []byte
		want    string
	}{
		{[]byte(`{"n" : 12345678901234567890.10,  "t": "<&>"}`), `,"datacontenttype":"application/json","data":{"n" : 12345678901234567890.10,  "t": "<&>"}}`},
		{[]byte(`say "hi"`), `,"datacontenttype":"text/plain","data":"say \"hi\""}`},
		{nil, `}`},
	} {
		d := delivery(1)
		d.Payload = test.payload
		if err := sub.Handle(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		requests := r.got()
		got := requests[len(requests)-1]
		if got.body != attributes+test.want || !json.Valid([]byte(got.body)) {
			t.Errorf("payload %s:\n got %s\nwant %s", test.payload, got.body, attributes+test.want)
		}
		if got := got.header.Get("Content-Type"); got != "application/cloudevents+json; charset=utf-8" {
			t.Errorf("content type %s", got)
		}
		if err := verify(t, got, oldSecret); err != nil {
			t.Error(err)
		}
	}
}

// F-46: what a receiver of batches dedupes on is inside, and nothing inside depends on the attempt.
func TestBatching_postsAnArrayOfEvents(t *testing.T) {
	status := http.StatusServiceUnavailable
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	o := options(r.URL)
	o.Batch = 10
	sub := open(t, o).(subscriber.BatchSubscriber)
	batch := []subscriber.Delivery{delivery(1), delivery(2), delivery(3), delivery(4)}
	batch[1].Payload = []byte(`say "hi"`)
	batch[2].Payload, batch[2].Headers = nil, nil
	batch[3].Payload = []byte(`{"a" : 1.0}`)
	wantError(t, "refused batch", sub.HandleBatch(t.Context(), batch), "503")
	status = http.StatusOK
	batch[2].Attempt = 3
	if err := sub.HandleBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if err := sub.Handle(t.Context(), batch[0]); err != nil {
		t.Fatal(err)
	}
	got := r.got()
	const rest = `"occurred_at":"2026-01-02 03:04:05.678901+00",` +
		`"headers":{"correlation_id": "c-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},`
	const first = `{"id":"01K0WEBH00K000000000000001","source":"lessons","type":"lesson.completed","key":"user-42","position":"00000000-00000000016b3748-00000001",` +
		`"correlation_id":"c-1",` + rest + `"payload":{"n": 1, "big": 12345678901234567890.123456789}}`
	for i, want := range []string{
		`[` + first + `,{"id":"01K0WEBH00K000000000000002","source":"lessons","type":"lesson.completed","key":"user-42","position":"00000000-00000000016b3748-00000002",` +
			`"correlation_id":"c-1",` + rest + `"payload_text":"say \"hi\""},` +
			`{"id":"01K0WEBH00K000000000000003","source":"lessons","type":"lesson.completed","key":"user-42","position":"00000000-00000000016b3748-00000003","occurred_at":"2026-01-02 03:04:05.678901+00","payload":null},` +
			`{"id":"01K0WEBH00K000000000000004","source":"lessons","type":"lesson.completed","key":"user-42","position":"00000000-00000000016b3748-00000004",` +
			`"correlation_id":"c-1",` + rest + `"payload":{"a" : 1.0}}]`,
		got[0].body,
		`[` + first + `]`,
	} {
		if got[i].body != want || !json.Valid([]byte(got[i].body)) {
			t.Errorf("request %d:\n got %s\nwant %s", i, got[i].body, want)
		}
		if err := verify(t, got[i], oldSecret); err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	ids := []string{got[0].header.Get("webhook-id"), got[1].header.Get("webhook-id"), got[2].header.Get("webhook-id")}
	if !strings.HasPrefix(ids[0], "batch_") || ids[0] != ids[1] || ids[0] == ids[2] {
		t.Errorf("ids of a batch, the same again, and another one: %s", ids)
	}
	if a, b := got[0].header.Get("Walpost-Attempt"), got[1].header.Get("Walpost-Attempt"); a != "1" || b != "3" {
		t.Errorf("attempts %s and %s, want 1 and 3", a, b)
	}
}

func TestBatching_postsArraysOfCloudEvents(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL)
	o.Format, o.Batch = webhook.CloudEventsStructured, 10
	sub := open(t, o).(subscriber.BatchSubscriber)
	if err := sub.HandleBatch(t.Context(), []subscriber.Delivery{delivery(1), delivery(2)}); err != nil {
		t.Fatal(err)
	}
	var events []struct {
		SpecVersion, ID string
		Data            struct{ N int }
	}
	got := r.got()[0]
	if err := json.Unmarshal([]byte(got.body), &events); err != nil {
		t.Fatal(err)
	}
	if len(events) != 2 || events[1].ID != delivery(2).ID || events[1].SpecVersion != "1.0" || events[1].Data.N != 2 {
		t.Errorf("got %+v", events)
	}
	if got := got.header.Get("Content-Type"); got != "application/cloudevents-batch+json; charset=utf-8" {
		t.Errorf("content type %s", got)
	}
}

// A receiver that was told nothing about batches must not get arrays.
func TestNew_takesBatchesOnlyWhereTheyAreAskedFor(t *testing.T) {
	for batch, want := range map[int]bool{0: false, 1: false, 2: true} {
		o := options("http://127.0.0.1/")
		o.Batch = batch
		sub := open(t, o)
		if _, got := sub.(subscriber.BatchSubscriber); got != want || sub.Name() != "billing" || !sub.Wants("anything") {
			t.Errorf("batch %d: takes batches: %v, want %v", batch, got, want)
		}
	}
}

func TestCloudEvents_timeIsWhatTheColumnSays(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL)
	o.Format = webhook.CloudEvents
	sub := open(t, o)
	o.Zones = map[string]*time.Location{"tokyo": time.FixedZone("", 9*3600)} // S-174
	inZone := open(t, o)
	for text, want := range map[string]string{"2026-01-02 03:04:05": "2026-01-01T18:04:05Z", "2026-01-02 03:04:05+00": "2026-01-02T03:04:05Z"} {
		if err := inZone.Handle(t.Context(), subscriber.Delivery{Event: &event.Event{ID: "1", Type: "t", Source: "tokyo", OccurredAt: text}}); err != nil {
			t.Fatal(err)
		}
		requests := r.got()
		if got := requests[len(requests)-1].header.Get("ce-time"); got != want {
			t.Errorf("%q in Tokyo: got %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"2026-01-02 03:04:05.678901+00": "2026-01-02T03:04:05.678901Z", "2026-01-02 03:04:05+05:30": "2026-01-01T21:34:05Z",
		"2026-01-02 03:04:05": "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+02:00": "2026-01-02T01:04:05Z",
		"": "", "infinity": "", "1767323045": "",
	} {
		d := subscriber.Delivery{Event: &event.Event{ID: "1", Type: "t", OccurredAt: text}}
		if err := sub.Handle(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		requests := r.got()
		if got := requests[len(requests)-1].header.Get("ce-time"); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
