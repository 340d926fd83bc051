package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/subscriber"
)

// lessonFlow is the four built-in subscribers, as they are when no file says otherwise.
var lessonFlow = flow{mark: true, subscribers: []string{"{name: achievements}", "{name: analytics}", "{name: notifications}", "{name: recommendations}"}}

// builtin drains a backlog into the four built-in subscribers until every row is marked as published, compared with
// pg_recvlogical and with the loop that one writes first: an event, a transaction.
func builtin(ctx context.Context, l *lab) error {
	events := max(1, l.Events/5)
	toStream := bar{what: "four built-in subscribers, rows marked", unit: "events/s", baseline: "pg_recvlogical", bar: 0.4, aim: 0.6}
	toLoop := bar{what: "four built-in subscribers, rows marked", unit: "events/s", baseline: "one transaction per event", bar: 5}
	end, err := l.backlog(ctx, "1", events, l.Payload)
	if err != nil {
		return err
	}
	err = l.exec(ctx, `
		INSERT INTO lesson_progress (user_id, lesson_id, track_slug, lesson_slug, completed, completed_at, event_id)
		SELECT (payload->>'user_id')::bigint, (payload->>'lesson_id')::bigint, payload->>'track_slug', payload->>'lesson_slug', true,
		       (payload->>'occurred_at')::timestamptz, event_id FROM outbox`)
	if err != nil {
		return err
	}
	defer func() { _ = l.exec(context.WithoutCancel(ctx), `TRUNCATE lesson_progress`) }()
	all := []contestant{
		{"walpost", func(ctx context.Context) (sample, error) {
			if err := l.reset(ctx); err != nil {
				return sample{}, err
			}
			return l.drainUntil(ctx, lessonFlow, events, len(lessonFlow.subscribers), func(ctx context.Context) error {
				return l.until(ctx, "every row to be marked", 0, `SELECT count(*) FROM outbox WHERE published_at IS NULL`)
			})
		}},
		{"one transaction per event", func(ctx context.Context) (sample, error) {
			if err := l.reset(ctx); err != nil {
				return sample{}, err
			}
			return l.oneByOne(ctx, max(1, events/10))
		}},
	}
	recvlogical, found := findRecvlogical()
	if found {
		all = append(all, contestant{"pg_recvlogical", func(ctx context.Context) (sample, error) {
			return l.recvlogical(ctx, recvlogical, end, events)
		}})
	}
	samples, err := l.turns(ctx, "built-in subscribers", all...)
	if err != nil {
		return err
	}
	if found {
		l.compare(toStream, samples[0], samples[2], rateOf)
	} else {
		l.notRun(noRecvlogical, toStream)
	}
	l.compare(toLoop, samples[0], samples[1], rateOf)
	return nil
}

// oneByOne gives the first events of the table to the same four subscribers, each of which handles them one
// after the other, in a transaction of its own for each. That it neither marks rows nor remembers how far it
// came is to its advantage.
func (l *lab) oneByOne(ctx context.Context, events int) (sample, error) {
	rows, err := l.pool.Query(ctx, `SELECT event_id, event_type, partition_key, payload::text FROM outbox ORDER BY id LIMIT $1`, events)
	if err != nil {
		return sample{}, fmt.Errorf("read the outbox: %w", err)
	}
	var deliveries []subscriber.Delivery
	for rows.Next() {
		ev := &event.Event{Source: "lessons"}
		var payload string
		if err := rows.Scan(&ev.ID, &ev.Type, &ev.Key, &payload); err != nil {
			rows.Close()
			return sample{}, fmt.Errorf("read the outbox: %w", err)
		}
		ev.Payload = []byte(payload)
		deliveries = append(deliveries, subscriber.Delivery{Event: ev, Attempt: 1})
	}
	if err := rows.Err(); err != nil {
		return sample{}, fmt.Errorf("read the outbox: %w", err)
	}
	silent := slog.New(slog.DiscardHandler)
	subscribers := []subscriber.Subscriber{
		lessons.NewAchievements(l.pinned, l.base, silent),
		lessons.NewAnalytics(l.pinned, l.base, silent),
		lessons.NewNotifications(l.pinned, l.base, silent, lessons.NewLogNotifier(silent)),
		lessons.NewRecommendations(l.pinned, l.base, silent),
	}
	begun := time.Now()
	errs := make([]error, len(subscribers))
	var all sync.WaitGroup
	for i, sub := range subscribers {
		all.Go(func() {
			for _, d := range deliveries {
				if errs[i] = sub.Handle(ctx, d); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return sample{rate: float64(len(deliveries)) / time.Since(begun).Seconds()}, errors.Join(errs...)
}
