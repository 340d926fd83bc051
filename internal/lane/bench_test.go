package lane_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/ack"
	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/subscriber"
)

// instant is a subscriber that takes everything at once.
type instant struct{}

func (instant) Name() string                                             { return "instant" }
func (instant) Wants(string) bool                                        { return true }
func (instant) Handle(context.Context, subscriber.Delivery) error        { return nil }
func (instant) HandleBatch(context.Context, []subscriber.Delivery) error { return nil }

// counter tells when so many deliveries have finished.
type counter struct {
	*ack.Tracker // for what is not asked here
	finished     chan struct{}
}

func (c counter) Finish(ends ...ack.End) {
	for range ends {
		c.finished <- struct{}{}
	}
}

// BenchmarkLane is the cost of an event from Offer to its end, without that of the handler.
func BenchmarkLane(b *testing.B) {
	for _, test := range []struct{ keys, batch int }{{1000, 1}, {1, 1}, {1000, 500}, {1, 500}} {
		b.Run(fmt.Sprintf("%d keys, batches of %d", test.keys, test.batch), func(b *testing.B) {
			const window = 10000
			done := counter{ack.New(ack.Window{}, 1, 0), make(chan struct{}, window)}
			o := settings()
			o.Batch = test.batch
			l := newLane(instant{}, o, done, newDebt(nil), func() bool { return false })
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan error)
			go func() { ended <- l.Run(ctx, time.Minute) }()
			deliveries := make([]*ack.Delivery, window)
			for i := range deliveries {
				deliveries[i] = &ack.Delivery{Entry: &ack.Entry{Event: &event.Event{
					ID: fmt.Sprint(i), Key: fmt.Sprint(i % test.keys), CommittedAt: time.Now(),
				}}}
			}
			b.ReportAllocs()
			offered, finished := 0, 0
			for b.Loop() {
				if offered-finished == window {
					<-done.finished
					finished++
				}
				l.Offer(deliveries[offered%window])
				offered++
			}
			for ; finished < offered; finished++ {
				<-done.finished
			}
			cancel()
			if err := <-ended; err != nil {
				b.Error(err)
			}
		})
	}
}
