package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const writers = 4 // that insert at the same time

// write inserts single rows from several connections for a time: rate of them a second, or as many as it
// can if that is 0. committed is told of each, with the moment its commit returned; nil is no one.
func (l *lab) write(ctx context.Context, rate int, d time.Duration, committed func(id string, at time.Time)) (n int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d, errTimeIsUp)
	defer cancel()
	var all sync.WaitGroup
	var written atomic.Int64
	errs := make([]error, writers)
	for w := range writers {
		all.Go(func() {
			due := time.Now()
			for i := 0; ctx.Err() == nil; i++ {
				if rate > 0 {
					due = due.Add(time.Second * writers / time.Duration(rate))
					if pause(ctx, time.Until(due)) != nil {
						return
					}
				}
				id := fmt.Sprintf("steady-%d-%d", w, i)
				// The last one is waited for: it is committed, or it would be counted by no one.
				_, errs[w] = l.pool.Exec(context.WithoutCancel(ctx), insertOne, id, w*1000+i%250+1, i, l.Payload)
				if errs[w] != nil {
					return
				}
				written.Add(1)
				if committed != nil {
					committed(id, time.Now())
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("write events: %w", err)
	}
	return written.Load(), nil
}

var errTimeIsUp = errors.New("time is up")

const insertOne = `
	INSERT INTO outbox (event_id, event_type, aggregate_type, aggregate_id, partition_key, payload)
	VALUES ($1::text, 'lesson.completed', 'lesson', $3::bigint::text, $2::bigint::text,
	jsonb_build_object('event_id', $1::text, 'type', 'lesson.completed', 'correlation_id', 'c', 'occurred_at', '2026-01-01T00:00:00Z',
	'user_id', $2::bigint, 'lesson_id', $3::bigint + 1, 'track_slug', 'go-basics', 'lesson_slug', 'channels',
	'pad', repeat('x', greatest(0, $4::int - 230))))`

// producer compares how fast rows are inserted while a relay drains with how fast without any slot reader. How
// fast with pg_recvlogical, which does nothing with what it reads, tells what the server takes for a reader.
func producer(ctx context.Context, l *lab) error {
	b := bar{what: "producer's inserts while the relay drains", unit: "rows/s", baseline: "no slot reader", bar: 0.75, aim: 0.85}
	insert := func(ctx context.Context) (sample, error) {
		n, err := l.write(ctx, 0, l.Timed, nil)
		return sample{rate: float64(n) / l.Timed.Seconds()}, err
	}
	all := []contestant{
		{"relay drains", func(ctx context.Context) (sample, error) {
			var s sample
			err := l.withRelay(ctx, noops("bench-noop", l.Subscribers), 0, nil, func(relay *child) (err error) {
				s, err = insert(ctx)
				l.notePeak(relay)
				return err
			})
			return s, err
		}},
		{"no slot reader", func(ctx context.Context) (sample, error) {
			if _, err := l.backlog(ctx, "huge", 1, l.Payload); err != nil {
				return sample{}, err
			}
			return insert(ctx)
		}}}
	recvlogical, found := findRecvlogical()
	if found {
		all = append(all, contestant{"pg_recvlogical drains", func(ctx context.Context) (sample, error) {
			if _, err := l.backlog(ctx, "huge", 1, l.Payload); err != nil {
				return sample{}, err
			}
			return l.duringRecvlogical(ctx, recvlogical, insert)
		}})
	}
	samples, err := l.turns(ctx, b.what, all...)
	if err != nil {
		return err
	}
	l.compare(b, samples[0], samples[1], rateOf)
	if found {
		floor := spread(ratios(samples[2], samples[1], rateOf))
		l.addNote("with pg_recvlogical as the reader it is %.2f× (%.2f to %.2f): that is what the server takes for a reader", floor.Median, floor.Min, floor.Max)
	}
	return nil
}

// withRelay runs f while a relay streams and has nothing before it: one event, which it is given.
func (l *lab) withRelay(ctx context.Context, f flow, expect int, partArgs []string, do func(*child) error) (err error) {
	if _, err := l.backlog(ctx, "huge", 1, l.Payload); err != nil {
		return err
	}
	slot, err := l.copySlot(ctx, f.names()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.dropSlot(ctx, slot)) }()
	relay, err := l.startRelay(ctx, slot, expect, f, partArgs)
	if err != nil {
		return err
	}
	defer relay.stop()
	if _, err := relay.says(ctx, `"msg":"streaming"`); err != nil {
		return err
	}
	return do(relay)
}

// idle watches a relay with the four built-in subscribers that has nothing to do.
func idle(ctx context.Context, l *lab) error {
	cpu := bar{what: "idle relay: share of a core", unit: "%", atMost: true, bar: 1}
	writes := bar{what: "idle relay: rows written", unit: "rows", atMost: true}
	l.step("idle relay, " + l.Idle.String())
	return l.withRelay(ctx, lessonFlow, 0, nil, func(relay *child) error {
		// What follows a start, and the one event, is recorded within a second; but a session that has become
		// idle may keep its statistics for ten more. (PGSTAT_IDLE_INTERVAL of the server's sources)
		if err := pause(ctx, 12*time.Second); err != nil {
			return err
		}
		const written = `SELECT tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database()`
		const walEnd = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
		wal, err := l.query(ctx, walEnd)
		if err != nil {
			return err
		}
		rows, err := l.query(ctx, written)
		if err != nil {
			return err
		}
		before, noProc := relay.cpu()
		if err := pause(ctx, l.Idle); err != nil {
			return err
		}
		used, _ := relay.cpu()
		after, err := l.query(ctx, written)
		if err != nil {
			return err
		}
		walAfter, err := l.query(ctx, walEnd)
		if err != nil {
			return err
		}
		l.notePeak(relay)
		if noProc != nil {
			l.notRun("the processor time of a running process is read from /proc, which is not there", cpu)
		} else {
			l.absolute(cpu, "", 100*(used-before).Seconds()/l.Idle.Seconds())
		}
		l.absolute(writes, fmt.Sprintf("in %s, in which the server as a whole wrote %d bytes of WAL", l.Idle, walAfter-wal), float64(after-rows))
		return nil
	})
}
