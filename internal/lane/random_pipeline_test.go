package lane_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// flakyPipeline is a flaky subscriber that reports delivery by delivery: in any order, after its time, or not before it
// has to abort. It is an oracle as well: that a key has one call at a time, until its last report, and that nothing is
// sent while it aborts.
type flakyPipeline struct {
	*flaky
	never map[string]bool // what is not reported the first time; guarded by flaky.mu

	abort struct {
		sync.Mutex
		begun   chan struct{} // closed and replaced by Abort
		working sync.WaitGroup
		aborts  bool
	}
}

var errAborted = errors.New("aborted")

func newFlakyPipeline(c *flaky) *flakyPipeline {
	p := &flakyPipeline{flaky: c, never: make(map[string]bool)}
	p.abort.begun = make(chan struct{})
	for id := range c.plans {
		p.never[id] = c.random.IntN(60) == 0
	}
	return p
}

func (p *flakyPipeline) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	p.abort.Lock()
	if p.abort.aborts && ctx.Err() == nil {
		p.mu.Lock()
		p.complain("%s: sent while what was sent before is not aborted", deliveries[0].ID)
		p.mu.Unlock()
	}
	begun := p.abort.begun
	if ctx.Err() == nil {
		p.abort.working.Add(1)
		defer p.abort.working.Done()
	}
	p.abort.Unlock()
	if ctx.Err() != nil {
		for i := range deliveries {
			done(i, context.Cause(ctx))
		}
		return
	}
	keys := make(map[string][]int)
	var order []string
	for i, d := range deliveries {
		key := p.within(d)
		if keys[key] == nil {
			order = append(order, key)
		}
		keys[key] = append(keys[key], i)
	}
	for _, key := range order {
		p.abort.working.Go(func() { p.handleKey(ctx, begun, deliveries, keys[key], done) })
	}
	p.mu.Lock()
	wait := time.Duration(p.random.IntN(3)) * time.Millisecond
	p.mu.Unlock()
	time.Sleep(wait)
}

// handleKey handles what one Send has of a key.
func (p *flakyPipeline) handleKey(ctx context.Context, aborted <-chan struct{}, all []subscriber.Delivery, which []int, done func(int, error)) {
	begun := time.Now()
	var deliveries []subscriber.Delivery
	for _, i := range which {
		deliveries = append(deliveries, all[i])
	}
	p.enter(deliveries)
	errs := make([]error, len(which))
	for n, d := range deliveries {
		if errs[n] = p.attempt(ctx, aborted, d); errs[n] != nil && !subscriber.IsPermanent(errs[n]) {
			for ; n < len(which)-1; n++ {
				errs[n+1] = subscriber.ErrHeld
			}
			break
		}
	}
	p.mu.Lock()
	order := p.random.Perm(len(which))
	wait := time.Duration(p.random.IntN(50)) * time.Millisecond
	p.mu.Unlock()
	for n, at := range order {
		if n == len(order)-1 {
			p.leave(deliveries)
			if time.Since(begun) > 9*time.Second { // it may have been recorded as owed meanwhile
				p.mu.Lock()
				for _, d := range deliveries {
					p.late[d.ID] = true
				}
				p.mu.Unlock()
			}
		}
		done(which[at], errs[at])
		if n < len(order)-1 {
			time.Sleep(wait / time.Duration(len(order)))
		}
	}
}

// attempt handles one delivery. What is aborted has no effect.
func (p *flakyPipeline) attempt(ctx context.Context, aborted <-chan struct{}, d subscriber.Delivery) error {
	p.mu.Lock()
	plan := p.plans[d.ID]
	fail, never := plan.fails > 0, p.never[d.ID]
	p.never[d.ID] = false
	if fail && !never {
		plan.fails--
	}
	wait, err := plan.takes, error(nil)
	switch {
	case never:
		wait = time.Duration(1<<63 - 1)
	case fail && plan.how == deaf:
		wait, err = 10*time.Second+plan.late, subscribertest.ErrFailing
	case fail && plan.how == byDeadline:
		wait, err = 10*time.Second, subscriber.Away(errors.New("request timed out"))
	case fail:
		err = subscribertest.ErrFailing
	case plan.dead:
		err = subscriber.Permanent(errors.New("by plan"))
	}
	p.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-aborted:
		return errAborted
	case <-timer.C:
	}
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.effects[d.ID]++
	return nil
}

