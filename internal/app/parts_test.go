package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestRunParts_stopsOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var ended []string
		draining := func(name string, drain time.Duration) part {
			return part{name, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(drain)
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, name)
				return nil
			}}
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		begin := time.Now()
		err := runParts(ctx, time.Minute, draining("traffic", 0), draining("api", 3*time.Second), draining("relay", time.Second), draining("ops", 0))
		if want := []string{"traffic", "api", "relay", "ops"}; err != nil || !slices.Equal(ended, want) {
			t.Errorf("ended %v, %v, want %v", ended, err, want)
		}
		if got, want := time.Since(begin), 5*time.Second; got != want {
			t.Errorf("took %s, want %s: each waits for the one before", got, want)
		}
	})
}

func TestRunParts_stopsAllWhenOneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := part{"ops", func(ctx context.Context) error { <-ctx.Done(); return nil }}
		broken := errors.New("slot is gone")
		err := runParts(t.Context(), time.Minute, waiting, part{"relay", func(context.Context) error { return broken }}, waiting)
		if !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
		err = runParts(t.Context(), time.Minute, waiting, part{"relay", func(context.Context) error { return nil }})
		if err == nil || !strings.Contains(err.Error(), "relay ended by itself") {
			t.Errorf("error %v: a part that ends without being told leaves a program that does nothing", err)
		}
	})
}

func TestRunParts_leavesBehindWhatDoesNotEndAndNamesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hanging := part{"relay", func(context.Context) error { <-release; return nil }}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		begin := time.Now()
		ops := part{"ops", func(ctx context.Context) error { <-ctx.Done(); return nil }}
		err := runParts(ctx, 25*time.Second, hanging, ops, hanging)
		if err == nil || !strings.Contains(err.Error(), "relay has not ended 25s after the stop") {
			t.Errorf("error %v, want one that names the part", err)
		}
		if took := time.Since(begin); took != 25*time.Second {
			t.Errorf("took %s, want the limit once for all parts", took)
		}
		close(release)
	})
}
