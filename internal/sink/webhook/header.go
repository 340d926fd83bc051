package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/backendstart/walpost/internal/envelope"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// maxValue is the longest header value that is sent. Servers refuse requests whose headers are longer than
// 8 KiB in all, and an event must not be stuck for the length of its key.
const maxValue = 1 << 10

// ourHeaders is how many headers of our own a request has at most, CloudEvents' aside.
const ourHeaders = 18

// maxOwn and maxOwnBytes bound what of the event's own headers is sent as headers; a body of CloudEvents or of a
// batch has all of them.
const (
	maxOwn      = 16
	maxOwnBytes = 4 << 10
)

// headers gathers the headers of one request, with one allocation for all values and one for the text of those
// that are made for it. They are never used again: the transport may still write them after an answer has come.
type headers struct {
	http.Header
	credentials *credentials
	values      []string
	text        strings.Builder
}

// set sets one header. The name is in its canonical form.
func (h *headers) set(name, value string) {
	h.values = append(h.values, value)
	h.Header[name] = h.values[len(h.values)-1 : len(h.values) : len(h.values)]
}

// setText is set for a value that no one else keeps.
func (h *headers) setText(name string, value []byte) string {
	from := h.text.Len()
	h.text.Write(value)
	text := h.text.String()[from:]
	h.set(name, text)
	return text
}

// newHeader makes the headers of a request with one event, signature aside.
func (w *Webhook) newHeader(c *credentials, d subscriber.Delivery) *headers {
	h := w.attemptHeader(c, d)
	h.set("Walpost-Source", envelope.HeaderText(d.Source))
	h.set("Walpost-Type", envelope.HeaderText(d.Type))
	var position [64]byte
	h.setText("Walpost-Position", d.Position.Append(position[:0]))
	if d.Key != "" {
		h.set("Walpost-Key", encodeKey(d.Key))
	}
	for _, part := range [...]struct{ name, value string }{
		{"Walpost-Version", d.Version}, {"Walpost-Topic", d.Topic}, {"Walpost-Aggregate", envelope.Aggregate(d.Event)}, {"Walpost-Revision", d.Revision},
	} {
		if value := envelope.HeaderText(part.value); value != "" && len(value) <= maxValue {
			h.set(part.name, value)
		}
	}
	h.setOwn(d.Event)
	return h
}

// setOwn sets what stands in the event's own headers.
func (h *headers) setOwn(e *event.Event) {
	if len(e.Headers) == 0 {
		return
	}
	own, size := 0, 0
	for name, text := range e.EachHeader() {
		value := envelope.HeaderText(text)
		if value == "" || len(value) > maxValue {
			continue
		}
		switch name {
		case "correlation_id":
			h.set("X-Correlation-Id", value)
			continue
		case "traceparent":
			h.set("Traceparent", value)
			continue
		}
		name = ownName(name)
		if size += len(name) + len(value); name == "" || own == maxOwn || size > maxOwnBytes {
			continue
		}
		own++
		h.set(name, value)
	}
}

// ownName is the header in which one of the event's own is sent: letters, digits and hyphens, since proxies drop names
// with an underscore. "" where the name has anything else.
func ownName(name string) string {
	for i := range len(name) {
		if b := name[i]; b != '_' && b != '-' && (b < '0' || b > '9') && (b|0x20 < 'a' || b|0x20 > 'z') {
			return ""
		}
	}
	if name == "" || len(name) > 64 {
		return ""
	}
	return http.CanonicalHeaderKey("Walpost-Header-" + strings.ReplaceAll(name, "_", "-"))
}

// bodyOf returns the payload as it is sent alone, and the value of Content-Type for it: a bytea is decoded.
func bodyOf(d subscriber.Delivery) (body []byte, contentType []string) {
	switch {
	case d.Payload == nil:
		return nil, nil
	case d.PayloadType == event.JSON:
		return d.Payload, jsonType
	case d.PayloadType == event.Binary:
		if body, err := d.Body(); err == nil {
			return body, binaryType
		}
	}
	return d.Payload, textType
}

var (
	jsonType   = []string{"application/json"}
	textType   = []string{"text/plain; charset=utf-8"}
	binaryType = []string{"application/octet-stream"}
)

// attemptHeader makes what says something about the attempt, with the configured headers.
func (w *Webhook) attemptHeader(c *credentials, d subscriber.Delivery) *headers {
	h := &headers{Header: make(http.Header, len(c.header)+ourHeaders), credentials: c, values: make([]string, 0, ourHeaders)}
	signatures := len(c.keys) * signatureSize
	if w.signHeaders {
		signatures *= 2
	}
	h.text.Grow(96 + signatures)  // and the numbers, and a position
	maps.Copy(h.Header, c.header) // the values are shared: no one changes them
	var number [20]byte
	h.setText("Walpost-Attempt", strconv.AppendInt(number[:0], int64(d.Attempt), 10))
	h.setText("Walpost-Term", strconv.AppendInt(number[:0], d.Term, 10))
	if d.Replay {
		h.set("Walpost-Replay", "true")
	}
	return h
}

// encodeKey is envelope.HeaderText for what has no bound in length: a key that is too long goes as its hash, which is as
// good for keeping order.
func encodeKey(key string) string {
	if value := envelope.HeaderText(key); len(value) <= maxValue {
		return value
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256=" + hex.EncodeToString(sum[:])
}