func (p *flakyPipeline) Abort(ctx context.Context) error {
	p.abort.Lock()
	p.abort.aborts = true
	close(p.abort.begun)
	p.abort.begun = make(chan struct{})
	p.abort.Unlock()
	p.mu.Lock()
	wait := time.Duration(p.random.IntN(5000)) * time.Millisecond
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.abort.working.Wait()
		close(ended)
	}()
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	<-ended // at once: who works looks whether it is aborted
	p.abort.Lock()
	defer p.abort.Unlock()
	p.abort.aborts = false
	return nil
}

// asPipeline takes the lead and gives it back from time to time.
func asPipeline(c *flaky, random *rand.Rand) (subscriber.Subscriber, func(r *rig)) {
	return newFlakyPipeline(c), shaking(random.Uint64())
}

func shaking(seed uint64) func(r *rig) {
	random := rand.New(rand.NewPCG(seed, 0))
	return func(r *rig) {
		time.Sleep(time.Duration(random.IntN(60)) * time.Second)
		r.Suspend()
		time.Sleep(time.Duration(random.IntN(3)) * time.Second)
		r.Resume()
	}
}

// plantedPipeline misreports what a flaky one does, as a lane with a fault would take it.
type plantedPipeline struct {
	*flakyPipeline
	releasesEarly bool // a key has ended with its first report
	forgetsAbort  bool // what was sent is not waited for
}

func (p plantedPipeline) Send(ctx context.Context, deliveries []subscriber.Delivery, done func(int, error)) {
	if !p.releasesEarly {
		p.flakyPipeline.Send(ctx, deliveries, done)
		return
	}
	var mu sync.Mutex
	reported := make(map[string]bool)
	p.flakyPipeline.Send(ctx, deliveries, func(i int, err error) {
		mu.Lock()
		defer mu.Unlock()
		key := p.within(deliveries[i])
		if reported[key] {
			return
		}
		reported[key] = true
		for j := range deliveries {
			if p.within(deliveries[j]) == key {
				done(j, err)
			}
		}
	})
}

func (p plantedPipeline) Abort(ctx context.Context) error {
	if p.forgetsAbort {
		go p.flakyPipeline.Abort(ctx)
		return nil
	}
	return p.flakyPipeline.Abort(ctx)
}

// The test of the test: what a lane with these faults would do is found.
func TestOracle_findsPlantedBugsOfPipelines(t *testing.T) {
	for name, planted := range map[string]struct {
		plant plantedPipeline
		says  string
	}{
		"releases a key at its first report": {plantedPipeline{releasesEarly: true}, "another call has key"},
		"does not wait for an abort":         {plantedPipeline{forgetsAbort: true}, "is not aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				var found string
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 0))
					sub, ids := newFlaky(random, lane.ByKey, 200)
					plant := planted.plant
					plant.flakyPipeline = newFlakyPipeline(sub)
					o := settings()
					o.MaxAttempts, o.Batch = 0, 20
					r := newRig(t, plant, o)
					sub.done = r.hasEnded
					r.start(time.Minute)
					shake := shaking(seed)
					for n, id := range ids {
						r.offer(id)
						if n%50 == 0 {
							shake(r)
						}
					}
					time.Sleep(time.Minute)
					r.Suspend()
					time.Sleep(time.Minute)
					_ = r.stop()
					found = fmt.Sprint(sub.complaints)
				})
				if strings.Contains(found, planted.says) {
					return
				}
			}
			t.Errorf("20 lives did not find that a lane %s", name)
		})
	}
}
