package webhook

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
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
		{"time", rfc3339(e.OccurredAt, w.zones[e.Source])},
		{"partitionkey", e.Key},
		{"sequence", e.Position.String()},
		{"correlationid", e.CorrelationID()},
		{"traceparent", e.Header("traceparent")},
		{"aggregatetype", e.AggregateType},
		{"version", e.Version},
		{"topic", e.Topic},
		{"revision", e.Revision},
	}
	kept := all[:0]
	for _, attribute := range all {
		if attribute[1] != "" {
			kept = append(kept, attribute)
		}
	}
	for name, value := range e.EachHeader() {
		name = attributeName(name)
		taken := func(a [2]string) bool { return a[0] == name }
		if name != "" && value != "" && !slices.Contains(reserved, name) && !slices.ContainsFunc(kept, taken) {
			kept = append(kept, [2]string{name, value})
		}
	}
	return kept
}

// reserved are names that an event's own header cannot take, besides those that have a value.
var reserved = []string{"data", "database64", "datacontenttype", "dataschema", "subject", "time"}

// attributeName makes the name of a CloudEvents attribute of that of an event's header: lower case letters and digits
// (CloudEvents 1.0, "Naming conventions"), "" where nothing is left.
func attributeName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		}
		return -1
	}, name)
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
	case isJSON(d):
		to = append(to, `"datacontenttype":"application/json","data":`...)
		to = append(to, d.Payload...)
	case d.PayloadType == event.Binary:
		to = append(to, `"datacontenttype":"application/octet-stream","data_base64":`...)
		to = appendBase64(to, d)
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
	for _, field := range [...][2]string{
		{"correlation_id", d.CorrelationID()}, {"version", d.Version}, {"topic", d.Topic}, {"aggregate_type", d.AggregateType},
		{"aggregate_id", d.AggregateID}, {"revision", d.Revision}, {"occurred_at", d.OccurredAt},
	} {
		if field[1] != "" {
			to = appendField(to, field[0], field[1])
		}
	}
	if json.Valid(d.Headers) {
		to = append(append(append(to, `"headers":`...), d.Headers...), ',')
	}
	switch {
	case d.Payload == nil:
		to = append(to, `"payload":null`...)
	case isJSON(d):
		to = append(to, `"payload":`...)
		to = append(to, d.Payload...)
	case d.PayloadType == event.Binary:
		to = append(to, `"payload_base64":`...)
		to = appendBase64(to, d)
	default:
		to = append(to, `"payload_text":`...)
		to = appendString(to, string(d.Payload))
	}
	return append(to, '}')
}

// isJSON tells whether the payload can stand in a JSON document as it is.
func isJSON(d subscriber.Delivery) bool { return d.PayloadType == event.JSON && json.Valid(d.Payload) }

// appendBase64 appends the bytes of a bytea as a JSON string.
func appendBase64(to []byte, d subscriber.Delivery) []byte {
	body, _ := bodyOf(d)
	return append(base64.StdEncoding.AppendEncode(append(to, '"'), body), '"')
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

// rfc3339 writes a time as CloudEvents wants it, "" where it is none. zone is that of a text without one, nil for UTC.
func rfc3339(text string, zone *time.Location) string {
	if zone == nil {
		zone = time.UTC
	}
	text = strings.TrimSpace(text)
	for _, layout := range layouts {
		if at, err := time.ParseInLocation(layout, text, zone); err == nil {
			return at.UTC().Format(time.RFC3339Nano)
		}
	}
	return ""
}
