package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/backendstart/walpost/internal/eventschema"
)

// Error is everything that is wrong with the options, so that one reading fixes it all. It is the
// caller's mistake: a program exits with status 2.
type Error struct {
	Problems []error
}

func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].Error()
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d problems in the configuration:", len(e.Problems))
	for _, problem := range e.Problems {
		fmt.Fprintf(&text, "\n  - %s", strings.ReplaceAll(problem.Error(), "\n", "\n    "))
	}
	return text.String()
}

// Unwrap gives errors.Is and errors.As the problems.
func (e *Error) Unwrap() []error { return e.Problems }

// Invalid makes an *Error of one or several joined errors; nil stays nil.
func Invalid(errs ...error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	var all []error
	for _, err := range errs {
		var several *Error
		switch {
		case err == nil:
		case errors.As(err, &several):
			all = append(all, several.Problems...)
		default:
			all = append(all, err)
		}
	}
	return &Error{Problems: all}
}

// labelName is what a name may be that stands in metrics, tables and addresses.
var labelName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// checker looks at what the file says; where finds the line of a path for the message.
type checker struct {
	problems *problems
	where    func(path string) int
	kinds    Kinds
	delivers bool   // the command uses what only delivery needs
	at       string // path of the source or subscriber that is being looked at
	label    string // the same for people
}

// fail notes a problem with one key of the source or subscriber.
func (c *checker) fail(key, format string, args ...any) {
	c.problems.add(c.where(c.at+"."+key), "%s: %s: "+format, append([]any{c.label, key}, args...)...)
}

func (c *checker) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.fail(key, "%q is none of %s", value, strings.Join(allowed, ", "))
	}
}

// enter starts with the i-th of a list and checks its name, which is new to seen.
func (c *checker) enter(list string, i int, name string, seen map[string]bool) {
	c.at = fmt.Sprintf("$.%s[%d]", list, i)
	c.label = fmt.Sprintf("%s %q", strings.TrimSuffix(list, "s"), name)
	switch {
	case name == "":
		c.label = fmt.Sprintf("%s[%d]", list, i)
		c.fail("name", "is missing")
	case !labelName.MatchString(name):
		c.fail("name", "use 1 to 64 of a-z, 0-9, _ and -")
	case seen[name]:
		c.fail("name", "stands there twice")
	}
	seen[name] = true
}

// flow checks sources and subscribers together, as one refers to the other.
func (c *checker) flow(flow Flow) {
	sources, tables := map[string]bool{}, map[string]bool{}
	for i, source := range flow.Sources {
		c.enter("sources", i, source.Name, sources)
		c.source(source, tables)
	}
	if flow.Named && len(flow.Subscribers) == 0 {
		c.problems.add(0, "subscribers: name at least one, no one would get the events")
	}
	subscribers := map[string]bool{}
	for i, subscriber := range flow.Subscribers {
		c.enter("subscribers", i, subscriber.Name, subscribers)
		c.subscriber(subscriber, sources)
		c.renamed(subscriber, flow)
	}
}

func (c *checker) source(s Source, tables map[string]bool) {
	switch {
	case (s.Table == "") == (s.Messages == ""):
		c.fail("table", "give either table: schema.table, or messages: prefix")
	case s.Messages != "":
		c.messages(s)
	default:
		switch schema, _, ok := SplitTable(s.Table); {
		case !ok:
			c.fail("table", "%q is not schema.table, as in public.outbox; a name with a dot stands in double quotes", s.Table)
		case schema == "walpost":
			c.fail("table", "%q is one of walpost's own tables", s.Table)
		}
	}
	place := s.Table + "\x00" + s.Messages
	if schema, table, ok := SplitTable(s.Table); ok {
		place = schema + "\x00" + table
	}
	if tables[place] {
		c.fail("table", "%q already belongs to another source", s.Table+s.Messages)
	}
	tables[place] = true
	c.oneOf("mark", s.Mark, "auto", "off")
	c.oneOf("repair", s.Repair, "stop", "all")
	c.oneOf("rows", s.Rows, "ours", "shared", "deleted")
	if s.Rows == "deleted" && s.Retention != 0 {
		c.fail("retention", "with rows: deleted the service deletes the rows, and walpost none: leave retention out")
	}
	if _, err := time.LoadLocation(s.TimeZone); err != nil || s.TimeZone == "Local" {
		c.fail("time_zone", "%q is no time zone: write its name as in the IANA database, Asia/Tokyo", s.TimeZone)
	}
	if s.Schema != "" && c.delivers {
		if _, err := eventschema.Read(s.Schema); err != nil {
			c.fail("schema", "%w", err)
		}
	}
	for role, columns := range s.Columns {
		if !slices.Contains(columnRoles, role) {
			c.fail("columns", "%q is none of %s", role, strings.Join(columnRoles, ", "))
		}
		if len(columns) != 1 && role != "order" {
			c.fail("columns", "%s: one column is expected; only order takes a list", role)
		}
		for _, column := range columns {
			if name, _, _ := strings.Cut(column, "."); !isIdentifier(column) && !isIdentifier(name) || len(column) > maxPath || strings.ContainsFunc(column, unicode.IsControl) {
				c.fail("columns", "%s: %q is not a column", role, column)
			}
		}
	}
	for name, column := range s.Headers {
		if !headerName.MatchString(name) {
			c.fail("headers", "%q is no name of a header: use 1 to 64 of a-z, A-Z, 0-9, _, . and -", name)
		}
		if !isIdentifier(column) {
			c.fail("headers", "%s: %q is not a column", name, column)
		}
	}
}

