package event

import (
	"slices"
	"strings"
)

// Filter says which events a subscriber wants. It is data, so that it can be kept with what is recorded of the
// subscriber and still be asked when the subscriber has left the configuration.
type Filter struct {
	// Sources are names of sources; none means all.
	Sources []string `json:"sources,omitempty"`
	// Events are the patterns of event types that the configuration asks for, Types those that the subscriber
	// itself understands; * is any run of characters, none means all.
	Events []string `json:"events,omitempty"`
	Types  []string `json:"types,omitempty"`
}

// Takes reports whether the filter lets events of a source and type through. Whether an event without a type is
// understood cannot be said: it goes to all who ask for it, and becomes a dead letter.
func (f Filter) Takes(source, eventType string) bool {
	return (len(f.Sources) == 0 || slices.Contains(f.Sources, source)) &&
		anyMatches(f.Events, eventType) && (eventType == "" || anyMatches(f.Types, eventType))
}

// Equal reports whether two filters are written in the same way.
func (f Filter) Equal(g Filter) bool {
	return slices.Equal(f.Sources, g.Sources) && slices.Equal(f.Events, g.Events) && slices.Equal(f.Types, g.Types)
}

func anyMatches(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool { return Matches(pattern, text) })
}

// Matches compares with a pattern in which * is any run of characters, dots included. Each literal
// part is found as early as possible and the last one at the end, so the cost is linear in the text.
func Matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		if _, text, ok = strings.Cut(text, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(text, parts[last])
}
