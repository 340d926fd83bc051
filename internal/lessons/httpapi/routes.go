package httpapi

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// routes is one line per route: those that are open to everyone, and those of a known user.
func (a *api) routes(open, users huma.API) {
	huma.Register(users, route("complete-lesson", http.MethodPut, "/api/progress/lessons/{id}/complete", "Complete a lesson"), a.completeLesson)
	huma.Register(users, route("list-lessons", http.MethodGet, "/api/progress", "Completed lessons, newest first"), list(a, a.Service.Lessons))
	huma.Register(users, route("list-achievements", http.MethodGet, "/api/achievements", "Achievements, newest first"), list(a, a.Service.Achievements))
	huma.Register(users, route("list-notifications", http.MethodGet, "/api/notifications", "Notifications, newest first"), list(a, a.Service.Notifications))
	huma.Register(users, route("list-recommendations", http.MethodGet, "/api/recommendations", "Tracks, the one last worked at first"), list(a, a.Service.Recommendations))

	huma.Register(open, route("live", http.MethodGet, "/live", "The process answers"), a.live)
	huma.Register(open, route("ready", http.MethodGet, "/ready", "The database is reachable and its schema is current"), a.ready)
}

func route(id, method, path, summary string) huma.Operation {
	return huma.Operation{
		OperationID: id,
		Method:      method,
		Path:        path,
		Summary:     summary,
		// readBody has read and bounded the body before huma gets to it. A deadline on the connection
		// that outlives the reading would cancel the request's context (net/http goes on reading to
		// notice a client that leaves).
		MaxBodyBytes:    -1,
		BodyReadTimeout: -1,
	}
}
