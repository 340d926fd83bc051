// Package printable makes text from outside safe to look at. C1 control characters steer a terminal as ESC does, and
// bidirectional ones show a line in another order than it has: a key or an error could pretend to be another.
package printable

import (
	"io"
	"unicode"
	"unicode/utf8"
)

// IsHidden reports whether r must not reach a terminal or a page: the C1 controls with DEL, and what changes the
// direction of text or breaks its line.
func IsHidden(r rune) bool {
	return r >= 0x7F && r <= 0x9F || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Writer passes text on with each hidden character written as \u202e. Within a string of JSON that is the same
// character, so programs read what was there; elsewhere it is what a person sees. C0 controls pass: JSON and plain text
// have ways of their own with these. A write must not cut a character. It has no state, so it is as safe for concurrent
// use as what it writes to.
type Writer struct{ Out io.Writer }

// Write implements io.Writer. What it returns counts bytes of p.
func (w *Writer) Write(p []byte) (int, error) {
	if !hasHidden(p) {
		return w.Out.Write(p)
	}
	if _, err := w.Out.Write(escape(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func escape(text []byte) []byte {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, len(text)+16)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1: // a bare byte of 0x80 to 0x9F is a control where a terminal reads Latin-1
			out = append(out, "\uFFFD"...)
		case IsHidden(r):
			out = append(out, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
		default:
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	return out
}

func hasHidden(p []byte) bool {
	for i := 0; i < len(p); {
		if p[i] < 0x7F {
			i++
			continue
		}
		r, size := utf8.DecodeRune(p[i:])
		if r == utf8.RuneError && size == 1 || IsHidden(r) {
			return true
		}
		i += size
	}
	return false
}
