// Package envelope writes events as destinations have them: the id that a receiver dedupes on, the attributes of
// CloudEvents, and JSON objects, whole or with the payload byte for byte inside. It does no I/O and knows no destination;
// packages below sink use it. What it writes of an event is the same at each attempt.
package envelope

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/event"
)

// A Writer writes the events of one subscriber.
type Writer struct {
	// SeveralSources says that events of more than one source come: then a source's name is part of the id.
	SeveralSources bool
	// Zones are those of times without one, by source; UTC where there is none.
	Zones map[string]*time.Location
}

// ID is what a receiver dedupes on. Ids are unique within a source, so where events of several sources come to
// one receiver the source is part of it; the names of sources contain no colon.
func (w Writer) ID(e *event.Event) string {
	if w.SeveralSources {
		return e.Source + ":" + e.ID
	}
	return e.ID
}

// Attributes are the CloudEvents attributes of an event in a fixed order, those without a value left out.
// All of them are the same at each attempt. partitionkey and sequence are documented extensions.
func (w Writer) Attributes(e *event.Event) [][2]string {
	all := [][2]string{
		{"specversion", "1.0"},
		{"id", w.ID(e)},
		{"source", "/walpost/" + e.Source},
		{"type", e.Type},
		{"subject", e.AggregateID},
		{"time", rfc3339(e.OccurredAt, w.Zones[e.Source])},
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

// Headers are what brokers carry in addition to the body, by name in lower case and in a fixed order, those without a value left
// out. The values are text as it is: what a protocol cannot carry is encoded by its destination. All of them are the same at
// each attempt.
func (w Writer) Headers(e *event.Event) [][2]string {
	all := [][2]string{
		{"webhook-id", w.ID(e)},
		{"walpost-type", e.Type},
		{"walpost-source", e.Source},
		{"walpost-key", e.Key},
		{"walpost-position", e.Position.String()},
		{"walpost-version", e.Version},
		{"walpost-topic", e.Topic},
		{"walpost-aggregate", Aggregate(e)},
		{"walpost-revision", e.Revision},
	}
	kept := all[:0]
	for _, header := range all {
		if header[1] != "" {
			kept = append(kept, header)
		}
	}
	for name, value := range e.EachHeader() {
		switch {
		case value == "" || name == "":
		case name == "correlation_id":
			kept = append(kept, [2]string{"x-correlation-id", value})
		case name == "traceparent":
			kept = append(kept, [2]string{name, value})
		default:
			kept = append(kept, [2]string{"walpost-header-" + strings.ReplaceAll(strings.ToLower(name), "_", "-"), value})
		}
	}
	return kept
}

// Aggregate names what the event is about: type and id with a slash between, or the one that there is.
func Aggregate(e *event.Event) string {
	if e.AggregateType == "" || e.AggregateID == "" {
		return e.AggregateType + e.AggregateID
	}
	return e.AggregateType + "/" + e.AggregateID
}

// reserved are names that an event's own header cannot take, apart from those that have a value.
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

// AppendCloudEvent appends the event as a JSON object whose data is the payload, byte for byte. A payload
// that is no JSON is a string there.
func (w Writer) AppendCloudEvent(to []byte, e *event.Event) []byte {
	to = append(to, '{')
	for _, attribute := range w.Attributes(e) {
		to = appendField(to, attribute[0], attribute[1])
	}
	switch {
	case e.Payload == nil:
		return append(to[:len(to)-1], '}')
	case isJSON(e):
		to = append(to, `"datacontenttype":"application/json","data":`...)
		to = append(to, e.Payload...)
	case e.PayloadType == event.Binary:
		to = append(to, `"datacontenttype":"application/octet-stream","data_base64":`...)
		to = appendBase64(to, e)
	default:
		to = append(to, `"datacontenttype":"text/plain","data":`...)
		to = appendString(to, string(e.Payload))
	}
	return append(to, '}')
}

// AppendObject appends the event as an object of our own: its names, and the payload as it is.
func (w Writer) AppendObject(to []byte, e *event.Event) []byte {
	to = append(to, '{')
	to = appendField(to, "id", w.ID(e))
	to = appendField(to, "source", e.Source)
	to = appendField(to, "type", e.Type)
	to = appendField(to, "key", e.Key)
	to = appendField(to, "position", e.Position.String())
	for _, field := range [...][2]string{
		{"correlation_id", e.CorrelationID()}, {"version", e.Version}, {"topic", e.Topic}, {"aggregate_type", e.AggregateType},
		{"aggregate_id", e.AggregateID}, {"revision", e.Revision}, {"occurred_at", e.OccurredAt},
	} {
		if field[1] != "" {
			to = appendField(to, field[0], field[1])
		}
	}
	if json.Valid(e.Headers) {
		to = append(append(append(to, `"headers":`...), e.Headers...), ',')
	}
	return append(AppendPayload(to, e), '}')
}

// AppendPayload appends the member of an object that has the payload: payload as JSON, payload_text or payload_base64.
func AppendPayload(to []byte, e *event.Event) []byte {
	switch {
	case e.Payload == nil:
		to = append(to, `"payload":null`...)
	case isJSON(e):
		to = append(to, `"payload":`...)
		to = append(to, e.Payload...)
	case e.PayloadType == event.Binary:
		to = append(to, `"payload_base64":`...)
		to = appendBase64(to, e)
	default:
		to = append(to, `"payload_text":`...)
		to = appendString(to, string(e.Payload))
	}
	return to
}

// isJSON tells whether the payload can stand in a JSON document as it is.
func isJSON(e *event.Event) bool { return e.PayloadType == event.JSON && json.Valid(e.Payload) }

// appendBase64 appends the bytes of a bytea as a JSON string.
func appendBase64(to []byte, e *event.Event) []byte {
	body, err := e.Body()
	if err != nil {
		body = e.Payload
	}
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

// HeaderText makes any text legal in a header, by the rule of the CloudEvents HTTP binding (section 3.1.3.2), which NATS has too:
// space, double quote, percent and what is not visible ASCII are percent-encoded, byte by byte.
func HeaderText(text string) string {
	const digits = "0123456789ABCDEF"
	legal := true
	for i := range len(text) {
		legal = legal && !illegal(text[i])
	}
	if legal {
		return text
	}
	var out strings.Builder
	for _, b := range []byte(text) {
		if illegal(b) {
			out.Write([]byte{'%', digits[b>>4], digits[b&15]})
		} else {
			out.WriteByte(b)
		}
	}
	return out.String()
}

func illegal(b byte) bool { return b <= ' ' || b >= 0x7F || b == '"' || b == '%' }
