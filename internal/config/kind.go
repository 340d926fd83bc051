package config

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Kinds are the kinds of subscribers that a program has, by name.
type Kinds map[string]Kind

// A Kind is what the configuration knows of a kind of subscribers. The zero value is one without keys of its own.
type Kind struct {
	// Options returns the kind's own options with their defaults; nil where it has none.
	Options func() Options
	// Defaults changes those of the keys that every subscriber has; nil where they fit.
	Defaults func(s *Subscriber)
	// Pipeline tells that its subscribers report delivery by delivery (subscriber.Pipeline): these alone have in_flight.
	Pipeline bool
	// OwnName tells that there can be one subscriber of the kind, with the name of the kind.
	OwnName bool
}

// inFlight is the key of kinds that are pipelines, and its default.
const (
	inFlight        = "in_flight"
	defaultInFlight = 10_000
)

// Options are what the file says of a subscriber apart from the keys that all of them have: a pointer to a struct whose fields
// are the keys of its kind.
type Options interface {
	// Check calls fail for each key that is wrong. It connects to nothing. s is the subscriber that the options belong to.
	Check(s Subscriber, fail func(key string, err error))
	// SecretTexts are what must not be shown where it comes back: in the error of a receiver, for example.
	SecretTexts() []string
}

// names are the kinds in the order of their names.
func (k Kinds) names() []string { return slices.Sorted(maps.Keys(k)) }

// knowing are the kinds that have a key of their own with this name.
func (k Kinds) knowing(key string) []string {
	var knowing []string
	for _, name := range k.names() {
		if k[name].Pipeline && key == inFlight || k[name].Options != nil && slices.Contains(keysOf(k[name].Options()), key) {
			knowing = append(knowing, name)
		}
	}
	return knowing
}

// keysOf are the keys of a struct, or of a pointer to one.
func keysOf(options any) []string {
	t := reflect.TypeOf(options)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var keys []string
	for i := range t.NumField() {
		if key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); key != "" && key != "-" {
			keys = append(keys, key)
		}
	}
	return keys
}

// UnmarshalYAML fills in the defaults before the file speaks. The keys of a subscriber are read in two parts: those that
// every subscriber has, and those of its kind.
func (s *Subscriber) UnmarshalYAML(ctx context.Context, node ast.Node) error {
	type plain Subscriber
	reading := readingOf(ctx)
	*s = defaultSubscriber()
	mapping, ok := node.(*ast.MappingNode)
	if !ok {
		return decodeNode(ctx, node, (*plain)(s)) // it says what it wants
	}
	pairs := mergedPairs(mapping)
	word := func(key string) string {
		at := slices.IndexFunc(pairs, func(pair *ast.MappingValueNode) bool { return keyOf(pair) == key })
		if at < 0 {
			return ""
		}
		text, _ := scalar(pairs[at].Value)
		return text
	}
	name := word("name")
	kindName := word("kind")
	if kindName == "" {
		kindName = name
	}
	kind, known := reading.kinds[kindName]
	if kind.Pipeline {
		s.InFlight = defaultInFlight
	}
	if kind.Defaults != nil {
		kind.Defaults(s)
	}
	var own []string
	if kind.Options != nil {
		s.Options = kind.Options()
		own = keysOf(s.Options)
	}
	var common, special []*ast.MappingValueNode
	for _, pair := range pairs {
		key := keyOf(pair)
		switch knowing := reading.kinds.knowing(key); {
		case slices.Contains(own, key):
			special = append(special, pair)
		case key == inFlight && kind.Pipeline, key != inFlight && (slices.Contains(commonKeys, key) || len(knowing) == 0):
			common = append(common, pair)
		case known && len(knowing) == 0:
			reading.add(pair.GetToken().Position.Line, "subscriber %q: %s: kind %s has no such key", name, key, kindName)
		case known: // of an unknown kind that alone is said
			reading.add(pair.GetToken().Position.Line, "subscriber %q: %s: kind %s has no such key; these have: %s", name, key, kindName, strings.Join(knowing, ", "))
		}
	}
	if err := decodeNode(ctx, ast.Mapping(mapping.Start, false, common...), (*plain)(s)); err != nil {
		return err
	}
	s.Kind = kindName
	if kind.Pipeline && s.InFlight == 0 {
		reading.add(mapping.GetToken().Position.Line, "subscriber %q: %s: must be above 0", name, inFlight)
	}
	if s.Options == nil {
		return nil
	}
	if !reading.delivers {
		special = reading.resolvedPairs(special)
	}
	return decodeNode(ctx, ast.Mapping(mapping.Start, false, special...), s.Options)
}

var commonKeys = keysOf(Subscriber{})

// mergedPairs are the pairs of a mapping with those that it merges (<<) in their place. A key of its own overrides them.
func mergedPairs(mapping *ast.MappingNode) []*ast.MappingValueNode {
	var pairs []*ast.MappingValueNode
	add := func(pair *ast.MappingValueNode, override bool) {
		at := slices.IndexFunc(pairs, func(other *ast.MappingValueNode) bool { return keyOf(other) == keyOf(pair) })
		switch {
		case at < 0:
			pairs = append(pairs, pair)
		case override:
			pairs[at] = pair
		}
	}
	for _, pair := range mapping.Values {
		if !pair.Key.IsMergeKey() {
			add(pair, true)
		}
	}
	for _, pair := range mapping.Values {
		if !pair.Key.IsMergeKey() {
			continue
		}
		merged := []ast.Node{pair.Value}
		if list, ok := pair.Value.(*ast.SequenceNode); ok {
			merged = list.Values
		}
		for _, from := range merged {
			if from, ok := from.(*ast.MappingNode); ok {
				for _, pair := range mergedPairs(from) {
					add(pair, false)
				}
			}
		}
	}
	return pairs
}

// decodeNode decodes a part of the file. It is not yaml.Strict: that takes a key that overrides one merged with << for a
// repeated one, and the parser has refused real repetitions already.
func decodeNode(ctx context.Context, node ast.Node, target any) error {
	decoder := yaml.NewDecoder(strings.NewReader(""), yaml.DisallowUnknownField(), yaml.AllowDuplicateMapKey())
	return decoder.DecodeFromNodeContext(ctx, node, target)
}

// MarshalYAML writes the subscriber as the file has it.
func (s Subscriber) MarshalYAML() (any, error) {
	type plain Subscriber
	common, err := asMap(plain(s))
	if err != nil || s.Options == nil {
		return common, err
	}
	own, err := asMap(s.Options)
	// Behind what says who it is stands what its kind says of it.
	at := slices.IndexFunc(common, func(item yaml.MapItem) bool {
		return !slices.Contains([]any{"name", "kind", "sources", "events"}, item.Key)
	})
	return slices.Insert(common, at, own...), err
}

func asMap(value any) (written yaml.MapSlice, err error) {
	text, err := yaml.Marshal(value)
	if err == nil {
		err = yaml.UnmarshalWithOptions(text, &written, yaml.UseOrderedMap())
	}
	return written, err
}
