package lessons

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/inbox"
)

// Recommendations counts completed lessons per learner and track. Counting an event twice would be
// wrong, so it counts through inbox.Once: it is the example to copy for effects that are not idempotent by
// themselves. It is safe for concurrent use.
type Recommendations struct {
	pool *postgres.Pool
	slot string
	log  *slog.Logger
}

// NewRecommendations returns the subscriber "recommendations", with its records in the inbox of slot.
func NewRecommendations(pool *postgres.Pool, slot string, log *slog.Logger) *Recommendations {
	return &Recommendations{pool: pool, slot: slot, log: log}
}

// Name is "recommendations".
func (*Recommendations) Name() string { return "recommendations" }

// Wants is true for "lesson.completed".
func (*Recommendations) Wants(eventType string) bool { return wantsLessons(eventType) }

// Types is what it Wants, as data.
func (*Recommendations) Types() []string { return lessonTypes() }

// Handle is HandleBatch for one event.
func (r *Recommendations) Handle(ctx context.Context, delivery subscriber.Delivery) error {
	return subscriber.HandleOne(ctx, r, delivery)
}

// HandleBatch counts the events that were not counted before, in one statement for all counters.
func (r *Recommendations) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	lessons, failed := readLessons(deliveries)
	if len(lessons) == 0 {
		return subscriber.FailedOf(failed)
	}
	readable := make([]subscriber.Delivery, len(lessons))
	byEvent := make(map[event.Identity]lesson, len(lessons))
	for i, l := range lessons {
		readable[i], byEvent[l.Delivery.Identity()] = l.Delivery, l
	}
	err := inbox.Once(ctx, r.pool, r.slot, r.Name(), readable,
		func(ctx context.Context, tx pgx.Tx, fresh []subscriber.Delivery) error {
			counted := make([]lesson, len(fresh))
			for i, delivery := range fresh {
				counted[i] = byEvent[delivery.Identity()]
			}
			return count(ctx, tx, counted)
		})
	if err != nil {
		return fmt.Errorf("count %d lessons: %w", len(lessons), err)
	}
	logHandled(ctx, r.log, "lesson counted", lessons)
	return subscriber.FailedOf(failed)
}

func count(ctx context.Context, tx pgx.Tx, lessons []lesson) error {
	// One row per counter, as ON CONFLICT DO UPDATE demands, and locked in the order of the key.
	_, err := tx.Exec(ctx, `
		INSERT INTO public.recommendations AS mine (user_id, track_slug, completed)
		SELECT user_id, track_slug, count(*)
		FROM unnest($1::bigint[], $2::text[]) AS lesson (user_id, track_slug)
		GROUP BY user_id, track_slug
		ORDER BY user_id, track_slug
		ON CONFLICT (user_id, track_slug)
		DO UPDATE SET completed = mine.completed + excluded.completed, updated_at = now()`,
		column(lessons, userOf), column(lessons, trackOf))
	return err
}
