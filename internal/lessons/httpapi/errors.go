package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/postgres"
)

// This file is the one place where errors become problems (RFC 9457).

// retryAfter is what we tell clients while the database is away, in seconds: about the time in which a
// failover or a restart is over, and nothing that would make a queue of them come back at once.
const retryAfter = "5"

// Codes of Postgres after which the same request may well succeed (manual, appendix A).
var passing = map[string]bool{
	"40001": true, // serialization_failure
	"40P01": true, // deadlock_detected
	"55P03": true, // lock_not_available
	"57014": true, // query_canceled, by statement_timeout
}

// problem turns an error of a use case into an answer, and logs it, because here it is decided what
// becomes of it. What the error says stays in the log.
func (a *api) problem(ctx context.Context, err error) error {
	log := a.log.With("correlation_id", callOf(ctx).correlationID)
	var standing *lessons.ConflictError
	switch {
	case errors.As(err, &standing):
		log.Debug("request refused", "err", err)
		return conflict(standing)
	case errors.Is(ctx.Err(), context.Canceled):
		// The client has gone; the answer is for no one.
		log.Debug("request abandoned by the client", "err", err)
		return unavailable("the request was abandoned")
	case errors.Is(err, context.DeadlineExceeded), postgres.Unavailable(err), passing[postgres.Code(err)]:
		log.Warn("request failed, database not available", "err", err)
		return unavailable("the database is not available: try again later, repeating the request is safe")
	default:
		log.Error("request failed", "err", err)
		return huma.NewError(http.StatusInternalServerError,
			"something went wrong on our side: the log has more under the correlation id of this answer")
	}
}

// conflictProblem is the problem of a request that contradicts what stands, with what stands.
type conflictProblem struct {
	*huma.ErrorModel
	Completed completedLesson `json:"completed"`
}

type completedLesson struct {
	TrackSlug   string    `json:"track_slug"`
	LessonSlug  string    `json:"lesson_slug"`
	EventID     string    `json:"event_id"`
	CompletedAt time.Time `json:"completed_at"`
}

func conflict(standing *lessons.ConflictError) error {
	detail := standing.Error() + ": it stays so, and this request has changed nothing"
	model := &huma.ErrorModel{Status: http.StatusConflict, Title: http.StatusText(http.StatusConflict), Detail: detail}
	return &conflictProblem{model, completedLesson{standing.TrackSlug, standing.LessonSlug, standing.Result.EventID, standing.Result.CompletedAt}}
}

func unavailable(detail string) error {
	return huma.ErrorWithHeaders(huma.NewError(http.StatusServiceUnavailable, detail), http.Header{"Retry-After": {retryAfter}})
}

// writeProblem answers where huma is not in charge, or not yet.
func writeProblem(w http.ResponseWriter, status int, detail string, wrong ...error) {
	httpserver.WriteProblem(w, status, huma.NewError(status, detail, wrong...))
}

// withoutValues keeps huma from sending back what was sent to us: it may be large, or secret.
func withoutValues(_ huma.Context, _ string, answer any) (any, error) {
	if problem, ok := answer.(*huma.ErrorModel); ok {
		for _, detail := range problem.Errors {
			detail.Value = nil
		}
	}
	return answer, nil
}
