package admin

import (
	"context"
	"time"

	"github.com/backendstart/walpost/internal/debt"
)

// Redriven is what came of a redrive, as programs read it.
type Redriven struct {
	// Redriven is how many deliveries wait now.
	Redriven int `json:"redriven"`
	// Invalid and Gone are how many that fit were left dead: their event can never become a valid one, or
	// their subscriber is in no configuration.
	Invalid int64 `json:"invalid,omitempty"`
	Gone    int64 `json:"gone,omitempty"`
	// Events tell of each event that was named what became of it.
	Events []Answer `json:"events,omitempty"`
}

// WouldRedrive is what a redrive would do.
type WouldRedrive struct {
	WouldRedrive int64 `json:"would_redrive"`
	Invalid      int64 `json:"invalid,omitempty"`
	Gone         int64 `json:"gone,omitempty"`
}

// WouldRedriveOf adds up counts; with a limit above 0 no more than that would be redriven.
func WouldRedriveOf(counts []debt.Redrivable, limit int) WouldRedrive {
	var sum WouldRedrive
	for _, c := range counts {
		sum.WouldRedrive += c.Redrivable
		sum.Invalid += c.Invalid
		sum.Gone += c.Gone
	}
	if limit > 0 {
		sum.WouldRedrive = min(sum.WouldRedrive, int64(limit))
	}
	return sum
}

// Discarded is what came of a discard, as programs read it.
type Discarded struct {
	Discarded int      `json:"discarded"`
	Events    []Answer `json:"events,omitempty"`
}

// Answer is what became of an event that someone named: one for each delivery, or one without subscriber
// and source that it is owed to no one.
type Answer struct {
	Event      string      `json:"event"`
	Subscriber string      `json:"subscriber,omitempty"`
	Source     string      `json:"source,omitempty"`
	Occurrence string      `json:"occurrence,omitempty"`
	Result     debt.Result `json:"result"`
	// Detail says the result in words.
	Detail string `json:"detail"`
}

// Redrive makes dead deliveries wait again. After an error some may.
func (a *Service) Redrive(ctx context.Context, filter debt.Filter, who, why string) (Redriven, error) {
	outcome, err := a.debt().Redrive(ctx, filter, who, why)
	return Redriven{outcome.Deliveries, outcome.Invalid, outcome.Gone, answersOf(outcome)}, err
}

// Redrivable counts what Redrive would do, and returns when that was by the server's clock.
func (a *Service) Redrivable(ctx context.Context, filter debt.Filter) ([]debt.Redrivable, time.Time, error) {
	return a.debt().Redrivable(ctx, filter)
}

// Discard gives deliveries up for good. After an error some may be.
func (a *Service) Discard(ctx context.Context, filter debt.Filter, who, why string) (Discarded, error) {
	if err := filter.Narrow(); err != nil {
		return Discarded{}, err
	}
	store, err := a.debtWithTables(ctx)
	if err != nil {
		return Discarded{}, err
	}
	outcome, err := store.Discard(ctx, filter, who, why)
	return Discarded{outcome.Deliveries, answersOf(outcome)}, err
}

func answersOf(outcome debt.Outcome) []Answer {
	var answers []Answer
	for _, a := range outcome.Answers {
		answers = append(answers, Answer{a.Event, a.Subscriber, a.Source, a.Occurrence, a.Result, a.String()})
	}
	return answers
}

// Total adds up counts; with a limit above 0 it is no more than that.
func Total(counts []debt.Count, limit int) int64 {
	var total int64
	for _, c := range counts {
		total += c.Number
	}
	if limit > 0 {
		total = min(total, int64(limit))
	}
	return total
}
