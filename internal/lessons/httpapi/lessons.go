package httpapi

import (
	"context"
	"time"

	"github.com/backendstart/walpost/internal/lessons"
)

type completeLessonInput struct {
	ID   int64 `path:"id" minimum:"1" doc:"Lesson id"`
	Body struct {
		TrackSlug  string `json:"track_slug" pattern:"^[a-z0-9]+(-[a-z0-9]+)*$" maxLength:"128" example:"go-basics"`
		LessonSlug string `json:"lesson_slug" pattern:"^[a-z0-9]+(-[a-z0-9]+)*$" maxLength:"128" example:"slices"`
	}
}

type completeLessonOutput struct {
	Body struct {
		Status           string    `json:"status" example:"completed"`
		EventID          string    `json:"event_id" doc:"Id of the lesson.completed event"`
		CompletedAt      time.Time `json:"completed_at" doc:"When the lesson was completed first"`
		AlreadyCompleted bool      `json:"already_completed" doc:"True when this request changed nothing"`
	}
}

func (a *api) completeLesson(ctx context.Context, in *completeLessonInput) (*completeLessonOutput, error) {
	call := callOf(ctx)
	result, err := a.Service.Complete(ctx, lessons.Completion{
		UserID:        call.userID,
		LessonID:      in.ID,
		TrackSlug:     in.Body.TrackSlug,
		LessonSlug:    in.Body.LessonSlug,
		CorrelationID: call.correlationID,
		TraceParent:   call.traceParent,
	})
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	var out completeLessonOutput
	out.Body.Status = "completed"
	out.Body.EventID = result.EventID
	out.Body.CompletedAt = result.CompletedAt
	out.Body.AlreadyCompleted = result.AlreadyCompleted
	return &out, nil
}

type listInput struct {
	Limit int `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"At most so many"`
}

type listOutput[T any] struct {
	Body struct {
		Items []T `json:"items" nullable:"false"`
	}
}

// list makes the handler of a collection of the calling user from the use case that reads it.
func list[T any](a *api, read func(ctx context.Context, userID int64, limit int) ([]T, error)) func(context.Context, *listInput) (*listOutput[T], error) {
	return func(ctx context.Context, in *listInput) (*listOutput[T], error) {
		items, err := read(ctx, callOf(ctx).userID, in.Limit)
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		var out listOutput[T]
		out.Body.Items = items
		return &out, nil
	}
}
