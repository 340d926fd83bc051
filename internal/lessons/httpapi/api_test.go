package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/backendstart/walpost/internal/lessons"
	"github.com/backendstart/walpost/internal/postgres"
	"github.com/backendstart/walpost/internal/testdb"
	"github.com/backendstart/walpost/migrations"
)

const lesson7 = "/api/progress/lessons/7/complete"

// service is the API on a database, with dev auth, and what it logs.
type service struct {
	http.Handler
	log      *bytes.Buffer
	registry *prometheus.Registry
}

func newService(t *testing.T, pool *postgres.Pool, change ...func(*Options)) service {
	t.Helper()
	auth, err := NewDevAuth("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := service{log: new(bytes.Buffer), registry: prometheus.NewRegistry()}
	options := Options{
		Service:  lessons.New(pool),
		Auth:     auth,
		Ready:    func(ctx context.Context) error { return migrations.Check(ctx, pool, migrations.Lessons) },
		Log:      slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Version:  "test",
		MaxBody:  4 << 10,
		Registry: s.registry,
	}
	for _, change := range change {
		change(&options)
	}
	s.Handler = New(options)
	return s
}

// request is a completion by user 42 unless changed.
func request(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8080"
	r.Header.Set("X-User-ID", "42")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

func (s service) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func put(path, body string) *http.Request { return request(http.MethodPut, path, body) }

const goodBody = `{"track_slug": "go-basics", "lesson_slug": "slices"}`

// wantProblem checks that the answer is a problem of that status, which names place if it is not "".
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, place string) {
	t.Helper()
	if w.Code != status {
		t.Errorf("status is %d, want %d: %s", w.Code, status, w.Body)
	}
	if got, want := w.Header().Get("Content-Type"), "application/problem+json"; got != want {
		t.Errorf("content type is %q, want %q", got, want)
	}
	if w.Header().Get("X-Correlation-Id") == "" {
		t.Error("the answer has no correlation id")
	}
	var problem huma.ErrorModel
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		t.Fatalf("answer %q: %v", w.Body, err)
	}
	if problem.Status != status || problem.Title == "" || problem.Detail == "" {
		t.Errorf("problem is %+v, want status %d, a title and a detail", problem, status)
	}
	if place == "" {
		return
	}
	named := func(d *huma.ErrorDetail) bool { return d.Location == place || strings.Contains(d.Message, place) }
	if !slices.ContainsFunc(problem.Errors, named) {
		t.Errorf("problem %s does not name %s", w.Body, place)
	}
	for _, detail := range problem.Errors {
		if detail.Value != nil {
			t.Errorf("problem sends back what was sent: %v", detail.Value)
		}
	}
}

