package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/subscriber"
)

// modelPipeline is a subscriber, as one process sees it, that reports delivery by delivery: in any order, late, and some
// not before they are aborted.
type modelPipeline struct {
	modelOutlet
	plant *plant
	state *pipelineState
}

type pipelineState struct {
	mu       sync.Mutex
	random   *rand.Rand         // guarded by mu
	aborting bool               // guarded by mu
	work     context.Context    // guarded by mu
	abort    context.CancelFunc // ends work; guarded by mu
	ended    *sync.WaitGroup    // of what was sent since the last Abort; guarded by mu
}

func newModelPipeline(o modelOutlet, plant *plant) modelPipeline {
	p := modelPipeline{o, plant, &pipelineState{random: rand.New(rand.NewPCG(uint64(len(o.name)), 3))}}
	p.state.beginLocked(o.process.dead)
	return p
}

func (s *pipelineState) beginLocked(life context.Context) {
	s.work, s.abort = context.WithCancel(life)
	s.ended = &sync.WaitGroup{}
}

func (s *pipelineState) intN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(n)
}

func (p modelPipeline) Send(ctx context.Context, ds []subscriber.Delivery, done func(int, error)) {
	s := p.state
	s.mu.Lock()
	work, ended := s.work, s.ended
	if s.aborting && ctx.Err() == nil {
		p.complain("%s is sent while what was sent before is not aborted", ds[0].OccurredAt)
	}
	ended.Add(1)
	s.mu.Unlock()
	defer ended.Done()
	keys := make(map[string][]int)
	var order []string
	for i, d := range ds {
		key := p.within(d.Key, d.OccurredAt)
		if keys[key] == nil {
			order = append(order, key)
		}
		keys[key] = append(keys[key], i)
	}
	for _, key := range order {
		ended.Go(func() { p.handleKey(ctx, work, key, ds, keys[key], done) })
	}
}

// handleKey handles what one Send has of a key, and reports it in any order.
func (p modelPipeline) handleKey(ctx, work context.Context, key string, ds []subscriber.Delivery, which []int, done func(int, error)) {
	begun := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(work, cancel)()
	p.enter(key, ds[which[0]])
	errs := make([]error, len(which))
	for n, i := range which {
		if n > 0 && errs[n-1] != nil && !subscriber.IsPermanent(errs[n-1]) {
			errs[n] = subscriber.ErrHeld
			continue
		}
		if p.isSilent() {
			<-ctx.Done()
		}
		if errs[n] = ctx.Err(); errs[n] == nil {
			errs[n] = p.attempt(ctx, func() bool { return p.process.dead.Err() == nil }, ds[i])
		}
	}
	order := make([]int, len(which))
	for n := range order {
		order[n] = n
	}
	slices.SortFunc(order, func(int, int) int { return p.state.intN(3) - 1 })
	for n, at := range order {
		if n == len(order)-1 {
			p.leave(key)
			if time.Since(begun) > 9*time.Second { // it may have been recorded as owed meanwhile
				p.mayRepeat(ds, which)
			}
		}
		if p.plant.releasesEarly {
			if n == 0 {
				for _, i := range which {
					done(i, errs[at])
				}
			}
			wait(ctx, 100*time.Millisecond)
			continue
		}
		done(which[at], errs[at])
		wait(ctx, time.Duration(p.state.intN(20))*time.Millisecond)
	}
}

func (p modelPipeline) Abort(ctx context.Context) error {
	s := p.state
	s.mu.Lock()
	s.aborting = true
	ended := s.ended
	s.abort()
	s.beginLocked(p.process.dead)
	s.mu.Unlock()
	all := make(chan struct{})
	go func() {
		time.Sleep(time.Duration(s.intN(400)) * time.Millisecond)
		ended.Wait()
		s.mu.Lock()
		s.aborting = false
		s.mu.Unlock()
		close(all)
	}()
	if p.plant.forgetsAbort {
		return nil
	}
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return errors.New("not aborted in time")
	}
}

// enter notes that a key is in a call, and leave that it is not any more.
func (m *modelSubscriber) enter(within string, d subscriber.Delivery) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[within] {
		m.over = append(m.over, fmt.Sprintf("two calls at once for %q", within))
	}
	m.busy[within] = true
	if _, before := m.tried[d.OccurredAt]; !before {
		m.tried[d.OccurredAt] = time.Now()
	}
}

func (m *modelSubscriber) leave(within string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.busy, within)
}

func (m *modelSubscriber) complain(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = append(m.over, fmt.Sprintf(format, args...))
}

// isSilent reports whether a delivery is not reported before it is aborted.
func (p modelPipeline) isSilent() bool {
	p.mu.Lock()
	silent := p.silent
	p.mu.Unlock()
	return silent > 0 && p.state.intN(silent) == 0
}

// mayRepeat notes deliveries that may come again without a crash.
func (m *modelSubscriber) mayRepeat(ds []subscriber.Delivery, which []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range which {
		m.repeats[ds[i].OccurredAt] = true
	}
}
