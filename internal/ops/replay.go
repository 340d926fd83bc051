package ops

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/replay"
)

// DefaultReplayRate is how many events a second a replay sends where nobody says it: enough for a million
// rows in half an hour, and little beside what a receiver takes.
const DefaultReplayRate = 500

// Filtering tells the desk what the configuration sends to a subscriber, so that estimates know it.
func (d *Desk) Filtering(takes func(subscriber, source, eventType string) bool) *Desk {
	d.takes = takes
	return d
}

// EstimateReplay tells what a replay would do. It counts what is chosen.
func (d *Desk) EstimateReplay(ctx context.Context, request replay.Request) (replay.Estimate, error) {
	store, err := d.replaysWithTables(ctx)
	if err != nil {
		return replay.Estimate{}, err
	}
	var takes func(source, eventType string) bool
	if d.takes != nil {
		takes = func(source, eventType string) bool { return d.takes(request.Subscriber, source, eventType) }
	}
	return store.Estimate(ctx, request, takes)
}

// Replay asks for rows to be sent to a subscriber again; the relay that leads does it.
func (d *Desk) Replay(ctx context.Context, request replay.Request, estimate replay.Estimate, who, why string) (replay.Replay, error) {
	store, err := d.replaysWithTables(ctx)
	if err != nil {
		return replay.Replay{}, err
	}
	return store.Ask(ctx, request, estimate.Rows, who, why)
}

// Replays returns the newest replays, the newest first, and FindReplay one of them.
func (d *Desk) Replays(ctx context.Context, limit int) ([]replay.Replay, error) {
	return d.replays().List(ctx, limit)
}

// FindReplay returns how far a replay is.
func (d *Desk) FindReplay(ctx context.Context, id int64) (replay.Replay, error) {
	return d.replays().Get(ctx, id)
}

// CancelReplay ends a replay. What was sent was sent.
func (d *Desk) CancelReplay(ctx context.Context, id int64, who, why string) (replay.Replay, error) {
	return d.replays().Cancel(ctx, id, who, why)
}

func (d *Desk) replays() *replay.Store { return replay.NewStore(d.pool, d.slot, nil, nil) }

func (d *Desk) replaysWithTables(ctx context.Context) (*replay.Store, error) {
	tables, err := d.tables(ctx)
	if err != nil {
		return nil, err
	}
	var messages []string
	for _, source := range d.sources {
		if source.Messages != "" {
			messages = append(messages, source.Name)
		}
	}
	return replay.NewStore(d.pool, d.slot, tables, messages), nil
}

// routeReplays adds the routes below /v1/replays.
func (s *Server) routeReplays(route func(pattern string, answer func(context.Context, *http.Request) (any, error))) {
	desk := s.options.Desk
	route("GET /v1/replays", func(ctx context.Context, _ *http.Request) (any, error) {
		replays, err := desk.Replays(ctx, defaultLimit)
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
		return desk.FindReplay(ctx, id)
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
		return desk.CancelReplay(ctx, id, body.by(r), body.Why)
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
		Since: body.Since, Until: body.Until, Again: body.Again, Rate: DefaultReplayRate,
	}
	if body.Rate != nil {
		request.Rate = *body.Rate
	}
	if body.Why == "" && !body.DryRun {
		return nil, needsWhy
	}
	estimate, err := s.options.Desk.EstimateReplay(ctx, request)
	if err != nil || body.DryRun {
		return map[string]any{"estimate": estimate}, err
	}
	asked, err := s.options.Desk.Replay(ctx, request, estimate, body.by(r), body.Why)
	return map[string]any{"estimate": estimate, "replay": asked}, err
}
