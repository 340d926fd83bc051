package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// maxValue is the longest header value that is sent. Servers refuse requests whose headers are longer than
// 8 KiB in all, and an event must not be stuck for the length of its key.
const maxValue = 1 << 10

// ourHeaders is how many headers of our own a request has at most, CloudEvents' aside.
const ourHeaders = 13

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
	h.set("Walpost-Source", encode(d.Source))
	h.set("Walpost-Type", encode(d.Type))
	var position [64]byte
	h.setText("Walpost-Position", d.Position.Append(position[:0]))
	if d.Key != "" {
		h.set("Walpost-Key", encodeKey(d.Key))
	}
	if len(d.Headers) == 0 {
		return h
	}
	if id := headerOf(d.Event, "correlation_id"); id != "" {
		h.set("X-Correlation-Id", id)
	}
	if parent := headerOf(d.Event, "traceparent"); parent != "" {
		h.set("Traceparent", parent)
	}
	return h
}

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

// headerOf is one of the event's own headers, "" where it is too long to be sent.
func headerOf(e *event.Event, name string) string {
	if value := encode(e.Header(name)); len(value) <= maxValue {
		return value
	}
	return ""
}

// encodeKey is encode for what has no bound in length: a key that is too long goes as its hash, which is as
// good for keeping order.
func encodeKey(key string) string {
	if value := encode(key); len(value) <= maxValue {
		return value
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256=" + hex.EncodeToString(sum[:])
}

// encode makes any text legal in a header, by the rule of the CloudEvents HTTP binding (section 3.1.3.2):
// space, double quote, percent and what is not visible ASCII are percent-encoded, byte by byte.
func encode(text string) string {
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
