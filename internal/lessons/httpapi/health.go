package httpapi

import (
	"context"
	"time"
)

// readyTimeout leaves a probe, which seldom waits longer than a few seconds, time to hear why.
const readyTimeout = 2 * time.Second

type statusOutput struct {
	Body struct {
		Status string `json:"status" example:"ok"`
	}
}

func status(word string) *statusOutput {
	var out statusOutput
	out.Body.Status = word
	return &out
}

func (a *api) live(context.Context, *struct{}) (*statusOutput, error) { return status("ok"), nil }

// ready says no more than yes or no: it is open to everyone, and the reason is in the log.
func (a *api) ready(ctx context.Context, _ *struct{}) (*statusOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := a.Ready(ctx); err != nil {
		a.log.Warn("not ready", "err", err)
		return nil, unavailable("not ready: the database is away or its schema is not current; the log says which")
	}
	return status("ready"), nil
}
