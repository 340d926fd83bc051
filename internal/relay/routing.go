package relay

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/backendstart/walpost/internal/event"
)

// maxTypes is how many types that no one takes, and how many that came, are remembered: types come from data.
const maxTypes = 100

// routing remembers what the subscribers' filters have to do with the types that came since the process started: a
// pattern with a slip of the pen, and a type that was forgotten, keep events from everyone without a failure.
type routing struct {
	log *slog.Logger

	mu      sync.Mutex
	came    []string            // types, the first ones; guarded by mu
	untaken []UntakenType       // guarded by mu
	idle    map[string][]string // by subscriber: patterns that have matched nothing; guarded by mu
	takes   map[string]func(source string) bool
	full    bool // said that there are more types than are remembered; guarded by mu
}

func newRouting(subscriptions []Subscription, log *slog.Logger) *routing {
	r := &routing{log: log, idle: make(map[string][]string), takes: make(map[string]func(string) bool)}
	for _, s := range subscriptions {
		name, sources := s.Subscriber.Name(), s.Filter.Sources
		r.idle[name] = slices.Clone(s.Filter.Events)
		r.takes[name] = func(source string) bool { return event.Filter{Sources: sources}.Takes(source, "") }
	}
	return r
}

// noteTakers is told of each type that comes, and of how many subscribers take it.
func (r *routing) noteTakers(source, eventType string, takers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.came, eventType) && len(r.came) < maxTypes {
		r.came = append(r.came, eventType)
	}
	for name, patterns := range r.idle {
		if r.takes[name](source) {
			r.idle[name] = slices.DeleteFunc(patterns, func(pattern string) bool { return event.Matches(pattern, eventType) })
		}
	}
	untaken := UntakenType{source, eventType}
	if takers > 0 || slices.Contains(r.untaken, untaken) {
		return
	}
	if len(r.untaken) == maxTypes {
		if !r.full {
			r.log.Warn("no subscriber takes events of further types; they are counted in walpost_undelivered_total and not named any more", "types", maxTypes)
		}
		r.full = true
		return
	}
	r.untaken = append(r.untaken, untaken)
	r.log.Warn("no subscriber takes events of this type: they count as published, and no one gets them; name the type in events: of a subscriber if that is not meant",
		"source", source, "type", eventType)
}

// state is what was noted: types that no one takes, and for each subscriber its patterns that have matched nothing. Before
// the first event there is nothing to be said of patterns.
func (r *routing) state() (untaken []UntakenType, idle map[string][]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	idle = make(map[string][]string)
	if len(r.came) > 0 {
		for name, patterns := range r.idle {
			idle[name] = slices.Clone(patterns)
		}
	}
	return slices.Clone(r.untaken), idle
}
