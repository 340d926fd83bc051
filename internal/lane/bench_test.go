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

// instantly is a pipeline that reports everything at once.
type instantly struct{ instant }

func (instantly) Send(_ context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	for i := range deliveries {
		done(i, nil)
	}
}
func (instantly) Abort(context.Context) error { return nil }

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
	for _, test := range []struct {
		keys, batch int
		sub         subscriber.Subscriber
	}{{1000, 1, instant{}}, {1, 1, instant{}}, {1000, 500, instant{}}, {1, 500, instant{}}, {1000, 500, instantly{}}, {1, 500, instantly{}}, {10000, 500, instantly{}}} {
		b.Run(fmt.Sprintf("%d keys, batches of %d, %T", test.keys, test.batch, test.sub), func(b *testing.B) {
			const window = 10000
			done := counter{ack.New(ack.Window{}, 1, 0), make(chan struct{}, window)}
			o := settings()
			o.Batch = test.batch
			l := newLane(test.sub, o, done, newDebt(nil), func() bool { return false })
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
