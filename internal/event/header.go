package event

import (
	"bytes"
	"encoding/json"
	"iter"
	"slices"
	"strings"
)

// CorrelationID returns the header "correlation_id", or "" if there is none. It looks through the headers
// at each call.
func (e *Event) CorrelationID() string { return e.Header("correlation_id") }

// Header returns a header whose value is a JSON string, or "". The headers are valid JSON, because
// Postgres or the reader of the envelope has seen to that; what is not comes out as "" or as a part of it.
func (e *Event) Header(name string) (value string) {
	for key, found := range e.members() {
		if unquote(key) == name { // the last one counts, as for everyone who reads JSON
			value = unquote(found)
		}
	}
	return value
}

// EachHeader goes through the headers that are a string, number or boolean, in the order in which they stand: name
// and text. It looks through the headers at each call.
func (e *Event) EachHeader() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for key, found := range e.members() {
			value := unquote(found)
			if stringAt(found) == nil {
				value = string(bytes.TrimRight(found, space))
				if value == "null" || strings.ContainsAny(value, "{[") {
					continue
				}
			}
			if !yield(unquote(key), value) {
				return
			}
		}
	}
}

// AddedHeader is a header that comes from elsewhere than the headers of the event.
type AddedHeader struct{ Name, Value string }

// AddHeaders returns headers, a JSON object or nil, with others added as strings. What they have already stays as it is
// written, but for a member with the name of one that is added.
func AddHeaders(headers json.RawMessage, added []AddedHeader) json.RawMessage {
	mixed := append(make([]byte, 0, len(headers)+64*len(added)), '{')
	for key, value := range (&Event{Headers: headers}).members() {
		if !slices.ContainsFunc(added, func(h AddedHeader) bool { return h.Name == unquote(key) }) {
			mixed = append(append(append(append(mixed, key...), ": "...), bytes.TrimRight(value, space)...), ", "...)
		}
	}
	for _, h := range added {
		name, _ := json.Marshal(h.Name) // a string always has one
		value, _ := json.Marshal(h.Value)
		mixed = append(append(append(append(mixed, name...), ": "...), value...), ", "...)
	}
	if len(mixed) > 1 {
		mixed = mixed[:len(mixed)-len(", ")]
	}
	return append(mixed, '}')
}

// members goes through the members of the headers as they are written.
//
// It walks over the text instead of decoding it: this is asked for each delivery to a destination.
func (e *Event) members() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		rest := bytes.TrimLeft(e.Headers, space)
		if len(rest) == 0 || rest[0] != '{' {
			return
		}
		for rest = rest[1:]; ; {
			rest = bytes.TrimLeft(rest, space+",")
			key := stringAt(rest)
			if key == nil {
				return
			}
			rest = bytes.TrimLeft(rest[len(key):], space+":")
			value := valueAt(rest)
			rest = rest[len(value):]
			if !yield(key, value) || len(value) == 0 {
				return
			}
		}
	}
}

const space = " \t\r\n"

// stringAt is the string that text begins with, quotes included, or nil.
func stringAt(text []byte) []byte {
	if len(text) == 0 || text[0] != '"' {
		return nil
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return text[:i+1]
		}
	}
	return nil
}

// valueAt is the value that text begins with.
func valueAt(text []byte) []byte {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			quoted := stringAt(text[i:])
			if quoted == nil {
				return nil
			}
			i += len(quoted) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return text[:i]
			}
		case ',':
			if depth == 0 {
				return text[:i]
			}
		}
	}
	return nil
}

// unquote is what a JSON string says, "" for any other value.
func unquote(text []byte) string {
	quoted := bytes.TrimRight(text, space)
	if stringAt(quoted) == nil {
		return ""
	}
	if inner := quoted[1 : len(quoted)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	var value string
	if json.Unmarshal(quoted, &value) != nil {
		return ""
	}
	return value
}
