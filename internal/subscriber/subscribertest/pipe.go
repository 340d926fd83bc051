package subscribertest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/backendstart/walpost/internal/subscriber"
)

// A Pipe is a Pipeline with the behaviour of another subscriber: it handles each key of a Send in a goroutine of its own
// and reports each delivery when it is handled.
type Pipe struct {
	subscriber.Subscriber

	mu      sync.Mutex
	aborted context.CancelCauseFunc // ends what is under way; guarded by mu
	work    context.Context         // guarded by mu
	ended   *sync.WaitGroup         // of what is under way; guarded by mu
}

// InPipeline returns a pipeline with the same behaviour and ledger.
func (f *Fake) InPipeline() *Pipe { return NewPipe(f) }

// NewPipe makes a pipeline of a subscriber.
func NewPipe(sub subscriber.Subscriber) *Pipe {
	p := &Pipe{Subscriber: sub}
	p.beginLocked()
	return p
}

var errAborted = errors.New("aborted")

func (p *Pipe) beginLocked() {
	p.work, p.aborted = context.WithCancelCause(context.Background())
	p.ended = &sync.WaitGroup{}
}

// Send begins to handle what it is given, and returns at once.
func (p *Pipe) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := make(map[string][]int)
	for i, d := range deliveries {
		keys[d.Key] = append(keys[d.Key], i)
	}
	for _, which := range keys {
		work := p.work
		p.ended.Go(func() {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(work, func() { cancel(errAborted) })()
			var failed bool
			for _, i := range which {
				switch {
				case ctx.Err() != nil:
					done(i, context.Cause(ctx))
				case failed:
					done(i, subscriber.ErrHeld)
				default:
					err := p.handle(ctx, deliveries[i])
					failed = err != nil && !subscriber.IsPermanent(err)
					done(i, err)
				}
			}
		})
	}
}

// handle makes a panic an error: it would end the process.
func (p *Pipe) handle(ctx context.Context, d subscriber.Delivery) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panicked: %v", r)
		}
	}()
	return p.Handle(ctx, d)
}

// Abort ends the contexts of what is under way and waits for it.
func (p *Pipe) Abort(ctx context.Context) error {
	p.mu.Lock()
	ended := p.ended
	p.aborted(errAborted)
	p.beginLocked()
	p.mu.Unlock()
	all := make(chan struct{})
	go func() {
		ended.Wait()
		close(all)
	}()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
