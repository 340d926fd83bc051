package ops

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/replay"
)

// replaysAnswer is the answer of GET /v1/replays.
type replaysAnswer struct {
	Replays []replay.Replay `json:"replays"`
}

func (s *Server) listReplays(ctx context.Context, _ *http.Request) (any, error) {
	replays, err := s.options.Admin.Replays(ctx, defaultLimit)
	return replaysAnswer{append([]replay.Replay{}, replays...)}, err // in JSON a list
}

func (s *Server) showReplay(ctx context.Context, r *http.Request) (any, error) {
	id, err := replayID(r)
	if err != nil {
		return nil, err
	}
	return s.options.Admin.FindReplay(ctx, id)
}

func (s *Server) cancelReplay(ctx context.Context, r *http.Request) (any, error) {
	id, err := replayID(r)
	if err != nil {
		return nil, err
	}
	var body reasons
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	return s.options.Admin.CancelReplay(ctx, id, body.by(r), body.Why)
}

func replayID(r *http.Request) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return 0, debt.Refused(fmt.Sprintf("replay %q: it must be a number", r.PathValue("id")))
	}
	return id, nil
}

// replayRequest is the body of POST /v1/replays.
type replayRequest struct {
	reasons
	Subscriber string    `json:"subscriber"`
	Source     string    `json:"source"`
	Type       string    `json:"type"`
	Key        string    `json:"key" max:"1024"`
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until"`
	Again      bool      `json:"again"`
	Rate       *int      `json:"rate"`
	DryRun     bool      `json:"dry_run"`
}

// replayAnswer is the answer of POST /v1/replays; a dry run has no replay.
type replayAnswer struct {
	Estimate replay.Estimate `json:"estimate"`
	Replay   *replay.Replay  `json:"replay,omitempty"`
}

// replay answers with the estimate, and with the replay unless it is a dry run.
func (s *Server) replay(ctx context.Context, r *http.Request) (any, error) {
	var body replayRequest
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	request := replay.Request{
		Subscriber: body.Subscriber, Source: body.Source, Type: body.Type, Key: body.Key,
		Since: body.Since, Until: body.Until, Again: body.Again, Rate: admin.DefaultReplayRate,
	}
	if body.Rate != nil {
		request.Rate = *body.Rate
	}
	if body.Why == "" && !body.DryRun {
		return nil, needsWhy
	}
	estimate, err := s.options.Admin.EstimateReplay(ctx, request)
	if err != nil || body.DryRun {
		return replayAnswer{Estimate: estimate}, err
	}
	asked, err := s.options.Admin.Replay(ctx, request, estimate, body.by(r), body.Why)
	return replayAnswer{estimate, &asked}, err
}
