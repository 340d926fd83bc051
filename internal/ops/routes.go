package ops

import (
	"context"
	"net/http"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/replay"
)

var (
	pageLimit = parameter{"limit", "integer", "How many at most, from 1 to 1000; 100 by default."}
	pageAfter = parameter{"after", "string", "What the page before has said as next."}
	byTime    = []parameter{{"since", "date-time", "From this time on."}, {"until", "date-time", "Before this time."}}
	byOwed    = append([]parameter{
		{"subscriber", "string", "Of this subscriber."}, {"source", "string", "Events of this source."},
		{"state", "string", "waiting or dead; both by default."}, {"type", "string", "Events of this type."},
		{"key", "string", "Events of this key."}, {"event", "string", "Events with this id."},
		{"occurrence", "string", "Where an id came again: this one of its events."}, {"error", "string", "A part of the last error."},
		pageLimit, pageAfter,
	}, byTime...)
	byNote = []parameter{pageLimit, {"before", "integer", "Notes with numbers below this one."}}
)

// route adds what is below /v1, and the description of it.
func (s *Server) route() {
	service := s.options.Admin
	routes := []route{
		{method: "GET", path: "/v1/status", summary: "Where slot, leader and subscribers stand",
			answer: func(ctx context.Context, _ *http.Request) (any, error) { return s.toldStatus(ctx) }, answers: admin.Status{}},
		{method: "GET", path: "/v1/progress", summary: "What the leader has in memory; a standby sends there",
			direct: s.leaderProgress, answers: relay.Progress{}},
		{method: "GET", path: "/v1/subscribers", summary: "The subscribers alone", answer: s.subscribers, answers: subscribersAnswer{}},
		{method: "POST", path: "/v1/subscribers/{name}/pause", summary: "From now on the subscriber is owed everything",
			answer: changeState(service.Pause, admin.Paused), body: reasons{}, answers: changedState{}},
		{method: "POST", path: "/v1/subscribers/{name}/resume", summary: "What it is owed is paid, then it joins the stream",
			answer: changeState(service.Resume, admin.Live), body: reasons{}, answers: changedState{}},
		{method: "GET", path: "/v1/owed", summary: "Deliveries in the order in which they are sent, a page at a time",
			answer: s.listOwed, query: byOwed, answers: admin.OwedPage{}},
		{method: "GET", path: "/v1/owed/{event}", summary: "All that is owed of an event, with payload and headers", answer: s.showOwed, answers: owedAnswer{}},
		{method: "POST", path: "/v1/owed/redrive", summary: "Send dead deliveries again", answer: s.redrive, body: choice{}, answers: admin.Redriven{}},
		{method: "POST", path: "/v1/owed/discard", summary: "Give deliveries up for good", answer: s.discard, body: choice{}, answers: admin.Discarded{}},
		{method: "POST", path: "/v1/owed/add", summary: "Send a subscriber events of the tables again", answer: s.add, body: addition{}, answers: admin.Added{}},
		{method: "GET", path: "/v1/events", summary: "Rows of a source's table, without payloads, a page at a time", answer: s.listEvents,
			query: append([]parameter{{"source", "string", "The source; it must be given."}, {"type", "string", "Events of this type."},
				{"key", "string", "Events of this key."}, pageLimit, pageAfter}, byTime...), answers: admin.EventsPage{}},
		{method: "GET", path: "/v1/events/{event}", summary: "Everything that is known of an event", answer: s.event, answers: admin.Event{}},
		{method: "GET", path: "/v1/attempts", summary: "The last attempts, or a stream of them; a standby sends to the leader", direct: s.attempts, followed: true,
			query: []parameter{{"event", "string", "Of this event."}, {"subscriber", "string", "At this subscriber."}, {"type", "string", "Events of this type."},
				{"key", "string", "Events of this key."}, {"outcome", "string", "delivered, failed or dead."},
				{"limit", "integer", "How many at most, from 0 to 10000; 100 by default."}, {"follow", "boolean", "A stream: the last ones, then each as it ends."},
				{"after", "integer", "With follow: begin behind the attempt with this seq."}}, answers: admin.Remembered{}},
		{method: "GET", path: "/v1/replays", summary: "The newest replays", answer: s.listReplays, answers: replaysAnswer{}},
		{method: "GET", path: "/v1/replays/{id}", summary: "How far a replay is", answer: s.showReplay, answers: replay.Replay{}},
		{method: "POST", path: "/v1/replays", summary: "Send a subscriber events again that a person has chosen", answer: s.replay, body: replayRequest{}, answers: replayAnswer{}},
		{method: "POST", path: "/v1/replays/{id}/cancel", summary: "End a replay", answer: s.cancelReplay, body: reasons{}, answers: replay.Replay{}},
		{method: "GET", path: "/v1/audit", summary: "What people and relays have changed, and why, the newest first", answer: s.listNotes(),
			query: append([]parameter{{"action", "string", "Notes of this action."}}, byNote...), answers: admin.AuditPage{}},
		{method: "GET", path: "/v1/slot", summary: "The slot, and what is recorded of it", answer: s.slot, answers: admin.SlotRecord{}},
		{method: "GET", path: "/v1/slot/history", summary: "When the slot was made, repaired, or its names changed, the newest first",
			answer: s.listNotes("repair", "rename"), query: byNote, answers: admin.AuditPage{}},
		{method: "GET", path: "/v1/repairs", summary: "Repairs with reason, rows and duration, the newest first", answer: s.listNotes("repair"), query: byNote, answers: admin.AuditPage{}},
		{method: "GET", path: "/v1/doctor", summary: "What the doctor of this relay has found last; it looks every minute", answer: s.doctor, answers: doctor.Said{}},
		{method: "GET", path: "/v1/sources", summary: "What is found in the tables of the sources", answer: s.sources, answers: sourcesAnswer{}},
	}
	for _, r := range routes {
		handler := r.direct
		if handler == nil {
			answer := r.answer
			if r.query == nil {
				answer = withoutQuery(answer)
			}
			handler = func(w http.ResponseWriter, request *http.Request) { s.serveV1(w, request, answer) }
		}
		s.mux.HandleFunc(r.method+" "+r.path, handler)
	}
	document := description(routes, s.options.Version)
	s.mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document) // an error means that the client has gone
	})
}
