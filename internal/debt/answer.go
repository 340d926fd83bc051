package debt

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/lane"
)

// Outcome is what came of a change to deliveries.
type Outcome struct {
	// Deliveries is how many were changed.
	Deliveries int
	// Invalid and Gone are how many of those that fit a Redrive were left as they are, because nothing can
	// make their event a valid one, or because their subscriber is in no configuration.
	Invalid, Gone int64
	// Answers tell of each event that the filter names what became of it: one for each delivery, or one
	// that it is owed to nobody.
	Answers []Answer
}

// Answer is what became of an event that somebody named.
type Answer struct {
	Event string
	// Subscriber, Source and Occurrence are "" where the event is owed to nobody.
	Subscriber, Source, Occurrence string
	Fate                           Fate
	// Invalid is why the event is no valid one, where that is its Fate.
	Invalid string
}

// Fate is what became of a delivery.
type Fate string

// The fates. What is not Redriven or Discarded was left as it is.
const (
	Redriven  Fate = "redriven"
	Discarded Fate = "discarded"
	Waiting   Fate = "waiting"  // is sent by itself, and may be in its handler at this moment
	LeftDead  Fate = "dead"     // does not fit the rest of the filter, or came after its limit
	Settled   Fate = "paid"     // was delivered or discarded already
	Unsound   Fate = "invalid"  // a copy of an event that is no valid one
	Homeless  Fate = "gone"     // its subscriber is in no configuration
	NotOwed   Fate = "not owed" // nothing is recorded of it
)

// String says it in a sentence for people.
func (a Answer) String() string {
	switch a.Fate {
	case Waiting:
		return "waits already: it is sent by itself, and may be in its handler now"
	case LeftDead:
		return "left dead: the other filters or the limit do not choose it"
	case Settled:
		return "was delivered or discarded already"
	case Unsound:
		return "cannot be sent: " + a.Invalid + "; insert the event anew and discard this one"
	case Homeless:
		return "nobody would send it: its subscriber has left the configuration; put it back and start the relay, or discard it"
	case NotOwed:
		return "is owed to nobody: it was delivered or discarded, or it does not exist"
	case Redriven, Discarded:
	}
	return string(a.Fate)
}

// answers looks up what became of the events that a filter names; changed were changed by this call,
// whatever has happened to them since.
func (s *Store) answers(ctx context.Context, c change, changed []spot) ([]Answer, error) {
	if len(c.filter.Events) == 0 {
		return nil, nil
	}
	found := make(map[string][]Answer)
	done := make(map[spot]bool)
	for _, at := range changed {
		at.position = spot{}.position
		done[at] = true
		id := at.event.ID
		found[id] = append(found[id], Answer{Event: id, Occurrence: at.event.Occurrence, Subscriber: at.subscriber, Source: at.event.Source, Fate: c.fate})
	}
	sql := `SELECT o.event_id, o.source, o.occurrence, o.subscriber, o.state, o.invalid, ` + unsound + `, ` + sendable + `
		FROM walpost.owed o WHERE o.slot = $1 AND o.event_id = ANY ($2)
		AND ($3 IN ('', o.subscriber)) AND ($4 IN ('', o.source)) AND ($5 IN ('', o.occurrence))`
	rows, err := s.pool.Query(ctx, sql, s.slot, c.filter.Events, c.filter.Subscriber, c.filter.Source, c.filter.Occurrence)
	if err != nil {
		return nil, fmt.Errorf("look up what became of %d events: %w", len(c.filter.Events), err)
	}
	var (
		at                spot
		state             lane.State
		invalid           string
		isUnsound, isSent bool
	)
	_, err = pgx.ForEachRow(rows, []any{&at.event.ID, &at.event.Source, &at.event.Occurrence, &at.subscriber, &state, &invalid, &isUnsound, &isSent}, func() error {
		if done[at] {
			return nil
		}
		answer := Answer{Event: at.event.ID, Occurrence: at.event.Occurrence, Subscriber: at.subscriber, Source: at.event.Source, Fate: LeftDead}
		switch {
		case state == lane.StateWaiting:
			answer.Fate = Waiting
		case state == lane.StatePaid:
			answer.Fate = Settled
		case c.fate == Redriven && isUnsound:
			answer.Fate, answer.Invalid = Unsound, invalid
		case c.fate == Redriven && !isSent:
			answer.Fate = Homeless
		}
		found[at.event.ID] = append(found[at.event.ID], answer)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up what became of %d events: %w", len(c.filter.Events), err)
	}
	var answers []Answer
	for _, id := range c.filter.Events {
		of := found[id]
		if of == nil {
			of = []Answer{{Event: id, Fate: NotOwed}}
		}
		slices.SortFunc(of, func(a, b Answer) int {
			return cmp.Or(cmp.Compare(a.Subscriber, b.Subscriber), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Occurrence, b.Occurrence))
		})
		answers = append(answers, of...)
	}
	return answers, nil
}
