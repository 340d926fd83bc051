package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/testdb"
)

func TestCompleteLesson_refusesBadInputAndWritesNothing(t *testing.T) {
	const (
		bad  = http.StatusBadRequest
		not  = http.StatusUnprocessableEntity
		kind = http.StatusUnsupportedMediaType
	)
	track := func(value string) string { return `{"track_slug":` + value + `,"lesson_slug":"slices"}` }
	tests := []struct {
		name   string
		path   string // "" is lesson 7
		header map[string]string
		body   string
		status int
		place  string // what the problem names
	}{
		{name: "no body", status: bad, place: "body"},
		{name: "blanks", body: "  \n", status: bad, place: "body"},
		{name: "not JSON", body: "track_slug=go", status: bad, place: "body"},
		{name: "cut off", body: `{"track_slug":"go"`, status: bad, place: "body"},
		{name: "trailing comma", body: `{"track_slug":"go","lesson_slug":"a",}`, status: bad, place: "body"},
		{name: "trailing data", body: goodBody + goodBody, status: bad, place: "body"},
		{name: "trailing brace", body: goodBody + "}", status: bad, place: "body"},
		{name: "byte order mark", body: "\ufeff" + goodBody, status: bad, place: "body"},
		{name: "comment", body: "/* */" + goodBody, status: bad, place: "body"},
		{name: "UTF-16", body: "{\x00}\x00", status: bad, place: "body"},
		{name: "null", body: "null", status: not, place: "body"},
		{name: "array", body: "[" + goodBody + "]", status: not, place: "body"},
		{name: "string", body: `"go"`, status: not, place: "body"},
		{name: "number", body: "7", status: not, place: "body"},

		// F-58
		{name: "NUL escaped", body: track(`"a\u0000b"`), status: bad, place: "body.track_slug"},
		{name: "NUL", body: track("\"a\x00b\""), status: bad, place: "body"},
		{name: "control character", body: track("\"a\x01b\""), status: bad, place: "body"},
		{name: "lone high surrogate", body: track(`"\ud800"`), status: bad, place: "body.track_slug"},
		{name: "lone high surrogate before text", body: track(`"\uD800abcdef"`), status: bad, place: "body.track_slug"},
		{name: "lone low surrogate", body: track(`"\udc00"`), status: bad, place: "body.track_slug"},
		{name: "surrogates the wrong way round", body: track(`"\udc00\ud800"`), status: bad, place: "body.track_slug"},
		{name: "two high surrogates", body: track(`"\ud800\ud800"`), status: bad, place: "body.track_slug"},
		{name: "high surrogate before another escape", body: track(`"\ud800\n"`), status: bad, place: "body.track_slug"},
		{name: "surrogate pair, no slug", body: track(`"\ud83d\ude00"`), status: not, place: "body.track_slug"},
		{name: "literal backslash-u0000", body: track(`"\\u0000"`), status: not, place: "body.track_slug"},
		{name: "invalid UTF-8", body: track("\"a\xffb\""), status: bad, place: "body.track_slug"},
		{name: "overlong UTF-8", body: track("\"\xc0\xaf\""), status: bad, place: "body.track_slug"},
		{name: "surrogate in UTF-8", body: track("\"\xed\xa0\x80\""), status: bad, place: "body.track_slug"},
		{name: "invalid UTF-8 in a name", body: "{\"track_slug\":\"go\",\"lesson_slug\":\"a\",\"\xff\":1}", status: bad, place: "body"},
		{name: "NUL in a name", body: `{"track_slug":"go","lesson_slug":"a","\u0000":1}`, status: bad, place: "body"},
		{name: "nested 15 deep", body: track(strings.Repeat("[", 15) + strings.Repeat("]", 15)), status: not, place: "body.track_slug"},
		{name: "nested 100 deep", body: track(strings.Repeat("[", 100) + strings.Repeat("]", 100)), status: bad, place: "body"},
		{name: "nested deeper than the limit on the body", body: strings.Repeat("[", 10000) + strings.Repeat("]", 10000), status: http.StatusRequestEntityTooLarge},
		{name: "5 MB", body: track(`"` + strings.Repeat("a", 5<<20) + `"`), status: http.StatusRequestEntityTooLarge},

		{name: "repeated name", body: `{"track_slug":"go","lesson_slug":"a","track_slug":"rust"}`, status: bad, place: "body.track_slug"},
		{name: "repeated name, escaped", body: `{"track_slug":"go","lesson_slug":"a","\u0074rack_slug":"rust"}`, status: bad, place: "body.track_slug"},
		{name: "repeated name in an unknown object", body: `{"track_slug":"go","lesson_slug":"a","x":{"y":1,"y":2}}`, status: bad, place: "body.x.y"},
		{name: "wrong case", body: `{"Track_Slug":"go","lesson_slug":"a"}`, status: bad, place: "body.Track_Slug"},
		{name: "two cases", body: `{"track_slug":"go","lesson_slug":"a","TRACK_SLUG":"rust"}`, status: bad, place: "body.TRACK_SLUG"},
		{name: "long s for s", body: `{"track_ſlug":"go","lesson_slug":"a"}`, status: bad, place: "body.track_ſlug"},
		{name: "empty name", body: `{"track_slug":"go","lesson_slug":"a","":1}`, status: bad, place: "body."},
		{name: "unknown field", body: `{"track_slug":"go","lesson_slug":"a","user_id":43}`, status: not, place: "body.user_id"},
		{name: "schema field", body: `{"$schema":"x","track_slug":"go","lesson_slug":"a"}`, status: bad, place: "body.$schema"},
		{name: "nothing in it", body: `{}`, status: not, place: "track_slug"},
		{name: "lesson_slug missing", body: `{"track_slug":"go"}`, status: not, place: "lesson_slug"},

		{name: "number for a slug", body: track("7"), status: not, place: "body.track_slug"},
		{name: "big number for a slug", body: track(strings.Repeat("9", 300)), status: not, place: "body.track_slug"},
		{name: "number out of range", body: track("1e999999"), status: bad, place: "body.track_slug"},
		{name: "null for a slug", body: track("null"), status: not, place: "body.track_slug"},
		{name: "bool for a slug", body: track("true"), status: not, place: "body.track_slug"},
		{name: "list for a slug", body: track(`["go"]`), status: not, place: "body.track_slug"},
		{name: "object for a slug", body: track(`{"a":"go"}`), status: not, place: "body.track_slug"},
		{name: "empty slug", body: track(`""`), status: not, place: "body.track_slug"},
		{name: "slug in capitals", body: track(`"Go"`), status: not, place: "body.track_slug"},
		{name: "slug with a blank", body: track(`"go "`), status: not, place: "body.track_slug"},
		{name: "slug with a newline at its end", body: track(`"go\n"`), status: not, place: "body.track_slug"},
		{name: "slug with two hyphens", body: track(`"go--basics"`), status: not, place: "body.track_slug"},
		{name: "slug with a hyphen at its end", body: track(`"go-"`), status: not, place: "body.track_slug"},
		{name: "slug with an underscore", body: track(`"go_basics"`), status: not, place: "body.track_slug"},
		{name: "slug with foreign digits", body: track(`"go٣"`), status: not, place: "body.track_slug"},
		{name: "slug of 129", body: track(`"` + strings.Repeat("a", 129) + `"`), status: not, place: "body.track_slug"},
		{name: "bad lesson slug", body: `{"track_slug":"go","lesson_slug":"'; DROP TABLE outbox; --"}`, status: not, place: "body.lesson_slug"},

		{name: "lesson 0", path: "/api/progress/lessons/0/complete", body: goodBody, status: not, place: "path.id"},
		{name: "lesson -1", path: "/api/progress/lessons/-1/complete", body: goodBody, status: not, place: "path.id"},
		{name: "lesson beyond int64", path: "/api/progress/lessons/9223372036854775808/complete", body: goodBody, status: not, place: "path.id"},
		{name: "lesson 1.5", path: "/api/progress/lessons/1.5/complete", body: goodBody, status: not, place: "path.id"},
		{name: "lesson 1e3", path: "/api/progress/lessons/1e3/complete", body: goodBody, status: not, place: "path.id"},
		{name: "lesson in words", path: "/api/progress/lessons/seven/complete", body: goodBody, status: not, place: "path.id"},
		{name: "lesson with NUL", path: "/api/progress/lessons/7%00/complete", body: goodBody, status: not, place: "path.id"},
		{name: "lesson in no UTF-8", path: "/api/progress/lessons/%ff/complete", body: goodBody, status: not, place: "path.id"},
		{name: "unknown query parameter", path: lesson7 + "?force=1", body: goodBody, status: not, place: "query.force"},

		{name: "no content type", header: map[string]string{"Content-Type": ""}, body: goodBody, status: kind, place: "header.Content-Type"},
		{name: "text", header: map[string]string{"Content-Type": "text/plain"}, body: goodBody, status: kind, place: "header.Content-Type"},
		{name: "form", header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, body: goodBody, status: kind, place: "header.Content-Type"},
		{name: "another JSON", header: map[string]string{"Content-Type": "application/problem+json"}, body: goodBody, status: kind, place: "header.Content-Type"},
		{name: "another charset", header: map[string]string{"Content-Type": "application/json; charset=latin1"}, body: goodBody, status: kind, place: "header.Content-Type"},
		{name: "content type in pieces", header: map[string]string{"Content-Type": "application/json;;;="}, body: goodBody, status: kind, place: "header.Content-Type"},

		{name: "correlation id of 129", header: map[string]string{"X-Correlation-Id": strings.Repeat("c", 129)}, body: goodBody, status: bad, place: "header.X-Correlation-Id"},
		{name: "correlation id with a newline", header: map[string]string{"X-Correlation-Id": "a\nb"}, body: goodBody, status: bad, place: "header.X-Correlation-Id"},
		{name: "correlation id with NUL", header: map[string]string{"X-Correlation-Id": "a\x00b"}, body: goodBody, status: bad, place: "header.X-Correlation-Id"},
		{name: "correlation id in no UTF-8", header: map[string]string{"X-Correlation-Id": "a\xff"}, body: goodBody, status: bad, place: "header.X-Correlation-Id"},
		{name: "correlation id that turns text round", header: map[string]string{"X-Correlation-Id": "a\u202eb"}, body: goodBody, status: bad, place: "header.X-Correlation-Id"},
	}
	db := testdb.New(t)
	s := newService(t, db.Pinned)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := test.path
			if path == "" {
				path = lesson7
			}
			r := put(path, test.body)
			r.Header.Set("Content-Type", "application/json")
			for name, value := range test.header {
				r.Header.Set(name, value)
			}
			w := s.do(r)
			wantProblem(t, w, test.status, test.place)
			if strings.Contains(w.Body.String(), "DROP TABLE") {
				t.Errorf("the answer sends back what was sent: %s", w.Body)
			}
		})
	}
	if n := db.Int("SELECT (SELECT count(*) FROM public.lesson_progress) + (SELECT count(*) FROM public.outbox)"); n != 0 {
		t.Errorf("%d rows written, want none", n)
	}
}

func TestCorrelationID_givenTwiceIsRefused(t *testing.T) {
	s := newService(t, testdb.New(t).Pinned)
	r := put(lesson7, goodBody)
	r.Header["X-Correlation-Id"] = []string{"a", "b"}
	wantProblem(t, s.do(r), http.StatusBadRequest, "header.X-Correlation-Id")
}
