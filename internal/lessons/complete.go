// Package lessons is the reference service, a learning platform: the use case (a learner completes a lesson), the
// event that it writes, and the four subscribers that react, one file each.
//
// Complete commits the completion and its event in one transaction, or neither. It never publishes anything, and does
// not know who reacts; a subscriber does not know the others. Package lessons/httpapi is the API. How the event becomes
// a row is package outbox, the next one to read.
package lessons

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"

	"github.com/backendstart/walpost/internal/outbox"
	"github.com/backendstart/walpost/internal/postgres"
)

// Service completes lessons and shows what came of them. It is safe for concurrent use.
type Service struct {
	pool  *postgres.Pool
	clock func() time.Time
	ids   func(time.Time) string
}

// New returns a Service on the database of pool, which stays the caller's to close.
func New(pool *postgres.Pool) *Service {
	return &Service{pool: pool, clock: time.Now, ids: newULID}
}

func newULID(t time.Time) string {
	return ulid.MustNew(ulid.Timestamp(t), rand.Reader).String()
}

// A Completion is the wish to have a lesson completed. Its fields have been checked by the caller; the
// database refuses slugs over 128 characters and NUL.
type Completion struct {
	UserID, LessonID      int64
	TrackSlug, LessonSlug string
	// CorrelationID is stored with the event and logged by everyone who handles it.
	CorrelationID string
	// TraceParent is the W3C trace context of the request, "" where there is none.
	TraceParent string
}

// Result tells the first completion of a lesson, however often it is asked for.
type Result struct {
	EventID string
	// CompletedAt is in UTC with the microseconds that Postgres keeps.
	CompletedAt time.Time
	// AlreadyCompleted is true when this call changed nothing and wrote no event.
	AlreadyCompleted bool
}

// ConflictError means that the lesson was completed before with other slugs: what stands stays.
type ConflictError struct {
	LessonID              int64
	TrackSlug, LessonSlug string
	Result                Result
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("lesson %d is completed already, as lesson_slug %q of track_slug %q", e.LessonID, e.LessonSlug, e.TrackSlug)
}

// Complete marks the lesson as completed and adds "lesson.completed" to the outbox in one transaction.
// Only the first call for a user and lesson does so: every later one, also one that arrives at the same
// moment, returns the result of the first, or a *ConflictError if it names other slugs.
//
// After an error the caller cannot know whether the transaction was committed: COMMIT is on its way with everything
// else, so a deadline, a caller that leaves or a connection that breaks does not keep it from the server. To ask again
// is always right.
func (s *Service) Complete(ctx context.Context, c Completion) (Result, error) {
	// The time is that of the call, which may have to wait for its turn. What puts the events of a user in
	// order is the number of their rows, not their times.
	now := s.clock().UTC().Truncate(time.Microsecond)
	result := Result{EventID: s.ids(now), CompletedAt: now}
	err := postgres.InBatch(ctx, s.pool, func(batch *pgx.Batch) error {
		queueLock(batch, c)
		return queueCompletion(batch, c, &result)
	})
	if err == nil && result.AlreadyCompleted {
		result, err = s.first(ctx, c)
	}
	if err != nil {
		return Result{}, fmt.Errorf("complete lesson %d of user %d: %w", c.LessonID, c.UserID, err)
	}
	return result, nil
}

// queueLock lets one writer per user in at a time, to the end of the commit: only so are the outbox rows of a
// user numbered in the order in which they commit. The row of the lesson would not do, since two lessons of a
// user must not pass each other either; so each user has a row to lock. It is locked although no condition is true
// that would update it. (PostgreSQL manual, "INSERT", ON CONFLICT)
func queueLock(batch *pgx.Batch, c Completion) {
	batch.Queue(`
		INSERT INTO public.learners (user_id) VALUES ($1)
		ON CONFLICT (user_id) DO UPDATE SET user_id = excluded.user_id WHERE false`, c.UserID)
}

// queueCompletion stores the completion that result has and its event, unless the lesson is completed already. It is
// one statement, so that there is an event exactly if a row was stored, also when a trigger stores another row than
// this one. It stands behind the lock and not in the same statement: only so does it see what the lock has waited for.
func queueCompletion(batch *pgx.Batch, c Completion, result *Result) error {
	ev, err := completed(c, *result)
	if err != nil {
		return err
	}
	insertEvent, args, err := outbox.InsertFrom("stored", ev,
		c.UserID, c.LessonID, c.TrackSlug, c.LessonSlug, result.CompletedAt, result.EventID)
	if err != nil {
		return err
	}
	batch.Queue(`
		WITH stored AS (
			INSERT INTO public.lesson_progress AS p
				(user_id, lesson_id, track_slug, lesson_slug, completed, completed_at, event_id)
			VALUES ($1, $2, $3, $4, true, $5, $6)
			ON CONFLICT (user_id, lesson_id) DO UPDATE
				SET track_slug = excluded.track_slug, lesson_slug = excluded.lesson_slug,
					completed = true, completed_at = excluded.completed_at, event_id = excluded.event_id
				WHERE NOT p.completed
			RETURNING p.user_id
		)`+insertEvent, args...,
	).Fn = func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		if err != nil {
			return fmt.Errorf("store progress and event %q: %w", ev.ID, err)
		}
		result.AlreadyCompleted = tag.RowsAffected() == 0
		return nil
	}
	return nil
}

// completed is the event of a completion.
func completed(c Completion, result Result) (outbox.New, error) {
	payload, err := json.Marshal(LessonCompleted{
		EventID:       result.EventID,
		Type:          TypeLessonCompleted,
		CorrelationID: c.CorrelationID,
		OccurredAt:    result.CompletedAt,
		UserID:        c.UserID,
		LessonID:      c.LessonID,
		TrackSlug:     c.TrackSlug,
		LessonSlug:    c.LessonSlug,
	})
	if err != nil {
		return outbox.New{}, fmt.Errorf("encode event: %w", err)
	}
	headers := map[string]string{"correlation_id": c.CorrelationID}
	if c.TraceParent != "" {
		headers["traceparent"] = c.TraceParent
	}
	return outbox.New{
		ID:            result.EventID,
		Type:          TypeLessonCompleted,
		AggregateType: "lesson",
		AggregateID:   strconv.FormatInt(c.LessonID, 10),
		Key:           strconv.FormatInt(c.UserID, 10),
		Payload:       payload,
		Headers:       headers,
	}, nil
}

// first reads the completion that was there already, and compares it with c. It stays as it is, so this needs no
// transaction.
func (s *Service) first(ctx context.Context, c Completion) (Result, error) {
	result := Result{AlreadyCompleted: true}
	var track, lesson string
	err := s.pool.QueryRow(ctx, `
		SELECT event_id, completed_at AT TIME ZONE 'UTC', track_slug, lesson_slug
		FROM public.lesson_progress WHERE user_id = $1 AND lesson_id = $2 AND completed`, c.UserID, c.LessonID).
		Scan(&result.EventID, &result.CompletedAt, &track, &lesson)
	if errors.Is(err, pgx.ErrNoRows) {
		// Someone deleted the row between the two statements, which no part of walpost does.
		return Result{}, errors.New("progress vanished while it was read: ask again")
	}
	if err != nil {
		return Result{}, fmt.Errorf("read progress: %w", err)
	}
	if track != c.TrackSlug || lesson != c.LessonSlug {
		return Result{}, &ConflictError{LessonID: c.LessonID, TrackSlug: track, LessonSlug: lesson, Result: result}
	}
	return result, nil
}
