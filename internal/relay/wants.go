package relay

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/backendstart/walpost/internal/dispatch"
	"github.com/backendstart/walpost/internal/event"
)

// wants is what a subscriber wants, by the place in the WAL where events commit: a filter changes at a start of the
// relay, and what committed before that start is judged by the filters from before as well. The parts are in the
// order of the WAL. The last part has no end while the subscriber is configured; without such a part the subscriber
// has left, and wants nothing that commits after the other parts.
//
// It is recorded with the subscriber's position, so that a process that was killed leaves behind what it would have
// delivered to which subscribers, whatever the configuration of the next one says.
type wants []part

// part is a stretch of the WAL: events that any of the filters takes are wanted.
type part struct {
	Until *place         `json:"until,omitempty"` // exclusive; nil has no end
	Any   []event.Filter `json:"any"`
}

// place is where a transaction commits.
type place struct {
	Epoch int32     `json:"epoch"`
	LSN   event.LSN `json:"lsn"`
}

// last is the last position before the place: no commit has it, because those are 8-aligned.
func (p place) last() event.Position {
	return event.Position{Epoch: p.Epoch, Commit: p.LSN - 1, Ordinal: math.MaxInt64}
}

// from is what a subscriber wants that has only ever had one filter.
func from(filter event.Filter) wants { return wants{{Any: []event.Filter{filter}}} }

// parseWants reads what encode wrote. What cannot be read counts as wanting everything: more may be owed then, but
// nothing is lost.
func parseWants(text []byte) (w wants, err error) {
	if err := json.Unmarshal(text, &w); err != nil {
		return from(event.Filter{}), err
	}
	return w, nil
}

// Wanted tells whether a subscriber of which this is recorded as store.Subscriber.Wants takes events of a source and type,
// by any filter that it has had since its position. Of one that has left, or of which nothing can be read, no one knows.
func Wanted(recorded, source, eventType string) bool {
	w, err := parseWants([]byte(recorded))
	return err != nil || len(w) == 0 || w.ever(source, eventType)
}

func (w wants) encode() string {
	if len(w) == 0 {
		return "[]"
	}
	text, err := json.Marshal(w)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// beyond leaves out the parts that end at or before a position.
func (w wants) beyond(position event.Position) wants {
	return slices.DeleteFunc(slices.Clone(w), func(p part) bool {
		return p.Until != nil && p.Until.last().Compare(position) <= 0
	})
}

// within moves the ends that lie beyond the end of the WAL back to it: no part can have ended there.
func (w wants) within(end place) wants {
	bounded := slices.Clone(w)
	for i, p := range bounded {
		if p.Until != nil && p.Until.last().Compare(end.last()) > 0 {
			bounded[i].Until = &end
		}
	}
	return bounded
}

// open reports whether the last part has no end.
func (w wants) open() bool { return len(w) > 0 && w[len(w)-1].Until == nil }

// closed ends what is wanted at a place.
func (w wants) closed(at place) wants {
	ended := slices.Clone(w)
	if w.open() {
		ended[len(w)-1].Until = &at
	}
	return ended
}

// changed is what is wanted when the configuration has another filter from a place on. What committed before is for
// both filters: a relay has routed it by the old one, perhaps, or not at all yet. If nothing was wanted last, the
// subscriber has left and is back, and what committed meanwhile is not for it.
func (w wants) changed(filter event.Filter, at place) wants {
	next := part{Any: []event.Filter{filter}}
	switch {
	case len(w) == 0:
		return wants{next}
	case !w.open():
		return append(slices.Clone(w), part{Until: &at}, next)
	}
	last := w[len(w)-1]
	if len(last.Any) == 1 && last.Any[0].Equal(filter) {
		return w
	}
	both := slices.Clone(last.Any)
	if !slices.ContainsFunc(both, filter.Equal) {
		both = append(both, filter)
	}
	return append(slices.Clone(w[:len(w)-1]), part{Until: &at, Any: both}, next)
}

// ever reports whether any part takes events of a source and type. Rows of a table have no place in the WAL.
func (w wants) ever(source, eventType string) bool {
	return slices.ContainsFunc(w, func(p part) bool { return p.takes(source, eventType) })
}

func (p part) takes(source, eventType string) bool {
	return slices.ContainsFunc(p.Any, func(f event.Filter) bool { return f.Takes(source, eventType) })
}

// earlier is what a route gets of transactions that commit before the last part begins, in this epoch, of types that
// the subscriber understands.
func (w wants) earlier(epoch int32, understands func(eventType string) bool) []dispatch.Earlier {
	var parts []dispatch.Earlier
	for _, p := range w {
		if p.Until != nil && p.Until.Epoch == epoch {
			parts = append(parts, dispatch.Earlier{Until: p.Until.LSN, Wants: func(source, eventType string) bool {
				return p.takes(source, eventType) && understands(eventType)
			}})
		}
	}
	return parts
}

// end is the last position that was wanted by a subscriber that has left.
func (w wants) end(epoch int32) event.Position {
	position := event.Position{Epoch: epoch}
	for _, p := range w {
		if p.Until != nil && p.Until.last().Compare(position) > 0 {
			position = p.Until.last()
		}
	}
	return position
}

func nothing(string, string) bool { return false }

func anything(string) bool { return true }

// renamed is what is wanted, with other names of sources.
func (w wants) renamed(names map[string]string) wants {
	next := make(wants, len(w))
	for i, p := range w {
		next[i] = part{Until: p.Until, Any: make([]event.Filter, len(p.Any))}
		for j, filter := range p.Any {
			filter.Sources = append([]string{}, filter.Sources...)
			for k, source := range filter.Sources {
				if name := names[source]; name != "" {
					filter.Sources[k] = name
				}
			}
			next[i].Any[j] = filter
		}
	}
	return next
}
