package lessons

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/subscriber/inbox"
)

// lesson is a delivery of "lesson.completed" whose payload was understood.
type lesson struct {
	LessonCompleted
	Delivery subscriber.Delivery
	// Index is the place of the delivery in its batch.
	Index int
}

// wantsLessons is the Wants of every subscriber in this package.
func wantsLessons(eventType string) bool { return eventType == TypeLessonCompleted }

// lessonTypes is the Types of every subscriber in this package.
func lessonTypes() []string { return []string{TypeLessonCompleted} }

// readLessons sorts a batch into what can be handled and what no later attempt could read either.
// An event that stands in the batch twice is handled once: the second is done when the first is.
func readLessons(deliveries []subscriber.Delivery) (lessons []lesson, failed map[int]error) {
	lessons = make([]lesson, 0, len(deliveries))
	failed = make(map[int]error)
	seen := make(map[event.Identity]bool, len(deliveries))
	for i, delivery := range deliveries {
		completed, err := readLesson(delivery)
		if err != nil {
			failed[i] = subscriber.Permanent(err)
			continue
		}
		if !seen[delivery.Identity()] {
			seen[delivery.Identity()] = true
			lessons = append(lessons, lesson{completed, delivery, i})
		}
	}
	return lessons, failed
}

// The widths of the columns in migrations/lessons. Checked here, because one value that is too long
// would otherwise fail the statement for the whole batch, and again at every attempt.
const (
	maxEventID = 64
	maxSlug    = 128
)

func readLesson(delivery subscriber.Delivery) (LessonCompleted, error) {
	completed, err := ParseLessonCompleted(delivery.Payload)
	if err != nil {
		return LessonCompleted{}, err
	}
	if completed.OccurredAt.IsZero() {
		return LessonCompleted{}, fmt.Errorf("payload of %s: occurred_at is missing", TypeLessonCompleted)
	}
	for _, text := range []struct {
		name, value string
		max         int
	}{
		{"event id", delivery.ID, maxEventID},
		{"track_slug", completed.TrackSlug, maxSlug},
		{"lesson_slug", completed.LessonSlug, maxSlug},
	} {
		if n := utf8.RuneCountInString(text.value); n > text.max {
			return LessonCompleted{}, fmt.Errorf("%s of %s: %d characters, at most %d can be stored",
				text.name, TypeLessonCompleted, n, text.max)
		}
		// A json column lets \u0000 through; no text column can hold it.
		if strings.ContainsRune(text.value, 0) {
			return LessonCompleted{}, fmt.Errorf("%s of %s: a NUL character cannot be stored",
				text.name, TypeLessonCompleted)
		}
	}
	return completed, nil
}

// correlationID is the header's, or the payload's where the source has no headers.
func (l lesson) correlationID() string {
	if id := l.Delivery.CorrelationID(); id != "" {
		return id
	}
	return l.CorrelationID
}

// logHandled writes one line per event at debug level. Failures are returned, not logged: the code
// that decides what happens to the event writes that line.
func logHandled(ctx context.Context, log *slog.Logger, message string, lessons []lesson) {
	if !log.Enabled(ctx, slog.LevelDebug) {
		return // reading the correlation ids costs more than the line
	}
	for _, l := range lessons {
		log.DebugContext(ctx, message, "event", l.Delivery.ID, "correlation_id", l.correlationID(),
			"user_id", l.UserID, "attempt", l.Delivery.Attempt)
	}
}

// execute is one statement in a transaction of its own, so that its commit waits for the flush whatever
// the role's synchronous_commit is: once the event counts as delivered, no one sends it again. It is part of
// the leadership with that term; with term 0 of none.
func execute(ctx context.Context, pool *postgres.Pool, slot string, term int64, sql string, args ...any) error {
	return postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		inbox.HoldTerm(batch, tx, slot, term)
		batch.Queue(sql, args...)
		return tx.SendBatch(ctx, batch).Close()
	})
}

// column takes one value out of each lesson: an argument for unnest.
func column[T any](lessons []lesson, value func(lesson) T) []T {
	values := make([]T, len(lessons))
	for i, l := range lessons {
		values[i] = value(l)
	}
	return values
}

func idOf(l lesson) string    { return l.Delivery.ID }
func userOf(l lesson) int64   { return l.UserID }
func trackOf(l lesson) string { return l.TrackSlug }
