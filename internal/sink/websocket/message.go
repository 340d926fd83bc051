package websocket

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/event"
)

// message is an event as clients get it. All clients share one; no one changes it.
type message struct {
	// revision is -1 where the source has none: no client can ask for such an event again.
	revision int64
	text     []byte // JSON
}

var errRevision = errors.New("its revision is no whole number from 0 to 2^63-1")

// aggregateOf is the name by which clients follow the event's aggregate: "type/id", or what of it there is, or the key, which may be empty.
func aggregateOf(e *event.Event) string {
	if e.AggregateID == "" {
		return e.Key
	}
	return envelope.Aggregate(e)
}

// revisionOf is the revision of an event, -1 for none.
func revisionOf(e *event.Event) (int64, error) {
	if e.Revision == "" {
		return -1, nil
	}
	revision, err := strconv.ParseInt(e.Revision, 10, 64)
	if err != nil || revision < 0 {
		return 0, fmt.Errorf("%w: %.50q", errRevision, e.Revision)
	}
	return revision, nil
}

// newMessage renders an event. It is the same whether the event comes from the stream or from its row.
func newMessage(e *event.Event, id string) (*message, error) {
	revision, err := revisionOf(e)
	if err != nil {
		return nil, err
	}
	text := make([]byte, 0, len(e.Payload)+len(e.ID)+len(e.Type)+len(e.AggregateID)+len(e.AggregateType)+96)
	text = appendMember(append(text, '{'), "aggregate", aggregateOf(e))
	if revision >= 0 {
		text = append(text, `"revision":`...)
		text = append(strconv.AppendInt(text, revision, 10), ',')
	}
	text = appendMember(text, "id", id)
	text = appendMember(text, "type", e.Type)
	if e.OccurredAt != "" {
		text = appendMember(text, "occurred_at", e.OccurredAt)
	}
	if e.Payload == nil { // SQL NULL is no member, JSON's null is one
		return &message{revision, append(text[:len(text)-1], '}')}, nil
	}
	return &message{revision, append(envelope.AppendPayload(text, e), '}')}, nil
}

func appendMember(to []byte, name, value string) []byte {
	quoted, _ := json.Marshal(value) // a string always has one
	to = append(append(append(to, '"'), name...), `":`...)
	return append(append(to, quoted...), ',')
}

// appendEvent writes the message as a server-sent event. A line break can only stand between the tokens of its payload.
// (HTML Standard, "Server-sent events")
func (m *message) appendEvent(to []byte) []byte {
	if m.revision >= 0 {
		to = append(to, "id: "...)
		to = append(strconv.AppendInt(to, m.revision, 10), '\n')
	}
	text := m.text
	if bytes.IndexByte(text, '\r') >= 0 {
		text = bytes.ReplaceAll(text, []byte{'\r'}, []byte{' '})
	}
	for line := range bytes.SplitSeq(text, []byte{'\n'}) {
		to = append(append(append(to, "data: "...), line...), '\n')
	}
	return append(to, '\n')
}
