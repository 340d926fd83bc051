package outbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/backendstart/walpost/internal/event"
)

// maxName is how many bytes an event's id and type may have.
const maxName = 256

// maxKey is how many bytes an event's key may have, and its other texts but id, type and body: they stand in memory, in
// walpost.owed, in the log and in headers for each event.
const maxKey = 1024

// checkNames is the one rule for what makes a row or a message an event. It fills Invalid, and repairs the names so
// far that the event can be written down as a dead letter. Payload and headers stay as they are.
func checkNames(e *event.Event) {
	var reasons []string
	id, typ := e.ID, e.Type
	if reason := nameFault(id); reason != "" {
		reasons = append(reasons, "event id "+reason)
		e.ID = idFromRow(e)
	}
	if reason := nameFault(typ); reason != "" {
		reasons = append(reasons, "event type "+reason)
		e.Type = storable(typ[:min(len(typ), maxName)])
	}
	for _, part := range []struct {
		name string
		text *string
	}{
		{"key", &e.Key}, {"aggregate type", &e.AggregateType}, {"aggregate id", &e.AggregateID},
		{"version", &e.Version}, {"topic", &e.Topic}, {"revision", &e.Revision}, {"time", &e.OccurredAt},
	} {
		if len(*part.text) > maxKey {
			reasons = append(reasons, fmt.Sprintf("%s has %d bytes, at most %d are allowed", part.name, len(*part.text), maxKey))
			sum := sha256.Sum256([]byte(*part.text))
			*part.text = "sha256=" + hex.EncodeToString(sum[:]) // as good for keeping order
		}
	}
	e.Invalid = strings.Join(reasons, "; ")
}

// nameFault says why name can be neither id nor type, "" if it can.
func nameFault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxName:
		return fmt.Sprintf("has %d bytes, at most %d are allowed", len(name), maxName)
	case !utf8.ValidString(name):
		return fmt.Sprintf("%q is no valid UTF-8", name)
	case strings.Contains(name, "\x00"):
		return fmt.Sprintf("%q contains U+0000", name)
	}
	return ""
}

// madePrefix is what an id begins with that was made for an event without a usable one.
const madePrefix = "row:"

// idFromRow makes an id for an event without a usable one. It is the same each time the row is read.
func idFromRow(e *event.Event) string {
	if e.Row != "" && len(madePrefix+e.Row) <= maxName && utf8.ValidString(e.Row) {
		return madePrefix + e.Row
	}
	h := sha256.New()
	for _, part := range []string{e.Row, e.ID, e.Type, e.Key, string(e.Payload), string(e.Headers)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return madePrefix + hex.EncodeToString(h.Sum(nil))
}

// storable replaces what a text column cannot hold.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// member returns the text of a member of a JSON document: of a string what it says, of a number or
// boolean its literal. It is "" when there is no such member, or when it is null, an object or an array.
// It reads no further than to the first member of that name.
func member(document []byte, path []string) string {
	tokens := json.NewDecoder(bytes.NewReader(document))
	tokens.UseNumber() // a float64 would change large ids
	for _, name := range path {
		if !enter(tokens, name) {
			return ""
		}
	}
	switch value, _ := tokens.Token(); value := value.(type) {
	case string:
		return value
	case json.Number:
		return value.String()
	case bool:
		return fmt.Sprint(value)
	}
	return ""
}

// enter reads into an object up to the value of its member name.
func enter(tokens *json.Decoder, name string) bool {
	if open, err := tokens.Token(); err != nil || open != json.Delim('{') {
		return false
	}
	for tokens.More() {
		switch found, err := tokens.Token(); {
		case err != nil:
			return false
		case found == name:
			return true
		}
		var skipped json.RawMessage
		if tokens.Decode(&skipped) != nil {
			return false
		}
	}
	return false
}

// EventFromMessage makes an event of the content of a transactional logical message: a JSON object with
// id, type and, if wanted, version, aggregate_type, aggregate_id, key, topic, revision, payload, headers
// and occurred_at. Payload and headers are kept as they are written. The key is the aggregate id where
// there is none. It copies what it keeps, and leaves Position, CommittedAt and XID to the caller.
//
// Content that is no such object is an invalid event with the content as payload (in hex where Postgres
// could not store it as text) and an id made from it.
func (s *Source) EventFromMessage(content []byte) *event.Event {
	e := &event.Event{Source: s.Name}
	var envelope map[string]json.RawMessage // and no struct: encoding/json would ignore case
	err := json.Unmarshal(content, &envelope)
	if err == nil && !utf8.Valid(content) {
		err = fmt.Errorf("it is no valid UTF-8")
	}
	if err == nil && envelope == nil {
		err = fmt.Errorf("it is null")
	}
	if err != nil {
		e.Payload = asText(content)
		e.Occurrence = occurrenceOf("", "", content)
		e.ID = idFromRow(e)
		e.Invalid = fmt.Sprintf("message is no JSON object with id, type and payload: %v", err)
		return e
	}
	for name, to := range map[string]*string{
		"id": &e.ID, "type": &e.Type, "version": &e.Version, "aggregate_type": &e.AggregateType,
		"aggregate_id": &e.AggregateID, "key": &e.Key, "topic": &e.Topic, "revision": &e.Revision,
		"occurred_at": &e.OccurredAt,
	} {
		*to = member(envelope[name], nil)
		if to != &e.ID && to != &e.Type { // these two are checked below and never altered
			*to = storable(*to)
		}
	}
	if e.Key == "" {
		e.Key = e.AggregateID
	}
	e.Payload, e.Headers = envelope["payload"], envelope["headers"]
	e.Occurrence = occurrenceOf(e.OccurredAt, e.Type, e.Payload)
	checkNames(e)
	if e.Invalid != "" {
		e.Payload, e.Headers = asText(content), nil
	}
	s.checkSchema(e)
	return e
}

// asText copies bytes that may be anything into what a text column can hold.
func asText(content []byte) json.RawMessage {
	if utf8.Valid(content) && !bytes.Contains(content, []byte{0}) {
		return bytes.Clone(content)
	}
	return fmt.Appendf(nil, `\x%x`, content)
}
