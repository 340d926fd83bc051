package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/backendstart/walpost/internal/event"
)

const (
	// recentRows is how many rows of a table are looked at for their types.
	recentRows = 10_000
	// namedTypes is how many types a finding names.
	namedTypes = 10
)

// checkEventTypes compares the types of the last rows with what the subscribers ask for. A slip of the pen in a pattern, or
// a type that was forgotten, is no failure for the relay: the rows are marked, and no one gets them.
func checkEventTypes(ctx context.Context, c *checker) ([]Finding, error) {
	tables, found, err := c.readable(ctx)
	if err != nil {
		return nil, err
	}
	came := make(map[string][]string) // by source
	for _, table := range tables {
		types, err := table.RecentTypes(ctx, c.tx, recentRows)
		if err != nil {
			return nil, err
		}
		source := table.Source.Name
		came[source] = types
		untaken := slices.DeleteFunc(slices.Clone(types), func(eventType string) bool {
			return slices.ContainsFunc(c.Subscribers, func(s Subscriber) bool { return s.Filter.Takes(source, eventType) })
		})
		if len(untaken) > 0 {
			found = append(found, warning(fmt.Sprintf("no subscriber takes events of type %s, which %s has", listed(untaken), relation(table)),
				"such a row is marked like any other, and no one gets it",
				&Fix{Do: "name the type in events: of a subscriber; if no one is to have it, this warning may stay"}).about(source))
		}
	}
	for _, s := range c.Subscribers {
		var types []string
		for source, of := range came {
			if (event.Filter{Sources: s.Filter.Sources}).Takes(source, "") {
				types = append(types, of...)
			}
		}
		if len(types) == 0 {
			continue // nothing to compare with
		}
		slices.Sort(types)
		for _, pattern := range s.Filter.Events {
			if !slices.ContainsFunc(types, func(eventType string) bool { return event.Matches(pattern, eventType) }) {
				found = append(found, warning(fmt.Sprintf("no row of late matches %q of its events:", pattern),
					"the subscriber gets nothing by that pattern",
					&Fix{Do: "correct the pattern; the rows have " + listed(slices.Compact(types)) + ". If its events are still to come, this warning may stay"}).about(s.Name))
			}
		}
	}
	return found, nil
}

// listed names the first of some types.
func listed(types []string) string {
	names := make([]string, 0, namedTypes)
	for _, t := range types[:min(len(types), namedTypes)] {
		names = append(names, fmt.Sprintf("%.100q", t))
	}
	text := strings.Join(names, ", ")
	if more := len(types) - namedTypes; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
