package relay

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/store"
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

// ask asks once. What the server itself answers is an answer, and so is what every relay would hear: that it is full,
// starts or stops.
func (r *reach) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	err := r.probe.Ask(ctx)
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

// watchReach asks until ctx ends. A leader that cannot reach Postgres through its pool can record nothing, and nothing
// is confirmed; where another relay can, that one shall lead. What every relay would meet (a lock, a refused mark, a
// full disk, a commit that waits for a standby) is no reason: each handover delivers the window again.
func (r *Relay) watchReach(ctx context.Context) {
	defer r.reach.probe.Close()
	rest, recorded := firstRest, r.fence.Records()
	ticker := time.NewTicker(reachInterval)
	defer ticker.Stop()
	for {
		r.reach.ask(ctx)
		if silent, why := r.reach.silence(); silent >= giveUpAfter && r.Lease.Valid() && r.anotherStandsBy(ctx) {
			if now := r.fence.Records(); now != recorded {
				rest, recorded = firstRest, now
			}
			r.Log.Error("the lead is given up: the relay's own connections do not reach Postgres, and another relay stands by",
				"slot", r.Slot, "silent", silent.Round(time.Second), "asks_again_after", rest, "err", why)
			r.Lease.StepDown(rest)
			rest = min(2*rest, longestRest)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Relay) anotherStandsBy(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	yes, err := r.Lease.StandsBy(ctx)
	return yes && err == nil
}

// waitsAfter is how long a statement of the relay waits for a lock before it says so.
const waitsAfter = 5 * time.Second

// watchWaits says until ctx ends which statements of the relay, its subscribers and people's changes through it wait for a
// lock, and who holds it: nothing else tells a statement that waits from one that works.
func (r *Relay) watchWaits(ctx context.Context) {
	ticker := time.NewTicker(waitsAfter)
	defer ticker.Stop()
	said := make(map[int]time.Time) // by pid: the statement that was named in the log
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		waits, err := r.Pool.FindLockWaits(limited, waitsAfter)
		cancel()
		if err == nil { // any other error is one of the stream as well, and told there
			r.mu.Lock()
			r.waits = waits
			r.mu.Unlock()
			now := make(map[int]time.Time, len(waits))
			for _, wait := range waits {
				if now[wait.PID] = wait.Since; !said[wait.PID].Equal(wait.Since) {
					r.Log.Warn("a statement waits for a lock", "pid", wait.PID, "since", wait.Since, "statement", wait.Query, "held_by", wait.By)
				}
			}
			said = now
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// watchStrangers looks until ctx ends who else is at the advisory locks by which relays show that they live.
func (r *Relay) watchStrangers(ctx context.Context) {
	ticker := time.NewTicker(strangersInterval)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, statementLimit)
		var found []store.Stranger
		err := postgres.InTx(limited, r.Pool, func(tx pgx.Tx) (err error) {
			found, err = store.FindStrangers(limited, tx, r.Slot)
			return err
		})
		cancel()
		if err == nil { // any other error is one of the stream as well, and told there
			r.mu.Lock()
			r.strangers = found
			r.mu.Unlock()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
