package ops

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strings"

	"github.com/backendstart/walpost/internal/admin"
	"github.com/backendstart/walpost/internal/debt"
	"github.com/backendstart/walpost/internal/httpserver"
	"github.com/backendstart/walpost/internal/lane"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/relay"
	"github.com/backendstart/walpost/internal/replay"
	"github.com/backendstart/walpost/internal/store"
)

// toldStatus is the status with what this relay has in memory.
func (s *Server) toldStatus(ctx context.Context) (admin.Status, error) {
	status, err := s.options.Admin.Status(ctx)
	if err == nil {
		status.AddProgress(s.options.Relay.Progress())
	}
	return status, err
}

// subscribersAnswer is the answer of GET /v1/subscribers.
type subscribersAnswer struct {
	Subscribers []admin.Subscriber `json:"subscribers"`
}

func (s *Server) subscribers(ctx context.Context, _ *http.Request) (any, error) {
	status, err := s.toldStatus(ctx)
	return subscribersAnswer{status.Subscribers}, err
}

// owedAnswer is the answer of GET /v1/owed/{event}.
type owedAnswer struct {
	Owed []admin.Delivery `json:"owed"`
}

func (s *Server) showOwed(ctx context.Context, r *http.Request) (any, error) {
	deliveries, err := s.options.Admin.Show(ctx, r.PathValue("event"))
	return owedAnswer{deliveries}, err
}

func (s *Server) event(ctx context.Context, r *http.Request) (any, error) {
	e, err := s.options.Admin.Event(ctx, r.PathValue("event"))
	if err != nil {
		return nil, err
	}
	e.AddRemembered(s.remembered(relay.AttemptFilter{Event: e.ID}, maxAttempts))
	return e, e.Known()
}

// reasons are in the body of every request that changes something.
type reasons struct {
	Who string `json:"who"`
	Why string `json:"why" max:"2000"`
}

// by is what the audit shows of who asks. The token is one for all, so a name is what the caller says.
func (b reasons) by(r *http.Request) string {
	return strings.TrimSpace(b.Who + " via ops API from " + r.RemoteAddr)
}

// changedState is the answer of a pause or a resume.
type changedState struct {
	Subscriber string `json:"subscriber"`
	State      string `json:"state"`
}

func changeState(change func(ctx context.Context, subscriber, who, why string) error, state string) func(context.Context, *http.Request) (any, error) {
	return func(ctx context.Context, r *http.Request) (any, error) {
		var body reasons
		if err := decode(r, &body); err != nil {
			return nil, err
		}
		name := r.PathValue("name")
		return changedState{name, state}, change(ctx, name, body.by(r), body.Why)
	}
}

func (s *Server) listOwed(ctx context.Context, r *http.Request) (any, error) {
	filter, after, err := filterOf(r)
	if err != nil {
		return nil, err
	}
	return s.options.Admin.OwedPage(ctx, filter, after)
}

// addition is the body of POST /v1/owed/add.
type addition struct {
	reasons
	Subscriber string     `json:"subscriber"`
	Events     []string   `json:"events"`
	State      lane.State `json:"state"`
}

func (s *Server) add(ctx context.Context, r *http.Request) (any, error) {
	var body addition
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	switch {
	case body.Subscriber == "" || len(body.Events) == 0:
		return nil, debt.Refused("subscriber and events must be given")
	case body.Why == "":
		return nil, needsWhy
	case body.State == "":
		body.State = lane.StateWaiting
	}
	return s.options.Admin.Add(ctx, body.Subscriber, body.Events, body.State, body.by(r), body.Why)
}

const needsWhy = debt.Refused("why must be given: it is kept in walpost.audit")

// serveV1 lets in requests that may change or read, and turns errors into problems.
func (s *Server) serveV1(w http.ResponseWriter, r *http.Request, answer func(context.Context, *http.Request) (any, error)) {
	admit := s.refuseRead
	if r.Method == http.MethodPost {
		admit = s.refuseChange
	}
	if refused := admit(r); refused != nil {
		s.refuse(w, refused)
		return
	}
	if r.Method == http.MethodPost {
		// Browsers say where a request comes from. A form cannot send this content type.
		if err := s.crossOrigin.Check(r); err != nil {
			s.problem(w, http.StatusForbidden, "a page of another site must not change anything: "+err.Error())
			return
		}
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			s.problem(w, http.StatusUnsupportedMediaType, "send a JSON object with Content-Type: application/json")
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	var body any
	err := checkPath(r)
	if err == nil {
		body, err = answer(ctx, r)
	}
	if err == nil {
		httpserver.WriteJSON(w, http.StatusOK, body)
		return
	}
	var refused debt.Refused
	var large *http.MaxBytesError
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &refused):
		status = http.StatusBadRequest
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, store.ErrNoSubscriber), errors.Is(err, admin.ErrNotOwed), errors.Is(err, admin.ErrNoEvent), errors.Is(err, replay.ErrNoReplay):
		status = http.StatusNotFound
	case errors.Is(err, replay.ErrOver):
		status = http.StatusConflict
	case postgres.Unavailable(err):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "5")
	}
	if status >= http.StatusInternalServerError {
		s.options.Log.Warn("request to the ops API failed", "path", r.URL.Path, "err", err)
	}
	s.problem(w, status, err.Error())
}
