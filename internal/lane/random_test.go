package lane_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// plan is what happens to an event: so many failures of a kind, and then its end.
type plan struct {
	fails int
	how   failure
	dead  bool // a permanent error in the end
	takes time.Duration
	late  time.Duration // of one that is deaf
}

type failure int

const (
	byError failure = iota
	byPanic
	byDeadline
	deaf // fails some time after its deadline
	failures
)

// flaky is a subscriber that follows a plan for each event, and an oracle that sees whether it is
// called as a subscriber must be.
type flaky struct {
	ordering lane.Ordering
	plans    map[string]*plan
	order    map[string][]string // ids in commit order, by what order is kept within
	done     func(id string) bool

	mu      sync.Mutex
	random  *rand.Rand     // guarded by mu
	inHand  map[string]int // calls by what order is kept within; guarded by mu
	effects map[string]int // guarded by mu
	// late are the events of batches that did not end in time: what had its effect may come again.
	late       map[string]bool // guarded by mu
	complaints []string        // guarded by mu
}

func (c *flaky) Name() string      { return "flaky" }
func (c *flaky) Wants(string) bool { return true }

func (c *flaky) Handle(ctx context.Context, d subscriber.Delivery) error {
	c.enter([]subscriber.Delivery{d})
	defer c.leave([]subscriber.Delivery{d})
	return c.handle(ctx, d)
}

// HandleBatch sometimes fails or panics as a whole, before it has had any effect, and else does event by
// event. What stands behind a failed one of its key is not done either.
func (c *flaky) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	c.enter(deliveries)
	defer c.leave(deliveries)
	if c.panics(deliveries) {
		panic("by plan")
	}
	c.mu.Lock()
	whole := c.random.IntN(6) == 0
	c.mu.Unlock()
	if whole {
		time.Sleep(time.Millisecond)
		return errors.New("deadlock detected")
	}
	failed := make(map[int]error)
	behind := make(map[string]bool)
	for i, d := range deliveries {
		key := c.within(d)
		if behind[key] {
			failed[i] = errors.New("stands behind another one")
			continue
		}
		if err := c.handle(ctx, d); err != nil {
			failed[i] = err
			behind[key] = !subscriber.IsPermanent(err)
		}
	}
	if ctx.Err() != nil {
		c.mu.Lock()
		for _, d := range deliveries {
			c.late[d.ID] = true
		}
		c.mu.Unlock()
	}
	if len(failed) == 0 {
		return nil
	}
	return &subscriber.BatchError{Failed: failed}
}

func (c *flaky) panics(deliveries []subscriber.Delivery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range deliveries {
		if p := c.plans[d.ID]; p.how == byPanic && p.fails > 0 {
			p.fails--
			return true
		}
	}
	return false
}

