package lane_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/subscribertest"
)

// world is one random arrangement: which keys fail and how, how fast events come, how large they are, and
// whether an outage came before.
type world struct {
	failing int
	good    int           // keys
	takes   time.Duration // of a failed call
	hour    int           // this failing key asks for an hour
	outage  time.Duration
	every   time.Duration // between good events
	events  int           // good ones
	large   int           // bytes of one of ten failing events
	away    bool          // failing keys say Away
	options lane.Options
	share   int
}

// maxProbeGap is the lane's.
const maxProbeGap = time.Second

func newWorld(random *rand.Rand) world {
	w := world{
		failing: 1 + random.IntN(60), good: 1 + random.IntN(200),
		every: time.Duration(1+random.IntN(20_000)) * time.Millisecond, events: 20 + random.IntN(100),
		options: defaults(), share: []int{0, 50, 2500}[random.IntN(3)], away: random.IntN(4) == 0,
	}
	w.hour = random.IntN(2*w.failing) - w.failing // or none
	if random.IntN(2) == 0 {
		w.takes = time.Duration(random.IntN(3000)) * time.Millisecond
	}
	if random.IntN(2) == 0 {
		w.outage = time.Duration(random.IntN(1800)) * time.Second
	}
	if random.IntN(2) == 0 {
		w.large = random.IntN(5 << 20)
	}
	o := &w.options
	o.Concurrency = 1 + random.IntN(12)
	o.Batch = 1 + random.IntN(2)*random.IntN(50)
	w.takes = min(w.takes, 9*time.Second/time.Duration(o.Batch)) // a call ends in time
	o.StallAfter = time.Duration(1+random.IntN(120)) * time.Second
	if random.IntN(4) == 0 {
		o.Ordering = lane.None
	}
	return w
}

func TestLane_noKeyThatDoesNotFailIsDelayedBeyondTheBound(t *testing.T) { // S-40
	rounds := few(1, 5)
	if s := os.Getenv("WALPOST_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("WALPOST_ROUNDS: %v", err)
		}
		rounds = 20 * n
	}
	for range rounds {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) { trouble(t, newWorld(rand.New(rand.NewPCG(seed, 0))), seed) })
		if t.Failed() {
			return
		}
	}
}

// trouble leads a lane through a world. Failing events come before and among the good ones.
func trouble(t *testing.T, w world, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	var back time.Time // when the outage ends
	defer func() {
		if t.Failed() {
			t.Errorf("seed %d, world %+v", seed, w)
		}
	}()
	var mu sync.Mutex
	first := make(map[string]time.Time) // attempt after the outage
	early := make(map[string]bool)      // keys that were tried during the outage
	handle := func(_ context.Context, d subscriber.Delivery) error {
		mu.Lock()
		if _, tried := first[d.ID]; !tried && !time.Now().Before(back) {
			first[d.ID] = time.Now()
		}
		out := time.Now().Before(back)
		early[d.Key] = early[d.Key] || out
		mu.Unlock()
		if !out && !strings.HasPrefix(d.Key, "bad") {
			return nil
		}
		time.Sleep(w.takes)
		switch {
		case !out && d.Key == fmt.Sprint("bad", w.hour):
			return subscriber.RetryAfter(errors.New("429"), time.Hour)
		case w.away:
			return subscriber.Away(errors.New("no leader"))
		}
		return errors.New("no")
	}
	var sub subscriber.Subscriber = subscribertest.Handling("sub", handle)
	if w.options.Batch > 1 {
		sub = subscribertest.Handling("sub", handle).InBatches()
	}
	back = time.Now().Add(w.outage)
	r := run(t, sub, w.options)
	r.share = w.share
	var ids []string
	bad := func(i, n int) {
		ev := &event.Event{Source: "lessons", ID: fmt.Sprintf("bad%d/%d", i, n), Key: fmt.Sprintf("bad%d", i), Type: "lesson.completed"}
		if w.large > 0 && i%10 == 0 {
			ev.Payload = make([]byte, w.large)
		}
		ids = append(ids, ev.ID)
		r.offerEvent(ev)
	}
	for i := range w.failing {
		bad(i, 0)
	}
	offered := make(map[string]time.Time)
	for n := range w.events {
		key := random.IntN(w.good)
		id := fmt.Sprintf("good%d/%d", key, n)
		offered[id] = time.Now()
		r.offer(id)
		if random.IntN(5) == 0 {
			bad(random.IntN(w.failing), n+1)
		}
		time.Sleep(w.every)
	}
	failing := w.failing
	if w.options.Ordering == lane.None {
		failing = len(ids) // each event is a key of its own
	}
	batch := w.options.Batch // a call of several lasts as long as its slowest parts together
	most := bound(failing, w.takes*time.Duration(batch))
	// What was tried during the outage is no first attempt any more. Of such events one is tried each retry.max
	// at least, and every other time the one that has waited longest.
	again := 2 * time.Duration(failing+5) * (w.options.Backoff.Max + maxProbeGap + w.takes*time.Duration(batch))
	time.Sleep(w.outage + again)
	mu.Lock()
	for id, at := range offered {
		if at.Before(back) {
			at = back
		}
		limit := most
		if key, _, _ := strings.Cut(id, "/"); early[key] {
			limit = again
		}
		tried, ok := first[id]
		if !ok || tried.Sub(at) > limit {
			t.Errorf("%s first tried (%v) after %v, want at most %v", id, ok, tried.Sub(at), limit)
		}
	}
	mu.Unlock()
	// Poison ends as a dead letter while others are delivered, unless its destination is away.
	for n := range 400 {
		r.offer(fmt.Sprintf("last%d/%d", n, n))
		time.Sleep(5 * time.Second)
	}
	letters, _ := r.debt.dead()
	dead := make(map[string]bool)
	for _, letter := range letters {
		dead[letter.Event.ID] = true
		if w.away && letter.Event.Key != fmt.Sprint("bad", w.hour) {
			t.Errorf("%s is dead although its destination is away", letter.Event.ID)
		}
		if !strings.HasPrefix(letter.Event.ID, "bad") {
			t.Errorf("%s is dead", letter.Event.ID)
		}
	}
	for i := range w.failing {
		if id := fmt.Sprintf("bad%d/0", i); !w.away && i != w.hour && !dead[id] {
			t.Errorf("%s is not dead although others are delivered", id)
		}
	}
}
