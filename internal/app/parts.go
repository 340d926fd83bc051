package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/backendstart/walpost/internal/postgres"
)

// part is something that runs until its context ends.
type part struct {
	name string
	run  func(context.Context) error
}

// runParts starts all parts. When ctx ends, or one of them does, it stops them one after the other in
// the order given: each has ended before the next one is told. The first in the list makes
// work for the others. Parts that have not ended so long after the stop are named in the error and left behind.
func runParts(ctx context.Context, limit time.Duration, parts ...part) error {
	type running struct {
		part
		stop  context.CancelFunc
		ended chan struct{}
		err   error // before ended is closed
	}
	first := make(chan *running, len(parts))
	all := make([]*running, len(parts))
	for i, p := range parts {
		partCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := &running{part: p, stop: stop, ended: make(chan struct{})}
		all[i] = r
		go func() {
			defer close(r.ended)
			r.err = r.run(partCtx)
			first <- r
		}()
	}
	var errs []error
	select {
	case <-ctx.Done():
	case r := <-first:
		if r.err == nil && ctx.Err() == nil {
			errs = append(errs, fmt.Errorf("%s ended by itself", r.name))
		}
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	for _, r := range all {
		r.stop()
		select {
		case <-r.ended:
			errs = append(errs, r.err)
			continue
		case <-late.C:
			late.Reset(0) // for the next part as well
		}
		select {
		case <-r.ended:
			errs = append(errs, r.err)
		default:
			errs = append(errs, fmt.Errorf("%s has not ended %v after the stop and is left behind", r.name, limit))
		}
	}
	return errors.Join(errs...)
}

// UnlessStopped returns nil for the error of a start that was told to stop: nothing has gone wrong then.
func UnlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// closeLimit is how long the program waits in the end for its sessions to be closed: a server that hangs
// answers nothing, and sessions end with the process.
const closeLimit = 200 * time.Millisecond

// closePools closes pools, which otherwise waits for every statement that is still under way.
func closePools(pools ...*postgres.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, pool := range pools {
			pool.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeLimit):
	}
}
