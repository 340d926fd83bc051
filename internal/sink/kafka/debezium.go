package kafka

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Converters of Kafka Connect, which make bytes of keys and payloads.
const (
	// StringConverter writes text as it is; so do ByteArrayConverter and BinaryDataConverter with the bytes of a bytea.
	StringConverter = "string"
	// JSONConverter writes JSON without schemas: a text is a string there.
	JSONConverter = "json"
)

// DebeziumOptions are those of Debezium's outbox event router and of its worker that change the bytes of a record.
// docs/from-debezium.md says which option of Debezium each of them is.
type DebeziumOptions struct {
	// KeyConverter and ValueConverter are StringConverter, where they are empty, or JSONConverter.
	KeyConverter   string `yaml:"key_converter,omitempty"`
	ValueConverter string `yaml:"value_converter,omitempty"`
	// ExpandJSONPayload lets JSONConverter write objects as what they are.
	ExpandJSONPayload bool `yaml:"expand_json_payload,omitempty"`
	// TombstoneOnEmptyPayload makes a tombstone of a blank text, and of SQL NULL with JSONConverter too.
	TombstoneOnEmptyPayload bool `yaml:"tombstone_on_empty_payload,omitempty"`
}

// checkDebezium checks what only records of Debezium's shape have.
func (c *Config) checkDebezium(fail func(string, error)) {
	if c.Debezium == nil {
		return
	}
	if c.Format != Debezium {
		fail("debezium", fmt.Errorf("belongs to format: %s, and the format is %s", Debezium, c.Format))
	}
	for _, of := range [...]struct{ key, converter string }{{"key_converter", c.Debezium.KeyConverter}, {"value_converter", c.Debezium.ValueConverter}} {
		if of.converter != "" && of.converter != StringConverter && of.converter != JSONConverter {
			fail("debezium."+of.key, fmt.Errorf("%q is none of %s, %s", of.converter, JSONConverter, StringConverter))
		}
	}
	if c.Debezium.ExpandJSONPayload && c.Debezium.ValueConverter != JSONConverter {
		fail("debezium.expand_json_payload", errors.New("is for value_converter: json; without it the payload is sent as it is"))
	}
}

// fillDebezium makes the record as Debezium's outbox event router does: the header id, further columns under the names
// that the configuration gives them, NULL as a header without a value. Of walpost's own headers those stay that say which
// attempt this is and where the event stands, because a receiver can refuse an older term or what was replayed by nothing
// else.
func (k *Kafka) fillDebezium(r *kgo.Record, d subscriber.Delivery) error {
	options := k.Debezium
	if options == nil {
		options = &DebeziumOptions{}
	}
	value, err := options.value(d.Event)
	if err != nil {
		return subscriber.Permanent(err)
	}
	r.Value = value
	if options.KeyConverter == JSONConverter {
		r.Key = appendJSONString(nil, string(r.Key))
	}
	// Without the source, which Debezium does not have there either: with several sources the ids must differ by themselves.
	r.Headers = append(r.Headers, header(debeziumID, d.ID))
	for _, configured := range k.headers {
		text, err := configured.template.NameOf(d.Event)
		if err != nil {
			return subscriber.Permanent(fmt.Errorf("header %s: %w", configured.name, err))
		}
		h := kgo.RecordHeader{Key: configured.name}
		if text != "" || !configured.template.Absent(d.Event) {
			h.Value = []byte(text)
		}
		r.Headers = append(r.Headers, h)
	}
	r.Headers = append(r.Headers, header("walpost-position", d.Position.String()))
	k.appendAttempt(r, d)
	return nil
}

// debeziumID is the header that consumers dedupe on.
const debeziumID = "id"

// value is nil for a tombstone.
func (o *DebeziumOptions) value(e *event.Event) ([]byte, error) {
	body, err := e.Body()
	if err != nil {
		return nil, err
	}
	blank := e.Payload == nil || e.PayloadType != event.Binary && isBlank(body)
	switch {
	case blank && o.TombstoneOnEmptyPayload:
		return nil, nil
	case o.ValueConverter != JSONConverter:
		return body, nil // nil for SQL NULL
	case e.Payload == nil:
		return []byte("null"), nil
	case e.PayloadType == event.Binary:
		return append(base64.StdEncoding.AppendEncode([]byte{'"'}, body), '"'), nil
	case o.ExpandJSONPayload && len(body) > 0 && (body[0] == '{' || body[0] == '[') && json.Valid(body):
		return body, nil // the spaces, numbers, nulls and empty arrays of which Debezium loses something stay
	}
	return appendJSONString(nil, string(body)), nil
}

// isBlank tells what Java's trim leaves nothing of.
func isBlank(text []byte) bool {
	return len(bytes.TrimFunc(text, func(r rune) bool { return r <= ' ' })) == 0
}

// appendJSONString appends a JSON string as Jackson writes it, which JsonConverter uses: encoding/json escapes other
// characters.
func appendJSONString(to []byte, text string) []byte {
	to = append(to, '"')
	for _, r := range text {
		switch short := strings.IndexRune("\"\\\b\f\n\r\t", r); {
		case short >= 0:
			to = append(to, '\\', `"\bfnrt`[short])
		case r < ' ':
			to = fmt.Appendf(to, `\u%04X`, r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			to = fmt.Appendf(to, `\u%04X\u%04X`, high, low)
		default:
			to = utf8.AppendRune(to, r)
		}
	}
	return append(to, '"')
}