func TestCompleteLesson_completesOnce(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	type answer struct {
		Status           string    `json:"status"`
		EventID          string    `json:"event_id"`
		CompletedAt      time.Time `json:"completed_at"`
		AlreadyCompleted bool      `json:"already_completed"`
	}
	var answers [3]answer
	for i := range answers {
		w := s.do(put(lesson7, goodBody))
		if w.Code != http.StatusOK {
			t.Fatalf("status is %d: %s", w.Code, w.Body)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answers[i]); err != nil {
			t.Fatal(err)
		}
	}
	first := answers[0]
	if first.Status != "completed" || len(first.EventID) != 26 || time.Since(first.CompletedAt) > time.Minute || first.AlreadyCompleted {
		t.Errorf("first answer is %+v", first)
	}
	want := first
	want.AlreadyCompleted = true
	for _, got := range answers[1:] {
		if got != want {
			t.Errorf("repeated answer is %+v, want %+v", got, want)
		}
	}
	if n := db.Int("SELECT count(*) FROM public.outbox"); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

// S-13: a request that contradicts what stands is told so, and changes nothing.
func TestCompleteLesson_answers409WithWhatStandsToAnotherBody(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	var first struct {
		EventID     string    `json:"event_id"`
		CompletedAt time.Time `json:"completed_at"`
	}
	if err := json.Unmarshal(s.do(put(lesson7, goodBody)).Body.Bytes(), &first); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{"track_slug": "rust", "lesson_slug": "slices"}`, `{"track_slug": "go-basics", "lesson_slug": "maps"}`} {
		w := s.do(put(lesson7, body))
		wantProblem(t, w, http.StatusConflict, "")
		var problem struct {
			Detail    string
			Completed struct {
				TrackSlug   string    `json:"track_slug"`
				LessonSlug  string    `json:"lesson_slug"`
				EventID     string    `json:"event_id"`
				CompletedAt time.Time `json:"completed_at"`
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
			t.Fatal(err)
		}
		stands := problem.Completed
		if stands.TrackSlug != "go-basics" || stands.LessonSlug != "slices" || stands.EventID != first.EventID || !stands.CompletedAt.Equal(first.CompletedAt) {
			t.Errorf("%s: %s, want what stands: %+v", body, w.Body, first)
		}
		if !strings.Contains(problem.Detail, "lesson 7") {
			t.Errorf("%s: the detail is %q", body, problem.Detail)
		}
	}
	if w := s.do(put(lesson7, goodBody)); w.Code != http.StatusOK {
		t.Errorf("the same body again: %d %s", w.Code, w.Body)
	}
	if got := db.Text("SELECT track_slug || ' ' || lesson_slug FROM public.lesson_progress"); got != "go-basics slices" {
		t.Errorf("stored is %s", got)
	}
	if n := db.Int("SELECT count(*) FROM public.outbox"); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestCompleteLesson_completesOnceWhenRequestsArriveAtOnce(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	news := make(chan bool, 50)
	var wg sync.WaitGroup
	for range cap(news) {
		wg.Go(func() {
			w := s.do(put(lesson7, goodBody))
			if w.Code != http.StatusOK {
				t.Errorf("status is %d: %s", w.Code, w.Body)
			}
			news <- strings.Contains(w.Body.String(), `"already_completed":false`)
		})
	}
	wg.Wait()
	close(news)
	count := 0
	for isNew := range news {
		if isNew {
			count++
		}
	}
	if count != 1 {
		t.Errorf("%d requests completed the lesson, want 1", count)
	}
	if n := db.Int("SELECT count(*) FROM public.outbox"); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestCompleteLesson_takesTheLargestLessonAndSlugs(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	slug := strings.Repeat("a", 128)
	r := put("/api/progress/lessons/9223372036854775807/complete", `{"track_slug":"`+slug+`","lesson_slug":"a1-2-b"}`)
	r.Header.Set("Content-Type", "application/json; charset=UTF-8")
	if w := s.do(r); w.Code != http.StatusOK {
		t.Fatalf("status is %d: %s", w.Code, w.Body)
	}
	if got, want := db.Text("SELECT payload->>'lesson_id' FROM public.outbox"), "9223372036854775807"; got != want {
		t.Errorf("lesson id in the event is %s, want %s", got, want)
	}
}

func TestCorrelationID_isTakenOrMadeReturnedStoredAndLogged(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for i, given := range []string{"", "order 7/é", strings.Repeat("c", 128)} {
		lesson := strconv.Itoa(i + 1)
		r := put("/api/progress/lessons/"+lesson+"/complete", goodBody)
		if given != "" {
			r.Header.Set("X-Correlation-Id", given)
		}
		r.Header.Set("traceparent", trace)
		w := s.do(r)
		if w.Code != http.StatusOK {
			t.Fatalf("status is %d: %s", w.Code, w.Body)
		}
		got := w.Header().Get("X-Correlation-Id")
		if given == "" && len(got) != 26 || given != "" && got != given {
			t.Errorf("correlation id is %q, given was %q", got, given)
		}
		stored := db.Texts(`SELECT unnest(ARRAY[headers->>'correlation_id', payload->>'correlation_id', headers->>'traceparent'])
			FROM public.outbox WHERE aggregate_id = $1`, lesson)
		if want := []string{got, got, trace}; !slices.Equal(stored, want) {
			t.Errorf("stored are %q, want %q", stored, want)
		}
		if !strings.Contains(s.log.String(), got) {
			t.Errorf("the log does not mention %q", got)
		}
	}
}

func TestReads_answerWithAListAlsoWhenThereIsNothing(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	for _, path := range []string{"/api/progress", "/api/achievements", "/api/notifications", "/api/recommendations"} {
		w := s.do(request(http.MethodGet, path, ""))
		if got, want := strings.TrimSpace(w.Body.String()), `{"items":[]}`; w.Code != http.StatusOK || got != want {
			t.Errorf("GET %s: %d %s, want 200 %s", path, w.Code, got, want)
		}
		for _, limit := range []string{"0", "-1", "201", "x", "99999999999999999999"} {
			wantProblem(t, s.do(request(http.MethodGet, path+"?limit="+limit, "")), http.StatusUnprocessableEntity, "query.limit")
		}
		wantProblem(t, s.do(request(http.MethodGet, path+"?lmit=5", "")), http.StatusUnprocessableEntity, "query.lmit")
	}
	for _, lesson := range []string{"1", "2", "3"} {
		s.do(put("/api/progress/lessons/"+lesson+"/complete", goodBody))
	}
	var answer struct {
		Items []lessons.Lesson `json:"items"`
	}
	w := s.do(request(http.MethodGet, "/api/progress?limit=2", ""))
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if len(answer.Items) != 2 || answer.Items[0].LessonID != 3 {
		t.Errorf("GET /api/progress?limit=2 is %s, want lessons 3 and 2", w.Body)
	}
}

func TestAPI_wantsToKnowTheUser(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	for _, r := range []*http.Request{
		put(lesson7, goodBody), put(lesson7, "{"), // no one unknown learns what is wrong with a body
		request(http.MethodGet, "/api/progress", ""), request(http.MethodGet, "/api/achievements", ""),
		request(http.MethodGet, "/api/notifications", ""), request(http.MethodGet, "/api/recommendations", ""),
	} {
		r.Header.Set("X-User-ID", "-1")
		w := s.do(r)
		wantProblem(t, w, http.StatusUnauthorized, "")
		if w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s %s: 401 without WWW-Authenticate", r.Method, r.URL)
		}
	}
	if n := db.Int("SELECT count(*) FROM public.lesson_progress"); n != 0 {
		t.Errorf("%d completions, want none", n)
	}
}

func TestAPI_answersWithProblemsWhereThereIsNoRoute(t *testing.T) {
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	wantProblem(t, s.do(request(http.MethodGet, "/nothing", "")), http.StatusNotFound, "")
	wantProblem(t, s.do(request(http.MethodGet, "/api/progress/", "")), http.StatusNotFound, "")
	w := s.do(request(http.MethodPost, lesson7, goodBody))
	wantProblem(t, w, http.StatusMethodNotAllowed, "")
	if got, want := w.Header().Get("Allow"), http.MethodPut; got != want {
		t.Errorf("Allow is %q, want %q", got, want)
	}
	if w := s.do(request(http.MethodGet, "/api//progress", "")); w.Code/100 != 3 || w.Header().Get("Location") != "/api/progress" {
		t.Errorf("path with two slashes: %d to %q, want a redirect to the clean one", w.Code, w.Header().Get("Location"))
	}
}

func TestAPI_describesItself(t *testing.T) {
	s := newService(t, testdb.New(t).Pinned)
	w := s.do(httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	var document struct {
		OpenAPI string                     `json:"openapi"`
		Paths   map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	if _, there := document.Paths["/api/progress/lessons/{id}/complete"]; !there || !strings.HasPrefix(document.OpenAPI, "3.1") {
		t.Errorf("OpenAPI document is %.300s", w.Body)
	}
	page := s.do(httptest.NewRequest(http.MethodGet, "/docs", nil)).Body.String()
	if !strings.Contains(page, "/api/progress/lessons/{id}/complete") || strings.Contains(page, "<script") || strings.Contains(page, " src=") || strings.Contains(page, `href="http`) {
		t.Errorf("docs page lacks the route, or needs the internet: %.300s", page)
	}
}

