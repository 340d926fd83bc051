package doctor

import (
	"context"
	"slices"
	"time"
)

// RunOnly makes one check, for tests of many of them.
func RunOnly(ctx context.Context, o Options, id string) Report {
	return examine(ctx, o.withDefaults(), slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return c.id != id }))
}

// Every sets how often a watcher looks.
func (w *Watcher) Every(d time.Duration) { w.every = d }
