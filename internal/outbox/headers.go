package outbox

import (
	"encoding/json"

	"github.com/backendstart/walpost/internal/event"
)

// addedHeader is a column that stands in the headers of each event.
type addedHeader struct {
	name string
	at   int // an index into a row
}

// addHeaders returns headers with the further columns as strings; NULL is left out. What the headers have already
// stays as it is written, unless a column has its name. ok is false where the headers are no object: they come back
// as they are.
func (l *Layout) addHeaders(headers []byte, values [][]byte) (mixed []byte, ok bool) {
	var added []event.AddedHeader
	for _, h := range l.added {
		if value := values[h.at]; value != nil {
			added = append(added, event.AddedHeader{Name: h.name, Value: string(value)})
		}
	}
	if len(added) == 0 {
		return headers, true
	}
	if headers != nil && !isObject(headers) {
		return headers, false
	}
	return event.AddHeaders(headers, added), true
}

// isObject reports whether a text is a JSON object.
func isObject(text []byte) bool {
	return json.Valid(text) && text[firstNonSpace(text)] == '{'
}

func firstNonSpace(text []byte) int {
	for i, b := range text {
		if b != ' ' && b != '\t' && b != '\n' && b != '\r' {
			return i
		}
	}
	return 0
}
