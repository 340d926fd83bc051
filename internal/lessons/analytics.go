package lessons

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
)

// Analytics keeps a row per completed lesson in analytics_events. The event id is the primary key, which
// makes it idempotent without further means. It is safe for concurrent use.
type Analytics struct {
	pool *postgres.Pool
	slot string
	log  *slog.Logger
}

// NewAnalytics returns the subscriber "analytics", whose deliveries are those of slot.
func NewAnalytics(pool *postgres.Pool, slot string, log *slog.Logger) *Analytics {
	return &Analytics{pool: pool, slot: slot, log: log}
}

// Name is "analytics".
func (*Analytics) Name() string { return "analytics" }

// Wants is true for "lesson.completed".
func (*Analytics) Wants(eventType string) bool { return wantsLessons(eventType) }

// Types is what it Wants, as data.
func (*Analytics) Types() []string { return lessonTypes() }

// Handle is HandleBatch for one event.
func (a *Analytics) Handle(ctx context.Context, delivery subscriber.Delivery) error {
	return subscriber.HandleOne(ctx, a, delivery)
}

// HandleBatch writes all readable events of the batch in one statement.
func (a *Analytics) HandleBatch(ctx context.Context, deliveries []subscriber.Delivery) error {
	lessons, failed := readLessons(deliveries)
	if len(lessons) > 0 {
		// Every batch inserts in the order of the key, so that two with events in common cannot deadlock.
		err := execute(ctx, a.pool, a.slot, deliveries[0].Term, `
			INSERT INTO public.analytics_events (event_id, event_type, user_id, track_slug, lesson_slug, occurred_at)
			SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::timestamptz[])
			ORDER BY 1
			ON CONFLICT (event_id) DO NOTHING`,
			column(lessons, idOf),
			column(lessons, func(l lesson) string { return l.Delivery.Type }),
			column(lessons, userOf),
			column(lessons, trackOf),
			column(lessons, func(l lesson) string { return l.LessonSlug }),
			column(lessons, func(l lesson) time.Time { return l.OccurredAt }))
		if err != nil {
			return fmt.Errorf("write to analytics_events for a batch of %d: %w", len(lessons), err)
		}
		logHandled(ctx, a.log, "lesson recorded", lessons)
	}
	return subscriber.FailedOf(failed)
}
