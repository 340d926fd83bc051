package admin

import (
	"context"

	"github.com/backendstart/walpost/internal/replay"
)

// DefaultReplayRate is how many events a second a replay sends by default: enough for a million
// rows in half an hour, and little compared with what a receiver takes.
const DefaultReplayRate = 500

// Filtering tells the service what the configuration sends to a subscriber, so that estimates know it.
func (a *Service) Filtering(takes func(subscriber, source, eventType string) bool) *Service {
	a.takes = takes
	return a
}

// EstimateReplay tells what a replay would do. It counts what is chosen.
func (a *Service) EstimateReplay(ctx context.Context, request replay.Request) (replay.Estimate, error) {
	store, err := a.replaysWithTables(ctx)
	if err != nil {
		return replay.Estimate{}, err
	}
	var takes func(source, eventType string) bool
	if a.takes != nil {
		takes = func(source, eventType string) bool { return a.takes(request.Subscriber, source, eventType) }
	}
	return store.Estimate(ctx, request, takes)
}

// Replay asks for rows to be sent to a subscriber again; the relay that leads does it.
func (a *Service) Replay(ctx context.Context, request replay.Request, estimate replay.Estimate, who, why string) (replay.Replay, error) {
	store, err := a.replaysWithTables(ctx)
	if err != nil {
		return replay.Replay{}, err
	}
	return store.Create(ctx, request, estimate.Rows, who, why)
}

// Replays returns the newest replays, the newest first, and FindReplay one of them.
func (a *Service) Replays(ctx context.Context, limit int) ([]replay.Replay, error) {
	return a.replays().List(ctx, limit)
}

// FindReplay returns how far a replay is.
func (a *Service) FindReplay(ctx context.Context, id int64) (replay.Replay, error) {
	return a.replays().Get(ctx, id)
}

// CancelReplay ends a replay. What was sent was sent.
func (a *Service) CancelReplay(ctx context.Context, id int64, who, why string) (replay.Replay, error) {
	return a.replays().Cancel(ctx, id, who, why)
}

func (a *Service) replays() *replay.Store { return replay.NewStore(a.pool, a.slot, nil, nil) }

func (a *Service) replaysWithTables(ctx context.Context) (*replay.Store, error) {
	tables, err := a.tables(ctx)
	if err != nil {
		return nil, err
	}
	var messages []string
	for _, source := range a.sources {
		if source.Messages != "" {
			messages = append(messages, source.Name)
		}
	}
	return replay.NewStore(a.pool, a.slot, tables, messages), nil
}