// maxPath is how long a column with the path below it may be: a path may be longer than a name.
const maxPath = 256

// headerName is what the header of an event may be called that comes from a column.
var headerName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// messages refuses what only a table can have.
func (c *checker) messages(s Source) {
	if len(s.Columns) > 0 || len(s.Headers) > 0 || s.Rows != "shared" || s.Retention != 0 {
		c.fail("messages", "logical messages leave no rows: columns, headers, rows and retention have no meaning here")
	}
}

func (c *checker) subscriber(s Subscriber, sources map[string]bool) {
	switch kind, known := c.kinds[s.Kind]; {
	case s.Name != "" && !known:
		c.fail("kind", "%q is not known here: there are %s", s.Kind, strings.Join(c.kinds.names(), ", "))
	case kind.OwnName && s.Name != s.Kind:
		c.fail("name", "a subscriber of kind %s can only be named %s: its rows carry that name", s.Kind, s.Kind)
	}
	if s.Events != nil && len(s.Events) == 0 {
		c.fail("events", "is an empty list, which would be all events: leave the key out for all, or pause the subscriber")
	}
	if s.Sources != nil && len(s.Sources) == 0 {
		c.fail("sources", "is an empty list, which would be all sources: leave the key out for all")
	}
	for _, source := range s.Sources {
		if !sources[source] {
			c.fail("sources", "there is no source %q", source)
		}
	}
	for _, pattern := range s.Events {
		if !isPattern(pattern) {
			c.fail("events", "%q is not a pattern of event types: only * is special, as in lesson.*", pattern)
		}
	}
	if s.Options != nil && c.delivers {
		s.Options.Check(s, func(key string, err error) { c.fail(key, "%w", err) })
	}
	c.oneOf("ordering", s.Ordering, "key", "total", "none")
	c.oneOf("after_dead_letter", s.AfterDeadLetter, "continue", "block_key")
	c.oneOf("from", s.From, "now", "beginning")
	if s.GiveUpAfter < 0 {
		c.fail("give_up_after", "must not be below 0")
	}
	for _, number := range []struct {
		key  string
		fine bool
	}{
		{"concurrency", s.Concurrency > 0}, {"max_attempts", s.MaxAttempts > 0}, {"timeout", s.Timeout > 0},
		{"stall_after", s.StallAfter > 0}, {"standstill", s.Standstill > 0}, {"retry.initial", s.Retry.Initial > 0},
	} {
		if !number.fine {
			c.fail(number.key, "must be above 0")
		}
	}
	if s.Retry.Max < s.Retry.Initial {
		c.fail("retry.max", "%s is less than retry.initial, %s", s.Retry.Max, s.Retry.Initial)
	}
}

// renamed refuses a former name that cannot be one: nothing would say whose position and debt it is.
func (c *checker) renamed(s Subscriber, flow Flow) {
	if s.RenamedFrom == "" {
		return
	}
	if !labelName.MatchString(s.RenamedFrom) {
		c.fail("renamed_from", "%q is no name of a subscriber", s.RenamedFrom)
	}
	for _, other := range flow.Subscribers {
		switch {
		case other.Name == s.RenamedFrom:
			c.fail("renamed_from", "%q is configured itself: a name belongs to one subscriber", s.RenamedFrom)
		case other.Name != s.Name && other.RenamedFrom == s.RenamedFrom:
			c.fail("renamed_from", "%q is the former name of %q, too", s.RenamedFrom, other.Name)
		}
	}
}

func isPattern(text string) bool {
	return text != "" && len(text) <= 256 && utf8.ValidString(text) && !strings.ContainsAny(text, `?[]{}\`) &&
		!strings.ContainsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
}
