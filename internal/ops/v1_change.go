package ops

import (
	"context"
	"net/http"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/lane"
)

// choice is the body of a request that changes all deliveries that fit.
type choice struct {
	reasons
	Subscriber string     `json:"subscriber"`
	Source     string     `json:"source"`
	State      lane.State `json:"state"`
	Type       string     `json:"type"`
	Key        string     `json:"key" max:"1024"`
	Event      string     `json:"event"`
	Events     []string   `json:"events"`
	Occurrence string     `json:"occurrence"`
	Since      time.Time  `json:"since"`
	Until      time.Time  `json:"until"`
	Error      string     `json:"error" max:"1024"`
	Limit      int        `json:"limit"`
	DryRun     bool       `json:"dry_run"`
}

// choiceOf reads a choice that may be acted on.
func choiceOf(r *http.Request) (choice, debt.Filter, error) {
	var c choice
	if err := decode(r, &c); err != nil {
		return c, debt.Filter{}, err
	}
	filter := debt.Filter{
		Subscriber: c.Subscriber, Source: c.Source, State: c.State, Type: c.Type, Key: c.Key,
		Events: c.Events, Occurrence: c.Occurrence, Since: c.Since, Until: c.Until, Error: c.Error, Limit: c.Limit,
	}
	if c.Event != "" {
		filter.Events = append(filter.Events, c.Event)
	}
	switch {
	case c.Limit < 0:
		return c, filter, debt.Refused("limit: it must not be negative")
	case c.Why == "" && !c.DryRun:
		return c, filter, needsWhy
	}
	return c, filter, filter.Narrow()
}

func (s *Server) redrive(ctx context.Context, r *http.Request) (any, error) {
	c, filter, err := choiceOf(r)
	if err != nil {
		return nil, err
	}
	if c.DryRun {
		counts, _, err := s.options.Admin.Redrivable(ctx, filter)
		return admin.WouldRedriveOf(counts, c.Limit), err
	}
	return s.options.Admin.Redrive(ctx, filter, c.by(r), c.Why)
}

// wouldDiscard is the answer of a discard that is a dry run.
type wouldDiscard struct {
	WouldDiscard int64 `json:"would_discard"`
}

func (s *Server) discard(ctx context.Context, r *http.Request) (any, error) {
	c, filter, err := choiceOf(r)
	if err != nil {
		return nil, err
	}
	if c.DryRun {
		counts, _, err := s.options.Admin.Fitting(ctx, filter)
		return wouldDiscard{admin.Total(counts, c.Limit)}, err
	}
	return s.options.Admin.Discard(ctx, filter, c.by(r), c.Why)
}
