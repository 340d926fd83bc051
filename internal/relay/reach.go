package relay

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/postgres"
)

const (
	// reachInterval is how often it is asked whether Postgres answers on the way of the pool.
	reachInterval = time.Second
	// reachLimit bounds one question. A standby takes no lead when the last answer is older than a question and its
	// limit.
	reachLimit = 3 * time.Second
	// giveUpAfter is how long a leader whose pool does not reach Postgres goes on while another relay stands by.
	giveUpAfter = 15 * time.Second
	// firstRest and longestRest are how long it asks for no lead then: twice as long each time that it has recorded
	// nothing in between.
	firstRest, longestRest = 15 * time.Second, 10 * time.Minute
	// strangersInterval is how often it is looked who else is at the relay's advisory locks.
	strangersInterval = 5 * time.Second
)

// reach knows whether Postgres answers on the way that the relay's pool takes. The lease and the stream have direct
// connections: a pooler that is dead is not noticed there.
type reach struct {
	probe *postgres.Probe // owned by watchReach

	mu     sync.Mutex
	answer time.Time // when the last question was answered; guarded by mu
	err    error     // of the last question; guarded by mu
}

func newReach(pool *postgres.Pool) *reach { return &reach{probe: pool.NewProbe(), answer: time.Now()} }

// askThroughPool asks once. What the server itself answers is an answer, and so is what every relay would hear: that it is full,
// starts or stops.
func (r *reach) askThroughPool(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	err := r.probe.Ping(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch code := postgres.Code(err); {
	case err == nil, strings.HasPrefix(code, "53"), strings.HasPrefix(code, "57"): // insufficient_resources, operator_intervention
		r.answer, r.err = time.Now(), nil
	default:
		r.err = err
	}
}

// silence is how long no question was answered, and why; 0 while the last one was.
func (r *reach) silence() (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return 0, nil
	}
	return time.Since(r.answer), r.err
}

// works is what the lease asks before it takes the lead.
func (r *reach) works(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil && time.Since(r.answer) > reachInterval+reachLimit {
		return fmt.Errorf("the last answer came %v ago", time.Since(r.answer).Round(time.Second))
	}
	return r.err
}
