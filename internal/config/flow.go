package config

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // a container may have none
	"unicode"

	"github.com/goccy/go-yaml/ast"

	"github.com/backendstart/walpost/internal/event"
)

// Flow is what walpost.yaml describes: where events come from and who gets them.
type Flow struct {
	Sources     []Source     `yaml:"sources"`
	Subscribers []Subscriber `yaml:"subscribers"`
	// Named is true when the file names a source, so that nothing of the learning platform is assumed.
	Named bool `yaml:"-"`
}

// SplitTable takes schema.table apart. A name that has a dot in it stands in double quotes; the others may. Letters are
// kept as they are: the name is the one that the catalogue has, and no statement.
func SplitTable(text string) (schema, table string, ok bool) {
	next := func(rest string) (name, left string, ok bool) {
		if quoted, is := strings.CutPrefix(rest, `"`); is {
			name, left, ok = strings.Cut(quoted, `"`)
			return name, left, ok && isIdentifier(name)
		}
		name, _, _ = strings.Cut(rest, ".")
		return name, rest[len(name):], isIdentifier(name)
	}
	schema, rest, ok := next(text)
	rest, dot := strings.CutPrefix(rest, ".")
	if !ok || !dot {
		return "", "", false
	}
	table, rest, ok = next(rest)
	return schema, table, ok && rest == ""
}

// Source is where events come from: an outbox table, or logical messages with a prefix.
type Source struct {
	// Name is the source's identity in tables, metrics and logs.
	Name string `yaml:"name"`
	// Table is "schema.table" as SplitTable reads it, "" for a source of messages.
	Table string `yaml:"table,omitempty"`
	// Messages is the prefix of pg_logical_emit_message, "" for a table.
	Messages string `yaml:"messages,omitempty"`
	// Columns maps what an event consists of (columnRoles) to a column, where the name does not tell; the order of
	// rows to several.
	Columns map[string]Columns `yaml:"columns,omitempty"`
	// Headers puts further columns into the headers of an event, by the name of the header.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Mark is "auto" (set published_at where there is such a column) or "off".
	Mark string `yaml:"mark,omitempty"`
	// Repair is what a lost slot does to a source that is not marked, so that no one knows which of its rows
	// were delivered: "stop" and ask a person, or send "all" again.
	Repair string `yaml:"repair,omitempty"`
	// Rows is "ours" when only walpost deletes rows, "deleted" when the service deletes each row in the transaction
	// that inserts it, else "shared".
	Rows string `yaml:"rows,omitempty"`
	// Retention is how long a published row is kept before walpost deletes it; 0 is for ever.
	Retention Retention `yaml:"retention"`
	// Schema is the path of a JSON Schema that payloads have to fit, "" for none; in the file it may be relative to that.
	Schema string `yaml:"schema,omitempty"`
	// TimeZone is the zone that the values of a time column without one are in, by its IANA name; "" is UTC.
	TimeZone string `yaml:"time_zone,omitempty"`
}

// Location is TimeZone, which check has looked at.
func (s Source) Location() *time.Location {
	location, err := time.LoadLocation(s.TimeZone)
	if err != nil {
		return time.UTC
	}
	return location
}

// Subscriber is who gets events, and how patiently.
type Subscriber struct {
	// Name is the subscriber's identity in tables, metrics and logs; it does not change over time.
	Name string `yaml:"name"`
	// Kind says what the subscriber is; by default the name says it.
	Kind string `yaml:"kind,omitempty"`
	// Sources are the names of the sources it listens to; none means all.
	Sources []string `yaml:"sources,omitempty"`
	// Events are patterns of event types, in which * is any run of characters; none means all.
	Events []string `yaml:"events,omitempty"`

	// Options are those of its kind; nil where that has none.
	Options Options `yaml:"-"`

	// Ordering is "key", "total" or "none".
	Ordering string `yaml:"ordering"`
	// Concurrency is how many keys are worked on at the same time.
	Concurrency Count `yaml:"concurrency"`
	// Batch is how many events one call takes at most; 0 leaves it to the kind.
	Batch Count `yaml:"batch"`
	// Timeout is the deadline of one call.
	Timeout Duration `yaml:"timeout"`
	Retry   Retry    `yaml:"retry"`
	// MaxAttempts is how often an event is tried while others succeed, before it becomes a dead letter.
	MaxAttempts Count `yaml:"max_attempts"`
	// StallAfter is how long an event may stand still before it is recorded as debt.
	StallAfter Duration `yaml:"stall_after"`
	// Standstill is how long a full share of the window may stand before the subscriber falls into debt.
	Standstill Duration `yaml:"standstill"`
	// InFlight is how many events may be unreported, where the kind is a Pipeline; 0 for all others.
	InFlight Count `yaml:"in_flight,omitempty"`
	// AfterDeadLetter is "continue" or "block_key".
	AfterDeadLetter string `yaml:"after_dead_letter"`
	// GiveUpAfter is how long an event may fail, outage or not, before it becomes a dead letter; 0 is for
	// ever.
	GiveUpAfter Duration `yaml:"give_up_after,omitempty"`
	// RenamedFrom is the name that the subscriber had before: what is recorded under it is carried over.
	RenamedFrom string `yaml:"renamed_from,omitempty"`
	// From is where a subscriber that is new to the slot begins: "now", or "beginning" for all rows that
	// the tables still have.
	From string `yaml:"from"`
}

// Retry bounds the wait between attempts.
type Retry struct {
	Initial Duration `yaml:"initial"`
	Max     Duration `yaml:"max"`
}

