package event

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
)

// A PayloadType says what the text of a payload stands for: the type of its column.
type PayloadType uint8

const (
	// JSON is the text of a json or jsonb column, or of a member of a logical message.
	JSON PayloadType = iota
	// Text is the text of any other type.
	Text
	// Binary is the text of a bytea column as Postgres writes it with bytea_output=hex: \x and two digits for each
	// byte (manual, "Binary Data Types"). A destination decodes it.
	Binary
)

var payloadTypes = [...]string{"json", "text", "bytea"}

// String is the name by which the type is stored.
func (t PayloadType) String() string { return payloadTypes[t] }

// ParsePayloadType is the inverse of String.
func ParsePayloadType(name string) (PayloadType, error) {
	for i, known := range payloadTypes {
		if name == known {
			return PayloadType(i), nil
		}
	}
	return 0, fmt.Errorf("payload type %q is none of %q", name, payloadTypes)
}

// Body is the payload as a receiver gets it, nil for SQL NULL: of a bytea its bytes, of any other type its text.
func (e *Event) Body() ([]byte, error) {
	if e.PayloadType != Binary || e.Payload == nil {
		return e.Payload, nil
	}
	digits, found := bytes.CutPrefix(e.Payload, []byte(`\x`))
	if !found {
		return nil, errors.New(`the payload is no bytea: it does not begin with \x`)
	}
	return hex.AppendDecode(make([]byte, 0, len(digits)/2), digits)
}
