package lessons

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Lesson is one that the user has completed.
type Lesson struct {
	LessonID    int64     `json:"lesson_id"`
	TrackSlug   string    `json:"track_slug"`
	LessonSlug  string    `json:"lesson_slug"`
	CompletedAt time.Time `json:"completed_at"`
	EventID     string    `json:"event_id" doc:"Id of the lesson.completed event"`
}

// An Achievement was earned by completing lessons.
type Achievement struct {
	Slug     string    `json:"slug"`
	EarnedAt time.Time `json:"earned_at"`
}

// A Notification tells the user about an event.
type Notification struct {
	EventID   string     `json:"event_id"`
	Message   string     `json:"message"`
	CreatedAt time.Time  `json:"created_at"`
	SentAt    *time.Time `json:"sent_at" doc:"When the mail went out; null until then"`
}

// A Recommendation is a track that the user is at, with the number of lessons completed in it.
type Recommendation struct {
	TrackSlug string    `json:"track_slug"`
	Completed int       `json:"completed"`
	UpdatedAt time.Time `json:"updated_at"`
}

// The times are read AT TIME ZONE 'UTC': pgx returns a timestamptz in the zone of this process, and
// what we answer must not depend on where we run.

// Lessons returns the user's completed lessons, newest first, at most limit.
func (s *Service) Lessons(ctx context.Context, userID int64, limit int) ([]Lesson, error) {
	return read[Lesson](ctx, s, "lessons", userID, limit, `
		SELECT lesson_id, track_slug, lesson_slug, completed_at AT TIME ZONE 'UTC', event_id
		FROM public.lesson_progress WHERE user_id = $1 AND completed
		ORDER BY completed_at DESC, lesson_id DESC LIMIT $2`)
}

// Achievements returns what the user has earned, newest first, at most limit.
func (s *Service) Achievements(ctx context.Context, userID int64, limit int) ([]Achievement, error) {
	return read[Achievement](ctx, s, "achievements", userID, limit, `
		SELECT achievement_slug, earned_at AT TIME ZONE 'UTC'
		FROM public.user_achievements WHERE user_id = $1
		ORDER BY earned_at DESC, achievement_slug LIMIT $2`)
}

// Notifications returns the user's notifications, newest first, at most limit.
func (s *Service) Notifications(ctx context.Context, userID int64, limit int) ([]Notification, error) {
	return read[Notification](ctx, s, "notifications", userID, limit, `
		SELECT event_id, message, created_at AT TIME ZONE 'UTC', sent_at AT TIME ZONE 'UTC'
		FROM public.notifications WHERE user_id = $1
		ORDER BY created_at DESC, event_id DESC LIMIT $2`)
}

// Recommendations returns the user's tracks, the one last worked at first, at most limit.
func (s *Service) Recommendations(ctx context.Context, userID int64, limit int) ([]Recommendation, error) {
	return read[Recommendation](ctx, s, "recommendations", userID, limit, `
		SELECT track_slug, completed, updated_at AT TIME ZONE 'UTC'
		FROM public.recommendations WHERE user_id = $1
		ORDER BY updated_at DESC, track_slug LIMIT $2`)
}

func read[T any](ctx context.Context, s *Service, what string, userID int64, limit int, sql string) ([]T, error) {
	rows, err := s.pool.Query(ctx, sql, userID, limit)
	if err != nil {
		return nil, fmt.Errorf("read %s of user %d: %w", what, userID, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("read %s of user %d: %w", what, userID, err)
	}
	return found, nil
}
