package webhook

import (
	"bytes"
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

// newHeader makes the headers of a request with one event, signature aside.
func (w *Webhook) newHeader(d subscriber.Delivery) http.Header {
	h := w.attemptHeader(d)
	h["Walpost-Type"] = []string{encode(d.Type)}
	h["Walpost-Position"] = []string{d.Position.String()}
	if d.Key != "" {
		h["Walpost-Key"] = []string{encodeKey(d.Key)}
	}
	if id := headerOf(d.Event, "correlation_id"); id != "" {
		h["X-Correlation-Id"] = []string{id}
	}
	if parent := headerOf(d.Event, "traceparent"); parent != "" {
		h["Traceparent"] = []string{parent}
	}
	return h
}

// attemptHeader makes what says something about the attempt, with the configured headers.
func (w *Webhook) attemptHeader(d subscriber.Delivery) http.Header {
	h := make(http.Header, len(w.header)+16)
	maps.Copy(h, w.header) // the values are shared: nobody changes them
	h["Walpost-Attempt"] = []string{strconv.Itoa(d.Attempt)}
	h["Walpost-Term"] = []string{strconv.FormatInt(d.Term, 10)}
	if d.Replay {
		h["Walpost-Replay"] = []string{"true"}
	}
	return h
}

// headerOf is one of the event's own headers, "" where it is too long to be sent. The look before spares
// the parsing of headers that have no such name.
func headerOf(e *event.Event, name string) string {
	if !bytes.Contains(e.Headers, []byte(name)) {
		return ""
	}
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
	if strings.IndexFunc(text, illegal) < 0 {
		return text
	}
	var out strings.Builder
	for _, b := range []byte(text) {
		if illegal(rune(b)) {
			out.Write([]byte{'%', digits[b>>4], digits[b&15]})
		} else {
			out.WriteByte(b)
		}
	}
	return out.String()
}

func illegal(r rune) bool { return r <= ' ' || r >= 0x7F || r == '"' || r == '%' }
