package app

import (
	"context"
	"errors"
	"fmt"
)

// part is something that runs until its context ends.
type part struct {
	name string
	run  func(context.Context) error
}

// runParts starts all parts. When ctx ends, or one of them does, it stops them one after the other in
// the order given: each has ended before the next one is told. The first in the list is whoever makes
// work for the others.
func runParts(ctx context.Context, parts ...part) error {
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
	for _, r := range all {
		r.stop()
		<-r.ended
		errs = append(errs, r.err)
	}
	return errors.Join(errs...)
}

// unlessStopped returns nil for the error of a start that was told to stop: nothing has gone wrong then.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
