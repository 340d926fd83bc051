package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// id is what a receiver dedupes on. Ids are unique within a source, so where events of several sources come to
// one receiver the source is part of it; the names of sources contain no colon.
func (w *Webhook) id(e *event.Event) string {
	if w.severalSources {
		return e.Source + ":" + e.ID
	}
	return e.ID
}

// Media types of the CloudEvents formats (CloudEvents JSON format 1.0, sections 3 and 4).
var (
	structuredType = []string{"application/cloudevents+json; charset=utf-8"}
	batchType      = []string{"application/cloudevents-batch+json; charset=utf-8"}
)

// attributes are the CloudEvents attributes of an event in a fixed order, those without a value left out.
// All of them are the same at each attempt. partitionkey and sequence are documented extensions.
func (w *Webhook) attributes(e *event.Event) [][2]string {
	all := [][2]string{
		{"specversion", "1.0"},
		{"id", w.id(e)},
		{"source", "/walpost/" + e.Source},
		{"type", e.Type},
		{"subject", e.AggregateID},
		{"time", rfc3339(e.OccurredAt)},
		{"partitionkey", e.Key},
		{"sequence", e.Position.String()},
		{"correlationid", e.CorrelationID()},
		{"traceparent", e.Header("traceparent")},
	}
	kept := all[:0]
	for _, attribute := range all {
		if attribute[1] != "" {
			kept = append(kept, attribute)
		}
	}
	return kept
}

// cloudHeader adds the attributes to the headers (CloudEvents HTTP binding, section 3.1).
func (w *Webhook) cloudHeader(header http.Header, d subscriber.Delivery) {
	for _, attribute := range w.attributes(d.Event) {
		name, value := attribute[0], encode(attribute[1])
		if name == "partitionkey" {
			value = encodeKey(attribute[1])
		}
		if len(value) <= maxValue {
			header.Set("Ce-"+name, value)
		}
	}
}

// appendCloudEvent appends the event as a JSON object whose data is the payload, byte for byte. A payload
// that is no JSON is a string there.
func (w *Webhook) appendCloudEvent(to []byte, d subscriber.Delivery) []byte {
	to = append(to, '{')
	for _, attribute := range w.attributes(d.Event) {
		to = appendField(to, attribute[0], attribute[1])
	}
	switch {
	case d.Payload == nil:
		return append(to[:len(to)-1], '}')
	case json.Valid(d.Payload):
		to = append(to, `"datacontenttype":"application/json","data":`...)
		to = append(to, d.Payload...)
	default:
		to = append(to, `"datacontenttype":"text/plain","data":`...)
		to = appendString(to, string(d.Payload))
	}
	return append(to, '}')
}

// appendElement appends an event of an array in the format Payload. Nothing in it depends on the attempt.
func (w *Webhook) appendElement(to []byte, d subscriber.Delivery) []byte {
	to = append(to, '{')
	to = appendField(to, "id", w.id(d.Event))
	to = appendField(to, "source", d.Source)
	to = appendField(to, "type", d.Type)
	to = appendField(to, "key", d.Key)
	to = appendField(to, "position", d.Position.String())
	if id := d.CorrelationID(); id != "" {
		to = appendField(to, "correlation_id", id)
	}
	switch {
	case d.Payload == nil:
		to = append(to, `"payload":null`...)
	case json.Valid(d.Payload):
		to = append(to, `"payload":`...)
		to = append(to, d.Payload...)
	default:
		to = append(to, `"payload_text":`...)
		to = appendString(to, string(d.Payload))
	}
	return append(to, '}')
}

func appendField(to []byte, name, value string) []byte {
	to = append(to, '"')
	to = append(to, name...)
	to = append(to, `":`...)
	return append(appendString(to, value), ',')
}

func appendString(to []byte, text string) []byte {
	quoted, _ := json.Marshal(text) // a string always has one
	return append(to, quoted...)
}

// batchID is the same for the same events in the same order, so that it is stable for as long as a batch
// is tried again as it was. What a receiver dedupes on is the ids inside.
func (w *Webhook) batchID(deliveries []subscriber.Delivery) string {
	h := sha256.New()
	for _, d := range deliveries {
		h.Write([]byte(w.id(d.Event)))
		h.Write([]byte{0}) // no text of Postgres holds it
	}
	return "batch_" + hex.EncodeToString(h.Sum(nil)[:16])
}

// layouts are how a time column looks: as Postgres writes it with DateStyle ISO, with and without a zone,
// or as JSON has it.
var layouts = []string{"2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999", time.RFC3339Nano}

// rfc3339 writes a time as CloudEvents wants it, "" where it is none.
func rfc3339(text string) string {
	text = strings.TrimSpace(text)
	for _, layout := range layouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC().Format(time.RFC3339Nano)
		}
	}
	return ""
}
