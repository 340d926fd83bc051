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

// routeReplays adds the routes below /v1/replays.
func (s *Server) routeReplays(route func(pattern string, answer func(context.Context, *http.Request) (any, error))) {
	service := s.options.Admin
	route("GET /v1/replays", func(ctx context.Context, _ *http.Request) (any, error) {
		replays, err := service.Replays(ctx, defaultLimit)
		if replays == nil {
			replays = []replay.Replay{} // in JSON a list
		}
		return map[string]any{"replays": replays}, err
	})
	route("GET /v1/replays/{id}", func(ctx context.Context, r *http.Request) (any, error) {
		id, err := replayID(r)
		if err != nil {
			return nil, err
		}
		return service.FindReplay(ctx, id)
	})
	route("POST /v1/replays", s.replay)
	route("POST /v1/replays/{id}/cancel", func(ctx context.Context, r *http.Request) (any, error) {
		id, err := replayID(r)
		if err != nil {
			return nil, err
		}
		var body reasons
		if err := decode(r, &body); err != nil {
			return nil, err
		}
		return service.CancelReplay(ctx, id, body.by(r), body.Why)
	})
}

func replayID(r *http.Request) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return 0, debt.Refused(fmt.Sprintf("replay %q: it must be a number", r.PathValue("id")))
	}
	return id, nil
}

// replay answers with the estimate, and with the replay unless it is a dry run.
func (s *Server) replay(ctx context.Context, r *http.Request) (any, error) {
	var body struct {
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
		return map[string]any{"estimate": estimate}, err
	}
	asked, err := s.options.Admin.Replay(ctx, request, estimate, body.by(r), body.Why)
	return map[string]any{"estimate": estimate, "replay": asked}, err
}
