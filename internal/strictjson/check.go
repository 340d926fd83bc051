// Package strictjson reads JSON bodies of requests and takes only what means one thing. It knows nothing about HTTP:
// package httpapi checks bodies with it before huma, and package ops decodes with it. Read Check first.
package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Error says what is wrong with a body, and where.
type Error struct {
	Location string // "body", "body.track_slug", "body.events[3]"
	Message  string
}

func (e *Error) Error() string { return e.Location + ": " + e.Message }

// maxDepth is far more than any body of this API needs and far less than a stack.
const maxDepth = 16

// names is how members of all bodies are written. encoding/json and huma match names
// whatever their case (also ſ for s), and what they match loosely is refused here.
var names = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// Check refuses what encoding/json takes although it means nothing certain, or would be stored
// altered: invalid UTF-8 and lone surrogates (both would become U+FFFD), NUL (jsonb and text refuse it,
// error 22P05), repeated names (the last one would win), names in another case, numbers beyond float64,
// deep nesting. Which members there must be and of which type is the affair of Decode, or of huma's schema.
//
// It returns nil or what is wrong, with the place in the body.
func Check(body []byte) *Error {
	if !json.Valid(body) {
		return notJSON(body)
	}
	w := walk{body: body, ours: true}
	w.value("body", 1)
	return w.wrong
}

// CheckForeign is Check for JSON whose names others choose: they may be written in any way, but not repeated.
func CheckForeign(body []byte) *Error {
	if !json.Valid(body) {
		return notJSON(body)
	}
	w := walk{body: body}
	w.value("body", 1)
	return w.wrong
}

// notJSON says of a body that is no JSON where that shows.
func notJSON(body []byte) *Error {
	var syntax *json.SyntaxError
	if errors.As(json.Unmarshal(body, new(json.RawMessage)), &syntax) {
		return &Error{Location: "body", Message: fmt.Sprintf("not JSON: %s at byte %d", syntax, syntax.Offset)}
	}
	return &Error{Location: "body", Message: "not JSON"}
}

// walk goes through a body that is known to be syntactically right, up to the first thing that is wrong.
type walk struct {
	body  []byte
	at    int
	ours  bool // names are ours
	wrong *Error
}

func (w *walk) fail(path, message string) {
	w.wrong = &Error{Location: path, Message: message}
}

func (w *walk) value(path string, depth int) {
	if depth > maxDepth {
		w.fail("body", fmt.Sprintf("nested deeper than %d levels", maxDepth))
		return
	}
	switch w.next() {
	case '{':
		w.object(path, depth)
	case '[':
		w.array(path, depth)
	case '"':
		w.text(path)
	default:
		w.literal(path)
	}
}

func (w *walk) object(path string, depth int) {
	seen := map[string]bool{}
	for w.at++; w.next() != '}'; w.comma() {
		name := w.text(path)
		if w.wrong != nil {
			return
		}
		place := path + "." + short(name)
		switch {
		case w.ours && !names.MatchString(name):
			w.fail(place, "unexpected property: names are written in lower case with underscores")
			return
		case seen[name]:
			w.fail(place, "given more than once")
			return
		}
		seen[name] = true
		w.next()
		w.at++ // the colon
		if w.value(place, depth+1); w.wrong != nil {
			return
		}
	}
	w.at++
}

func (w *walk) array(path string, depth int) {
	i := 0
	for w.at++; w.next() != ']'; w.comma() {
		if w.value(fmt.Sprintf("%s[%d]", path, i), depth+1); w.wrong != nil {
			return
		}
		i++
	}
	w.at++
}

// text passes a string and returns it as it is meant.
func (w *walk) text(path string) string {
	start, plain := w.at, true
	for w.at++; w.body[w.at] != '"'; w.at++ {
		if w.body[w.at] != '\\' {
			continue
		}
		plain = false
		w.at++
		if w.body[w.at] != 'u' {
			continue
		}
		r := w.hex()
		if utf16.IsSurrogate(r) {
			if w.body[w.at+1] != '\\' || w.body[w.at+2] != 'u' {
				w.fail(path, "contains a lone surrogate")
				return ""
			}
			w.at += 2
			if utf16.DecodeRune(r, w.hex()) == utf8.RuneError {
				w.fail(path, "contains a lone surrogate")
				return ""
			}
		}
		if r == 0 {
			w.fail(path, "contains the character NUL")
			return ""
		}
	}
	w.at++
	raw := w.body[start:w.at]
	if !utf8.Valid(raw) {
		w.fail(path, "is no valid UTF-8")
		return ""
	}
	if plain {
		return string(raw[1 : len(raw)-1])
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		w.fail(path, "is no string")
	}
	return text
}

// hex reads the four digits behind the u at which the walk stands, and stays on the last one.
func (w *walk) hex() rune {
	n, _ := strconv.ParseUint(string(w.body[w.at+1:w.at+5]), 16, 16) // digits, or the syntax would be wrong
	w.at += 4
	return rune(n)
}

func (w *walk) literal(path string) {
	start := w.at
	for w.at < len(w.body) && !strings.ContainsRune(",]} \t\r\n", rune(w.body[w.at])) {
		w.at++
	}
	switch literal := string(w.body[start:w.at]); literal {
	case "true", "false", "null":
	default:
		if _, err := strconv.ParseFloat(literal, 64); err != nil {
			w.fail(path, "is a number out of range")
		}
	}
}

// next passes white space and returns the byte behind it, on which the walk then stands.
func (w *walk) next() byte {
	for strings.ContainsRune(" \t\r\n", rune(w.body[w.at])) {
		w.at++
	}
	return w.body[w.at]
}

func (w *walk) comma() {
	if w.next() == ',' {
		w.at++
	}
}

// short keeps a name from the outside fit for an answer.
func short(name string) string {
	if len(name) > 64 {
		name = name[:64] + "…"
	}
	return strings.ToValidUTF8(name, "")
}
