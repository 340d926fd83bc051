package ops

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/outbox"
)

// This file has what is only read: rows of sources, the audit, the slot, the doctor.

// listEvents answers with a page of the rows of one source.
func (s *Server) listEvents(ctx context.Context, r *http.Request) (any, error) {
	query, err := queryOf(r)
	if err != nil {
		return nil, err
	}
	var choice outbox.Choice
	var source, after string
	limit := defaultLimit
	for name, values := range query {
		value := values[0]
		var err error
		switch name {
		case "source":
			source = value
		case "type":
			choice.Type = value
		case "key":
			choice.Key = value
		case "since":
			choice.Since, err = parseTime(value)
		case "until":
			choice.Until, err = parseTime(value)
		case "limit":
			limit, err = parseLimit(value)
		case "after":
			after = value
		default:
			err = errors.New("there is no such filter")
		}
		if err != nil {
			return nil, debt.Refused(fmt.Sprintf("%s: %v", name, err))
		}
	}
	if source == "" {
		return nil, debt.Refused("source: it must be given")
	}
	return s.options.Admin.EventsPage(ctx, source, choice, after, limit)
}

// listNotes answers with a page of the audit: of these actions, or of the one that the query names.
func (s *Server) listNotes(actions ...string) func(context.Context, *http.Request) (any, error) {
	return func(ctx context.Context, r *http.Request) (any, error) {
		query, err := queryOf(r)
		if err != nil {
			return nil, err
		}
		actions, limit, before := actions, defaultLimit, int64(0)
		for name, values := range query {
			value := values[0]
			var err error
			switch {
			case name == "action" && len(actions) == 0:
				actions = []string{value}
			case name == "limit":
				limit, err = parseLimit(value)
			case name == "before":
				before, err = strconv.ParseInt(value, 10, 64)
				if err != nil || before < 1 {
					err = errors.New("it must be a number of a note")
				}
			default:
				err = errors.New("there is no such filter")
			}
			if err != nil {
				return nil, debt.Refused(fmt.Sprintf("%s: %v", name, err))
			}
		}
		return s.options.Admin.AuditPage(ctx, actions, before, limit)
	}
}

func (s *Server) slot(ctx context.Context, _ *http.Request) (any, error) {
	return s.options.Admin.SlotRecord(ctx)
}

// errUnknownHere is what a server says that was made without a part.
var errUnknownHere = errors.New("this process does not know it")

func (s *Server) doctor(context.Context, *http.Request) (any, error) {
	if s.options.Doctor == nil {
		return nil, errUnknownHere
	}
	said := s.options.Doctor()
	said.Findings = append([]doctor.Finding{}, said.Findings...) // an empty list is [] in JSON
	return said, nil
}

// sourcesAnswer is the answer of GET /v1/sources.
type sourcesAnswer struct {
	Sources []doctor.SourceReport `json:"sources"`
}

// sources looks at the catalogue through a session of its own, so one looks at a time.
func (s *Server) sources(ctx context.Context, _ *http.Request) (any, error) {
	if s.options.Sources == nil {
		return nil, errUnknownHere
	}
	select {
	case s.surveying <- struct{}{}:
		defer func() { <-s.surveying }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	reports, err := s.options.Sources(ctx)
	return sourcesAnswer{append([]doctor.SourceReport{}, reports...)}, err
}
