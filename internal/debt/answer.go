package debt

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/store"
)

// Outcome is what came of a change to deliveries.
type Outcome struct {
	// Deliveries is how many were changed.
	Deliveries int
	// Invalid and Gone are how many of those that fit a Redrive were left as they are, because nothing can
	// make their event a valid one, or because their subscriber is in no configuration.
	Invalid, Gone int64
	// Answers tell of each event that the filter names what became of it: one for each delivery, or one
	// that it is owed to no one.
	Answers []Answer
}

// Answer is what became of an event that someone named.
type Answer struct {
	Event string
	// Subscriber, Source and Occurrence are "" where the event is owed to no one.
	Subscriber, Source, Occurrence string
	Result                         Result
	// Invalid is why the event is no valid one, where that is its Result.
	Invalid string
}

// Result is what became of a delivery.
type Result string

// The results. What is not Redriven or Discarded was left as it is.
const (
	Redriven  Result = "redriven"
	Discarded Result = "discarded"
	Waiting   Result = "waiting"  // is sent by itself, and may be in its handler at this moment
	LeftDead  Result = "dead"     // does not fit the rest of the filter, or came after its limit
	Done      Result = "paid"     // was delivered or discarded already
	Invalid   Result = "invalid"  // a copy of an event that is no valid one
	Orphaned  Result = "gone"     // its subscriber is in no configuration
	NotOwed   Result = "not owed" // nothing is recorded of it
)

// String says it in a sentence for people.
func (a Answer) String() string {
	switch a.Result {
	case Waiting:
		return "waits already: it is sent by itself, and may be in its handler now"
	case LeftDead:
		return "left dead: the other filters or the limit do not choose it"
	case Done:
		return "was delivered or discarded already"
	case Invalid:
		return "cannot be sent: " + a.Invalid + "; insert the event again and discard this one"
	case Orphaned:
		return "no one would send it: its subscriber has left the configuration; put it back and start the relay, or discard it"
	case NotOwed:
		return "is owed to no one: it was delivered or discarded, or it does not exist"
	case Redriven, Discarded:
	}
	return string(a.Result)
}

// answers looks up what became of the events that a filter names; changed were changed by this call,
// whatever has happened to them since.
func (s *Store) answers(ctx context.Context, c change, changed []deliveryKey) ([]Answer, error) {
	if len(c.filter.Events) == 0 {
		return nil, nil
	}
	found := make(map[string][]Answer)
	done := make(map[deliveryKey]bool)
	for _, at := range changed {
		at.position = deliveryKey{}.position
		done[at] = true
		id := at.event.ID
		found[id] = append(found[id], Answer{Event: id, Occurrence: at.event.Occurrence, Subscriber: at.subscriber, Source: at.event.Source, Result: c.result})
	}
	sql := `SELECT o.event_id, o.source, o.occurrence, o.subscriber, o.state, o.invalid, ` + neverValid + `, ` + sendable + `
		FROM walpost.owed o WHERE o.slot = $1 AND o.event_id = ANY ($2)
		AND ($3 IN ('', o.subscriber)) AND ($4 IN ('', o.source)) AND ($5 IN ('', o.occurrence))`
	rows, err := s.pool.Query(ctx, sql, s.slot, c.filter.Events, c.filter.Subscriber, c.filter.Source, c.filter.Occurrence)
	if err != nil {
		return nil, fmt.Errorf("look up what became of %s: %w", printable.Count(len(c.filter.Events), "event"), err)
	}
	var (
		at                deliveryKey
		state             lane.State
		invalid           string
		isInvalid, isSent bool
	)
	_, err = pgx.ForEachRow(rows, []any{&at.event.ID, &at.event.Source, &at.event.Occurrence, &at.subscriber, &state, &invalid, &isInvalid, &isSent}, func() error {
		if done[at] {
			return nil
		}
		answer := Answer{Event: at.event.ID, Occurrence: at.event.Occurrence, Subscriber: at.subscriber, Source: at.event.Source, Result: LeftDead}
		switch {
		case state == lane.StateWaiting:
			answer.Result = Waiting
		case state == lane.StatePaid:
			answer.Result = Done
		case c.result == Redriven && isInvalid:
			answer.Result, answer.Invalid = Invalid, invalid
		case c.result == Redriven && !isSent:
			answer.Result = Orphaned
		}
		found[at.event.ID] = append(found[at.event.ID], answer)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up what became of %s: %w", printable.Count(len(c.filter.Events), "event"), err)
	}
	var answers []Answer
	for _, id := range c.filter.Events {
		of := found[id]
		if of == nil {
			of = []Answer{{Event: id, Result: NotOwed}}
		}
		slices.SortFunc(of, func(a, b Answer) int {
			return cmp.Or(cmp.Compare(a.Subscriber, b.Subscriber), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Occurrence, b.Occurrence))
		})
		answers = append(answers, of...)
	}
	return answers, nil
}

// change is what a person does to all deliveries that a filter chooses.
type change struct {
	action   string
	result   Result // of a delivery that is changed
	filter   Filter
	who, why string
}

// deliveryKey is the key of a row of walpost.owed.
type deliveryKey struct {
	subscriber string
	event      event.Identity
	position   event.Position // where it matters in which order they are changed
}

// neverValid is true of a delivery, named o, of an event that nothing can make a valid one.
const neverValid = `o.copied AND o.invalid <> ''`

// sendable is true of a delivery, named o, whose subscriber is in the configuration.
var sendable = store.ConfiguredSQL("o.slot", "o.subscriber")