// F-64: whatever is asked for, the label values are the routes.
func TestMetrics_haveRoutesAsLabelsAndNoData(t *testing.T) {
	s := newService(t, testdb.New(t).Pinned)
	for i := range 20 {
		s.do(request(http.MethodGet, "/nothing/"+strconv.Itoa(i), ""))
		s.do(put("/api/progress/lessons/"+strconv.Itoa(i)+"/complete", "{"))
	}
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for _, family := range families {
		if family.GetName() != "walpost_http_requests_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "route" {
					routes = append(routes, label.GetValue())
				}
			}
		}
	}
	if want := []string{"PUT /api/progress/lessons/{id}/complete", "none"}; !slices.Equal(routes, want) {
		t.Errorf("routes are %q, want %q", routes, want)
	}
}

func TestObserve_turnsAPanicIntoAProblem(t *testing.T) {
	var log bytes.Buffer
	a := &api{Options: Options{Timeout: time.Second}, log: slog.New(slog.NewTextHandler(&log, nil)), metrics: newMetrics(nil)}
	h := a.observe(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(errors.New("boom")) }))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Correlation-Id", "corr-1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	wantProblem(t, w, http.StatusInternalServerError, "")
	if strings.Contains(w.Body.String(), "boom") {
		t.Errorf("the answer shows the panic: %s", w.Body)
	}
	if !strings.Contains(log.String(), "boom") || !strings.Contains(log.String(), "corr-1") {
		t.Errorf("the log lacks the panic or the correlation id: %s", &log)
	}
}
