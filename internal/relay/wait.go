package relay

import (
	"context"
	"time"

	"github.com/backendstart/walpost/internal/lane"
)

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// statementLimit bounds what is asked of Postgres at once: a network that swallows everything must be
// noticed before TCP gives up.
const statementLimit = 30 * time.Second

// waits between attempts to reach Postgres.
var reconnect = lane.Backoff{Initial: 500 * time.Millisecond, Max: 15 * time.Second}

// waits before everything is built once more. Nothing is delivered meanwhile, and a repair makes progress
// even when the slot is lost again: what it has recorded stays recorded.
var rebuild = lane.Backoff{Initial: 500 * time.Millisecond, Max: 2 * time.Second}

// lastRecord is how long a stop waits for the last write.
const lastRecord = 5 * time.Second