// Count is a number of things. It is an int that the file cannot write as 1.5.
type Count int

// Columns is one column or a list of them in the file.
type Columns []string

// One is the column where there is one.
func (c Columns) One() string { return strings.Join(c, ", ") }

// Secrets is one secret or a list of them in the file.
type Secrets []Secret

// columnRoles are the parts of an event that Source.Columns can name a column for.
var columnRoles = []string{
	"id", "type", "version", "aggregate_type", "aggregate_id", "key", "topic", "revision",
	"payload", "headers", "time", "order", "published",
}

// LessonKinds are the subscribers of the learning platform, which run when no file names a source.
var LessonKinds = []string{"achievements", "analytics", "notifications", "recommendations"}

// Lessons is the flow of the learning platform: its own outbox and its four subscribers.
func Lessons() Flow {
	flow := Flow{Sources: []Source{{
		Name: "lessons", Table: "public.outbox", Mark: "auto", Repair: "stop", Rows: "ours",
		Retention: Retention(7 * 24 * time.Hour),
	}}}
	for _, kind := range LessonKinds {
		subscriber := defaultSubscriber()
		subscriber.Name, subscriber.Kind = kind, kind
		flow.Subscribers = append(flow.Subscribers, subscriber)
	}
	return flow
}

// defaultSource is what a source of the file is where it says nothing: other programs may delete from
// its table, and walpost never does.
func defaultSource() Source { return Source{Mark: "auto", Repair: "stop", Rows: "shared"} }

// SourceOf is the source that a table is where nothing is configured for it. table is one that SplitTable takes.
func SourceOf(table string) Source {
	source := defaultSource()
	source.Table = table
	_, name, _ := SplitTable(table)
	source.Name = strings.Map(func(r rune) rune {
		if r = unicode.ToLower(r); strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789_-", r) {
			return r
		}
		return '_'
	}, name)
	return source
}

func defaultSubscriber() Subscriber {
	return Subscriber{
		Ordering: "key", Concurrency: 8, Timeout: Duration(10 * time.Second),
		Retry:       Retry{Initial: Duration(200 * time.Millisecond), Max: Duration(30 * time.Second)},
		MaxAttempts: 12, StallAfter: Duration(time.Minute), Standstill: Duration(time.Second), AfterDeadLetter: "continue", From: "now",
	}
}

// Filter is what the subscriber is configured to get.
func (s Subscriber) Filter() event.Filter { return event.Filter{Sources: s.Sources, Events: s.Events} }

// Takes reports whether the subscriber is configured to get events of this source and type.
func (s Subscriber) Takes(source, eventType string) bool { return s.Filter().Takes(source, eventType) }

// UnmarshalYAML fills in the defaults before the file speaks.
func (s *Source) UnmarshalYAML(_ context.Context, unmarshal func(any) error) error {
	type plain Source
	*s = defaultSource()
	s.Repair = ""
	if err := unmarshal((*plain)(s)); err != nil {
		return err
	}
	if s.Repair == "" {
		s.Repair = defaultSource().Repair
		if s.Rows == "deleted" { // what is still there was never read
			s.Repair = "all"
		}
	}
	return nil
}

// UnmarshalYAML takes a column or a list of columns.
func (c *Columns) UnmarshalYAML(_ context.Context, unmarshal func(any) error) error {
	var one string
	if unmarshal(&one) == nil {
		*c = Columns{one}
		return nil
	}
	return unmarshal((*[]string)(c))
}

// MarshalYAML writes one column as it would be written by hand.
func (c Columns) MarshalYAML() (any, error) {
	if len(c) == 1 {
		return c[0], nil
	}
	return []string(c), nil
}

// UnmarshalYAML takes a secret or a list of secrets.
func (s *Secrets) UnmarshalYAML(_ context.Context, unmarshal func(any) error) error {
	var one Secret
	if unmarshal(&one) == nil {
		*s = Secrets{one}
		return nil
	}
	return unmarshal((*[]Secret)(s))
}

// UnmarshalYAML notes a bad number among the problems of the file, so that reading goes on.
func (c *Count) UnmarshalYAML(ctx context.Context, node ast.Node) error {
	parseNode(ctx, node, c, func(text string) (Count, error) {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number", text)
		}
		return Count(n), nil
	})
	return nil
}

// UnmarshalYAML notes a bad duration among the problems of the file, so that reading goes on.
func (d *Duration) UnmarshalYAML(ctx context.Context, node ast.Node) error {
	parseNode(ctx, node, d, ParseDuration)
	return nil
}

// UnmarshalYAML notes a bad size among the problems of the file, so that reading goes on.
func (s *Size) UnmarshalYAML(ctx context.Context, node ast.Node) error {
	parseNode(ctx, node, s, ParseSize)
	return nil
}

// UnmarshalYAML notes a bad retention among the problems of the file, so that reading goes on.
func (r *Retention) UnmarshalYAML(ctx context.Context, node ast.Node) error {
	parseNode(ctx, node, r, ParseRetention)
	return nil
}

// parseNode leaves the default in place when the text is bad, so that nothing is reported twice.
func parseNode[T any](ctx context.Context, node ast.Node, target *T, parse func(string) (T, error)) {
	text, _ := scalar(node)
	value, err := parse(text)
	if err != nil {
		key := strings.TrimPrefix(node.GetPath(), "$.")
		readingOf(ctx).add(node.GetToken().Position.Line, "%s: %w", key, err)
		return
	}
	*target = value
}
