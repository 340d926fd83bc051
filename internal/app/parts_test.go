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
		err := runParts(ctx, draining("traffic", 0), draining("api", 3*time.Second), draining("relay", time.Second), draining("ops", 0))
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
		err := runParts(t.Context(), waiting, part{"relay", func(context.Context) error { return broken }}, waiting)
		if !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
		err = runParts(t.Context(), waiting, part{"relay", func(context.Context) error { return nil }})
		if err == nil || !strings.Contains(err.Error(), "relay ended by itself") {
			t.Errorf("error %v: a part that ends without being told leaves a program that does nothing", err)
		}
	})
}
