package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/testdb"
)

func wantUnavailable(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	wantProblem(t, w, http.StatusServiceUnavailable, "")
	if w.Header().Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
}

func TestAPI_says503WhileTheDatabaseIsAwayAndRecoversByItself(t *testing.T) {
	server := testdb.NewServer(t, nil)
	db := testdb.On(t, server)
	s := newService(t, db.Pinned)
	if w := s.do(put(lesson7, goodBody)); w.Code != http.StatusOK {
		t.Fatalf("status before the outage is %d: %s", w.Code, w.Body)
	}

	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Several, since the pool may hold connections that it does not yet know to be broken.
	for range 5 {
		wantUnavailable(t, s.do(put("/api/progress/lessons/8/complete", goodBody)))
		wantUnavailable(t, s.do(request(http.MethodGet, "/api/progress", "")))
		wantUnavailable(t, s.do(request(http.MethodGet, "/ready", "")))
	}
	if w := s.do(request(http.MethodGet, "/live", "")); w.Code != http.StatusOK {
		t.Errorf("/live is %d while the database is away, want 200", w.Code)
	}
	// What is wrong with a request does not depend on the database.
	wantProblem(t, s.do(put(lesson7, "{}")), http.StatusUnprocessableEntity, "track_slug")

	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*http.Request{put("/api/progress/lessons/8/complete", goodBody), request(http.MethodGet, "/ready", "")} {
		if w := s.do(r); w.Code != http.StatusOK {
			t.Errorf("%s after the outage is %d: %s", r.URL, w.Code, w.Body)
		}
	}
	if n := db.Int("SELECT count(*) FROM public.outbox"); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
}

// A server that hangs looks like one that is slow: the request's own deadline ends the wait.
func TestAPI_says503WhenTheDatabaseDoesNotAnswerInTime(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned, func(o *Options) { o.Timeout = 200 * time.Millisecond })
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "LOCK TABLE public.lesson_progress"); err != nil {
		t.Fatal(err)
	}
	wantUnavailable(t, s.do(put(lesson7, goodBody)))
	if !strings.Contains(s.log.String(), "database not available") {
		t.Errorf("the log does not say why: %s", s.log)
	}
}

// F-18
func TestCompleteLesson_is500WithoutACompletionWhenTheEventCannotBeWritten(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	db.Exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'sesame'; END $$`)
	db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	w := s.do(put(lesson7, goodBody))
	wantProblem(t, w, http.StatusInternalServerError, "")
	if strings.Contains(w.Body.String(), "sesame") {
		t.Errorf("the answer shows the error of the database: %s", w.Body)
	}
	if !strings.Contains(s.log.String(), "sesame") || !strings.Contains(s.log.String(), w.Header().Get("X-Correlation-Id")) {
		t.Errorf("the log lacks the error or its correlation id: %s", s.log)
	}
	if n := db.Int("SELECT count(*) FROM public.lesson_progress"); n != 0 {
		t.Errorf("%d completions, want none", n)
	}
	db.Exec("DROP TRIGGER refuse ON public.outbox")
	if w := s.do(put(lesson7, goodBody)); w.Code != http.StatusOK {
		t.Errorf("status afterwards is %d: %s", w.Code, w.Body)
	}
}

func TestReady_failsWhenTheSchemaIsNotCurrent(t *testing.T) {
	s := newService(t, testdb.NewEmpty(t).Pinned)
	wantUnavailable(t, s.do(request(http.MethodGet, "/ready", "")))
	if !strings.Contains(s.log.String(), "walpost migrate") {
		t.Errorf("the log does not say what to do: %s", s.log)
	}
}