func (c *flaky) handle(ctx context.Context, d subscriber.Delivery) error {
	c.mu.Lock()
	p := c.plans[d.ID]
	fail := p.fails > 0
	if fail {
		p.fails--
	}
	c.mu.Unlock()
	time.Sleep(p.takes)
	switch {
	case fail && p.how == byPanic:
		panic("by plan")
	case fail && p.how == deaf:
		deadline, _ := ctx.Deadline()
		time.Sleep(time.Until(deadline) + p.late)
		return subscribertest.ErrFailing
	case fail && p.how == byDeadline:
		<-ctx.Done()
		return context.Cause(ctx)
	case fail:
		return subscribertest.ErrFailing
	case ctx.Err() != nil: // of a batch whose time is over
		return context.Cause(ctx)
	case p.dead:
		return subscriber.Permanent(errors.New("by plan"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.effects[d.ID]++
	return nil
}

// within is what order is kept within.
func (c *flaky) within(d subscriber.Delivery) string {
	switch c.ordering {
	case lane.ByKey:
		return d.Key
	case lane.None:
		return d.ID
	}
	return ""
}

// enter checks that nothing else of a key is in hand, and everything before an event has ended or stands
// before it in the same call.
func (c *flaky) enter(deliveries []subscriber.Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := make(map[string][]string)
	for _, d := range deliveries {
		key := c.within(d)
		if len(call[key]) == 0 {
			if c.inHand[key]++; c.inHand[key] > 1 {
				c.complain("%s: another call has key %q in hand", d.ID, key)
			}
		}
		if c.isDone(d.ID) && !c.late[d.ID] {
			c.complain("%s: handed over although it has ended", d.ID)
		}
		for _, id := range c.order[key] {
			if id == d.ID {
				break
			}
			if !c.isDone(id) && !slices.Contains(call[key], id) {
				c.complain("%s: handed over before %s has ended", d.ID, id)
			}
		}
		call[key] = append(call[key], d.ID)
	}
}

// isDone reports whether an event had its effect or has ended otherwise; mu is held. What was in debt ends
// a moment after its effect, when it is removed there.
func (c *flaky) isDone(id string) bool { return c.effects[id] > 0 || c.done(id) }

func (c *flaky) leave(deliveries []subscriber.Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := make(map[string]bool)
	for _, d := range deliveries {
		if key := c.within(d); !left[key] {
			left[key] = true
			c.inHand[key]--
		}
	}
}

func (c *flaky) complain(format string, args ...any) {
	if len(c.complaints) < 10 {
		c.complaints = append(c.complaints, fmt.Sprintf(format, args...))
	}
}

// newFlaky plans n events of a few keys, and returns their ids in commit order.
func newFlaky(random *rand.Rand, ordering lane.Ordering, n int) (*flaky, []string) {
	c := &flaky{
		ordering: ordering, random: rand.New(rand.NewPCG(random.Uint64(), 0)),
		plans: make(map[string]*plan), order: make(map[string][]string),
		inHand: make(map[string]int), effects: make(map[string]int), late: make(map[string]bool),
	}
	keys := 1 + random.IntN(30)
	trouble := 2 + random.IntN(30) // one of so many events fails
	var ids []string
	for i := range n {
		key := fmt.Sprint(random.IntN(keys))
		id := fmt.Sprintf("%s/%d", key, i)
		ids = append(ids, id)
		p := &plan{takes: time.Duration(random.IntN(20)) * time.Millisecond, dead: random.IntN(40) == 0}
		if random.IntN(trouble) == 0 {
			p.fails, p.how = 1+random.IntN(6), failure(random.IntN(int(failures)))
			p.late = time.Duration(random.IntN(6000)) * time.Millisecond
		}
		c.plans[id] = p
		switch ordering {
		case lane.ByKey:
			c.order[key] = append(c.order[key], id)
		case lane.Total:
			c.order[""] = append(c.order[""], id)
		}
	}
	return c, ids
}

func TestLane_keepsItsPromisesWhateverASubscriberDoes(t *testing.T) {
	rounds := few(15, 60)
	if s := os.Getenv("WALPOST_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("WALPOST_ROUNDS: %v", err)
		}
		rounds = 20 * n
	}
	for round := range rounds {
		ordering := []lane.Ordering{lane.ByKey, lane.Total, lane.None}[round%3]
		seed := rand.Uint64()
		for name, as := range map[string]shape{"calls": asCalls, "pipeline": asPipeline} {
			synctest.Test(t, func(t *testing.T) { live(t, ordering, seed, as) })
			if t.Failed() {
				t.Fatalf("seed %d, ordering %s, %s", seed, ordering, name)
			}
		}
	}
}

// shape is how a flaky subscriber takes deliveries. shake, if there is one, goes on for as long as the life does.
type shape func(c *flaky, random *rand.Rand) (sub subscriber.Subscriber, shake func(r *rig))

func asCalls(c *flaky, _ *rand.Rand) (subscriber.Subscriber, func(r *rig)) { return c, nil }

// live leads a lane through a random life.
func live(t *testing.T, ordering lane.Ordering, seed uint64, as shape) {
	random := rand.New(rand.NewPCG(seed, 0))
	sub, ids := newFlaky(random, ordering, 200)
	shaped, shake := as(sub, random)
	o := settings()
	o.Ordering, o.MaxAttempts, o.Timeout = ordering, 0, 10*time.Second
	o.Concurrency = 1 + random.IntN(10)
	o.Batch = 1 + random.IntN(3)*random.IntN(30)
	o.InFlight = 1 + random.IntN(60)
	share := 0
	if random.IntN(2) == 0 { // some lives know debt
		o.StallAfter = time.Duration(1+random.IntN(20)) * time.Second
		share = 1 + random.IntN(100)
	}
	r := newRig(t, shaped, o)
	r.share = share
	sub.done = r.hasEnded
	dead := make(map[string]bool)
	for id, p := range sub.plans {
		dead[id] = p.dead
	}
	early := random.IntN(len(ids)) // what is there before Run
	r.offer(ids[:early]...)
	r.start(time.Minute)
	if shake != nil {
		shaking, enough := context.WithCancel(context.Background())
		ended := make(chan struct{})
		defer func() { enough(); <-ended }()
		go func() {
			defer close(ended)
			for shaking.Err() == nil {
				shake(r)
			}
		}()
	}
	for _, id := range ids[early:] {
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		r.offer(id)
	}
	ends := r.await(len(ids))
	if err := r.stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
	for _, complaint := range sub.complaints {
		t.Error(complaint)
	}
	ended := make(map[string]int)
	for _, end := range ends {
		ended[end.id]++
		want := 1
		if dead[end.id] {
			want = 0
		}
		effects := sub.effects[end.id]
		if sub.late[end.id] {
			effects = min(effects, 1)
		}
		if end.dead != dead[end.id] || effects != want {
			t.Errorf("%s: dead %v after %d effects, want dead %v and %d", end.id, end.dead, sub.effects[end.id], dead[end.id], want)
		}
	}
	for _, id := range ids {
		if ended[id] != 1 {
			t.Errorf("%s ended %d times", id, ended[id])
		}
	}
	if stats := r.Stats(); stats.Open != 0 || len(r.debt.waiting()) > 0 {
		t.Errorf("in the end %d are open and %v wait", stats.Open, r.debt.waiting())
	}
}

// The test of the test: the oracle complains about a lane that does not wait.
func TestOracle_complainsAboutDisorder(t *testing.T) {
	for name, disorder := range map[string]func(c *flaky, a, b subscriber.Delivery){
		"two at once": func(c *flaky, a, b subscriber.Delivery) {
			c.done = func(id string) bool { return id == a.ID }
			c.enter([]subscriber.Delivery{b})
			c.enter([]subscriber.Delivery{b})
		},
		"overtaking": func(c *flaky, _, b subscriber.Delivery) {
			c.done = func(string) bool { return false }
			c.enter([]subscriber.Delivery{b})
		},
		"overtaking in a batch": func(c *flaky, a, b subscriber.Delivery) {
			c.done = func(string) bool { return false }
			c.enter([]subscriber.Delivery{b, a})
		},
		"again after its end": func(c *flaky, a, _ subscriber.Delivery) {
			c.done = func(string) bool { return true }
			c.enter([]subscriber.Delivery{a})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &flaky{ordering: lane.ByKey, inHand: make(map[string]int), order: make(map[string][]string)}
			a, b := subscribertest.LessonCompleted(0), subscribertest.LessonCompleted(3) // of one learner
			c.order[a.Key] = []string{a.ID, b.ID}
			disorder(c, a, b)
			if len(c.complaints) == 0 {
				t.Error("no complaint")
			}
		})
	}
}
