package debt

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/printable"
)

// maxNoted is how many event ids an audit row lists.
const maxNoted = 100

// Refused is what is said to someone who asks for what cannot be meant; the same request never works.
type Refused string

// Error implements error.
func (r Refused) Error() string { return string(r) }

// Filter chooses deliveries. An empty field chooses all; without a state it is what is waiting or dead.
type Filter struct {
	Subscriber   string
	Source       string
	State        lane.State
	Type         string
	Key          string
	Events       []string  // any of these ids
	Occurrence   string    // where an id came again: that one
	Since, Until time.Time // when the delivery was recorded as owed; Until is exclusive
	Error        string    // a part of the last error
	Limit        int       // rows; 0 is all
}

// where returns the condition on a table named o, and its arguments; $1 is the slot.
func (f Filter) where(slot string) (string, []any) {
	args := []any{slot}
	var sql strings.Builder
	sql.WriteString("o.slot = $1")
	add := func(given bool, condition string, value any) {
		if given {
			args = append(args, value)
			sql.WriteString(" AND " + condition + strconv.Itoa(len(args)))
		}
	}
	// A state that is known is written out, because each has an index of its own.
	switch f.State {
	case "":
		sql.WriteString(" AND o.state IN ('waiting', 'dead')")
	case lane.StateWaiting, lane.StateDead, lane.StatePaid:
		sql.WriteString(" AND o.state = '" + string(f.State) + "'")
	default:
		add(true, "o.state = $", f.State)
	}
	add(f.Subscriber != "", "o.subscriber = $", f.Subscriber)
	add(f.Source != "", "o.source = $", f.Source)
	add(f.Type != "", "o.event_type = $", f.Type)
	add(f.Key != "", "o.key = $", f.Key)
	if len(f.Events) > 0 {
		add(true, "o.event_id = ANY ($", f.Events)
		sql.WriteString(")")
	}
	add(f.Occurrence != "", "o.occurrence = $", f.Occurrence)
	add(!f.Since.IsZero(), "o.recorded_at >= $", f.Since)
	add(!f.Until.IsZero(), "o.recorded_at < $", f.Until)
	if f.Error != "" {
		add(true, "0 < strpos(o.error, $", f.Error)
		sql.WriteString(")")
	}
	return sql.String(), args
}

// facts is the filter as it is written into the audit.
func (f Filter) facts() map[string]any {
	facts := make(map[string]any)
	for name, value := range map[string]string{
		"subscriber": f.Subscriber, "source": f.Source, "state": string(f.State), "type": f.Type,
		"key": f.Key, "error": f.Error, "occurrence": f.Occurrence,
	} {
		if value != "" {
			facts[name] = value
		}
	}
	if len(f.Events) > 0 {
		facts["events"] = f.Events[:min(len(f.Events), maxNoted)]
	}
	if !f.Since.IsZero() {
		facts["since"] = f.Since.UTC()
	}
	if !f.Until.IsZero() {
		facts["until"] = f.Until.UTC()
	}
	return facts
}

// Narrow returns an error unless the filter is one by which people may change deliveries.
func (f Filter) Narrow() error {
	facts := f.facts()
	delete(facts, "state")
	switch {
	case len(facts) == 0:
		return Refused("the filter chooses everything: name a subscriber, a source, a type, a key, an event, a time or an error")
	case len(f.Events) > maxRows:
		return Refused(fmt.Sprintf("%s too many at once: name at most %d", printable.Count(len(f.Events), "event", "is"), maxRows))
	case f.State != "" && f.State != lane.StateWaiting && f.State != lane.StateDead:
		return Refused(fmt.Sprintf("state %q: it must be %s or %s; what is paid was delivered or discarded already", f.State, lane.StateWaiting, lane.StateDead))
	}
	return nil
}
