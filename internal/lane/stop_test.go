package lane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// slowToLoad is a debt whose first look lasts until it is called off.
// untroubled is a stream that has no trouble of its own.
func untroubled() lane.Stream {
	return lane.Stream{
		Term: func() int64 { return term }, Passed: passedAll, Pressed: func() bool { return false },
		Crowds: func() bool { return false }, Refuse: func(*event.Event) error { return nil },
	}
}

type slowToLoad struct{ *debt }

func (slowToLoad) Load(ctx context.Context, _ string, _ event.Position, _ lane.Limit) (lane.Debt, error) {
	<-ctx.Done()
	return lane.Debt{}, ctx.Err()
}

// S-97: a stop right after the start calls off what the lane asks of the debt. That is no trouble, and is not logged as one.
func TestLane_logsNoErrorThatItsOwnStopHasMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRig(t, subscribertest.Recording(), settings())
		r.Lane = lane.New(0, subscribertest.Recording(), settings(), acks{r.tracker, r}, slowToLoad{r.debt}, untroubled(),
			lane.NewVectors(prometheus.NewRegistry(), prometheus.NewRegistry()).For("sub"), slog.New(slog.NewTextHandler(&log, nil)))
		r.start(time.Minute)
		time.Sleep(time.Second)
		if err := r.stop(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the lane ended with %v", err)
		}
		if log.Len() > 0 {
			t.Errorf("a clean stop was logged as\n%s", log.String())
		}
	})
}

// S-103: the line names a key.
func TestLane_namesAKeyThatFallsIntoDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		sub := subscribertest.Handling("sub", func(_ context.Context, d subscriber.Delivery) error {
			if d.Key == "K" {
				return errors.New("503")
			}
			return nil
		})
		o := settings()
		o.StallAfter = 10 * time.Second
		r := newRig(t, sub, o)
		r.Lane = lane.New(0, sub, o, acks{r.tracker, r}, r.debt, untroubled(),
			lane.NewVectors(prometheus.NewRegistry(), prometheus.NewRegistry()).For("sub"), slog.New(slog.NewTextHandler(&log, nil)))
		r.start(time.Minute)
		for i := range 40 {
			r.offer(fmt.Sprintf("K/%d", i), fmt.Sprintf("L/%d", i))
			time.Sleep(5 * time.Second)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "keys fall into debt") || strings.Contains(log.String(), `first=""`) || !strings.Contains(log.String(), "first=K") {
			t.Errorf("the log says\n%s", log.String())
		}
	})
}
