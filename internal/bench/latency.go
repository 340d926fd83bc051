package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// latency compares the time from the return of a commit to the call of the handler with that of a poller,
// at a steady rate.
func latency(ctx context.Context, l *lab) error {
	const poller = "500 ms poller"
	p50 := bar{what: "commit to handler: p50", unit: "µs", baseline: poller, atMost: true, bar: 1.0 / 100, aim: 1.0 / 500}
	p99 := bar{what: "commit to handler: p99", unit: "µs", baseline: poller, atMost: true, bar: 1.0 / 40, aim: 1.0 / 100}
	four := bar{what: "the same with four database subscribers: p99", unit: "µs", baseline: poller, atMost: true, bar: 1.0 / 15, aim: 1.0 / 40}
	withRelay := func(f flow) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) { return l.relayLatency(ctx, f) }
	}
	samples, err := l.turns(ctx, fmt.Sprintf("latency at %d events/s", l.Rate),
		contestant{"no-op", withRelay(flow{mark: true, subscribers: []string{"{name: noop, kind: bench-noop}"}})},
		contestant{"four database subscribers", withRelay(lessonFlow)},
		contestant{poller, l.pollerLatency})
	if err != nil {
		return err
	}
	l.compare(p50, samples[0], samples[2], p50Of)
	l.compare(p99, samples[0], samples[2], p99Of)
	l.compare(four, samples[1], samples[2], p99Of)
	return nil
}

// commits are when the commits of events returned. It is safe for concurrent use.
type commits struct {
	mu sync.Mutex
	at map[string]time.Time // guarded by mu
}

func newCommits() *commits { return &commits{at: map[string]time.Time{}} }

func (c *commits) noteCommit(id string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[id] = at
}

// until adds up how long it was from each commit to the call of the handler, in Unix nanoseconds. A handler
// that was called before the commit had returned was called after no time.
func (c *commits) until(called map[string]int64) ([]time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for id, at := range c.at {
		handled, ok := called[id]
		if !ok {
			return nil, fmt.Errorf("event %s was committed and not handled", id)
		}
		all = append(all, max(0, time.Unix(0, handled).Sub(at)))
	}
	if len(all) == 0 {
		return nil, errors.New("no event was committed")
	}
	return all, nil
}

// sampleOf makes the sample of some waits.
func sampleOf(waits []time.Duration) sample {
	slices.Sort(waits)
	at := func(q float64) time.Duration { return waits[int(q*float64(len(waits)-1))] }
	return sample{p50: at(0.50), p99: at(0.99)}
}

// relayLatency writes at the steady rate while a relay runs. How many events that will be is known only at the
// end, so the process is asked for what it saw by ending it.
func (l *lab) relayLatency(ctx context.Context, f flow) (s sample, err error) {
	commits := newCommits()
	err = l.withRelay(ctx, f, 0, []string{"--stamp"}, func(relay *child) error {
		n, err := l.write(ctx, l.Rate, l.Timed, commits.noteCommit)
		if err != nil {
			return err
		}
		err = l.until(ctx, "every row to be marked", 0, `SELECT count(*) FROM outbox WHERE published_at IS NULL`)
		if err != nil {
			return fmt.Errorf("%d events written: %w", n, err)
		}
		l.notePeak(relay)
		relay.stop()
		all, err := relay.finishedAll(ctx, len(f.subscribers))
		if err != nil {
			return err
		}
		var waits []time.Duration
		for _, line := range all {
			w, err := commits.until(line.Called)
			if err != nil {
				return fmt.Errorf("subscriber %s: %w", line.Subscriber, err)
			}
			waits = append(waits, w...)
		}
		s = sampleOf(waits)
		return nil
	})
	return s, err
}

// pollerLatency is the same with a poller as many have written one: every 500 ms it locks what is not
// published, in batches, hands it over and marks it.
func (l *lab) pollerLatency(ctx context.Context) (s sample, err error) {
	if _, err := l.backlog(ctx, "huge", 1, l.Payload); err != nil {
		return s, err
	}
	commits, called := newCommits(), map[string]int64{}
	polling, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- l.poll(polling, called) }()
	if _, err := l.write(ctx, l.Rate, l.Timed, commits.noteCommit); err != nil {
		return s, err
	}
	err = l.until(ctx, "the poller to have every row", 0, `SELECT count(*) FROM outbox WHERE published_at IS NULL`)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return s, err
	}
	waits, err := commits.until(called)
	if err != nil {
		return s, err
	}
	return sampleOf(waits), nil
}

// poll runs until ctx ends. called is its own until it returns.
func (l *lab) poll(ctx context.Context, called map[string]int64) error {
	const batch = 1000
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for n := batch; n == batch; {
			err := pgx.BeginFunc(context.WithoutCancel(ctx), l.pool, func(tx pgx.Tx) error {
				rows, err := tx.Query(ctx, `
					SELECT id, event_id, payload FROM outbox WHERE published_at IS NULL
					ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`, batch)
				if err != nil {
					return err
				}
				var ids []int64
				var id int64
				var eventID string
				var payload []byte
				_, err = pgx.ForEachRow(rows, []any{&id, &eventID, &payload}, func() error {
					ids = append(ids, id)
					called[eventID] = time.Now().UnixNano()
					return nil
				})
				if n = len(ids); err != nil || n == 0 {
					return err
				}
				_, err = tx.Exec(ctx, `UPDATE outbox SET published_at = now() WHERE id = ANY ($1)`, ids)
				return err
			})
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("poll the outbox: %w", err)
			}
		}
	}
}
