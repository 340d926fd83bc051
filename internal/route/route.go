// Package route makes names at a destination of an event: the topic that it goes to, the value of a header. A template is
// compiled when the configuration is checked, so that a mistake in it is found before the first event. It does no I/O and
// knows no destination: which names are legal says who compiles.
package route

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/backendstart/walpost/internal/event"
)

// A Template is text with parts of the event in it: {topic}, {type}, {aggregate_type}, {key} and {header.x}.
type Template struct {
	text  string
	parts []part
	rule  Rule
}

// A Rule says which names a destination takes. The zero value takes all.
type Rule struct {
	// Legal returns what is wrong with a name that is not empty; nil takes all.
	Legal func(name string) error
	// MayBeEmpty takes a name although its parts are empty.
	MayBeEmpty bool
}

// part is a piece of text, or a part of the event.
type part struct {
	text string
	name string // in braces, "" for text
	of   func(*event.Event) string
}

// fields are the parts of an event that a template can name, apart from its headers.
var fields = map[string]func(*event.Event) string{
	"topic":          func(e *event.Event) string { return e.Topic },
	"type":           func(e *event.Event) string { return e.Type },
	"aggregate_type": func(e *event.Event) string { return e.AggregateType },
	"key":            func(e *event.Event) string { return e.Key },
}

// Compile reads a template. A brace that is meant as one has no way to be written: no destination has it in a name.
func Compile(text string, rule Rule) (*Template, error) {
	t := &Template{text: text, rule: rule}
	for rest := text; rest != ""; {
		fixed, after, found := strings.Cut(rest, "{")
		if strings.Contains(fixed, "}") {
			return nil, fmt.Errorf("%q has a } without its {", text)
		}
		if fixed != "" {
			t.parts = append(t.parts, part{text: fixed})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return nil, fmt.Errorf("%q has a { without its }", text)
		}
		of := fields[name]
		if header, is := strings.CutPrefix(name, "header."); is && header != "" {
			of = func(e *event.Event) string { return headerOf(e, header) }
		}
		if of == nil {
			return nil, fmt.Errorf("{%s} is no part of an event: there are {topic}, {type}, {aggregate_type}, {key} and {header.NAME}", name)
		}
		t.parts = append(t.parts, part{name: name, of: of})
		rest = after
	}
	if name, fixed := t.Fixed(); fixed {
		if err := t.check(name); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// headerOf is the text of a header that is a string, number or boolean.
func headerOf(e *event.Event, name string) (value string) {
	for header, text := range e.EachHeader() {
		if header == name {
			value = text
		}
	}
	return value
}

// String is the template as it was written.
func (t *Template) String() string { return t.text }

// Fixed is the name, where that is the same for every event.
func (t *Template) Fixed() (name string, fixed bool) {
	switch {
	case len(t.parts) == 0:
		return "", true
	case len(t.parts) == 1 && t.parts[0].of == nil:
		return t.parts[0].text, true
	}
	return "", false
}

// NameOf is the name of an event. The error says which part is empty, or what no destination of this rule takes: no later
// attempt changes that.
func (t *Template) NameOf(e *event.Event) (string, error) {
	if name, fixed := t.Fixed(); fixed {
		return name, nil // Compile has looked at it
	}
	var name strings.Builder
	for _, part := range t.parts {
		text := part.text
		if part.of != nil {
			if text = part.of(e); text == "" && !t.rule.MayBeEmpty {
				return "", fmt.Errorf("%s: the event has no %s", t.text, strings.TrimPrefix(part.name, "header."))
			}
		}
		name.WriteString(text)
	}
	return name.String(), t.check(name.String())
}

// Absent tells that the event has none of the parts: its column is NULL or not there. Of a header an empty text counts as
// there; of the other parts no one can tell.
func (t *Template) Absent(e *event.Event) bool {
	for _, part := range t.parts {
		if part.of == nil || part.of(e) != "" {
			return false
		}
		name, isHeader := strings.CutPrefix(part.name, "header.")
		if !isHeader {
			continue
		}
		for header := range e.EachHeader() {
			if header == name {
				return false
			}
		}
	}
	return true
}

func (t *Template) check(name string) error {
	switch {
	case name == "" && t.rule.MayBeEmpty:
		return nil
	case name == "":
		return errors.New("is empty")
	case t.rule.Legal == nil:
		return nil
	}
	return t.rule.Legal(name)
}

// Names bounds how many distinct names data can make: each costs memory here and at the destination.
type Names struct {
	most int

	mu   sync.Mutex
	seen map[string]bool // guarded by mu
}

// NewNames allows so many.
func NewNames(most int) *Names { return &Names{most: most, seen: map[string]bool{}} }

// Admit returns an error for a name above the bound.
func (n *Names) Admit(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen[name] {
		return nil
	}
	if len(n.seen) >= n.most {
		return fmt.Errorf("events have made %d distinct names already, which is the bound: %.100q is one more", n.most, name)
	}
	n.seen[name] = true
	return nil
}

// Kafka is the rule of Kafka's topics (org.apache.kafka.common.internals.Topic).
var Kafka = Rule{Legal: func(name string) error {
	const longest = 249
	illegal := strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
	switch {
	case len(name) > longest:
		return fmt.Errorf("the topic %.60q… has %d bytes, Kafka takes at most %d", name, len(name), longest)
	case illegal:
		return fmt.Errorf("%q is no topic: Kafka takes letters, digits, '.', '_' and '-'", name)
	case name == "." || name == "..":
		return fmt.Errorf("%q is no topic", name)
	}
	return nil
}}

// NATS is the rule of NATS subjects: tokens with dots between. A wildcard is none: no server takes a message to one. The
// server reads a subject in a line of at most 4,096 bytes, with what else stands there.
var NATS = Rule{Legal: func(name string) error {
	const longest = 1024
	illegal := !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '*' || r == '>' })
	switch {
	case len(name) > longest:
		return fmt.Errorf("the subject %.60q… has %d bytes, at most %d are sent", name, len(name), longest)
	case illegal:
		return fmt.Errorf("%q is no subject: NATS takes no spaces, no control characters, no '*' and no '>'", name)
	case strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, ".."):
		return fmt.Errorf("%q is no subject: there is an empty token between dots", name)
	}
	return nil
}}
