package webhook_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/backendstart/walpost/internal/subscriber"
)

// F-66: one rule for each answer, and Retry-After within limits.
func TestAnswer_saysWhatBecomesOfTheEvent(t *testing.T) {
	type outcome struct{ delivered, permanent, pause bool }
	var (
		delivered = outcome{delivered: true}
		permanent = outcome{permanent: true}
		pause     = outcome{pause: true}
		again     = outcome{}
	)
	status := 0
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	})
	sub := open(t, options(r.URL))
	for code, want := range map[int]outcome{
		200: delivered, 201: delivered, 202: delivered, 204: delivered, 299: delivered,
		300: again, 301: again, 302: again, 303: again, 304: again, 307: again, 308: again,
		400: permanent, 413: permanent, 422: permanent, 410: pause,
		401: again, 402: again, 403: again, 404: again, 405: again, 406: again, 407: again, 408: again, 409: again, 411: again,
		415: again, 418: again, 421: again, 423: again, 425: again, 426: again, 428: again, 429: again, 431: again, 451: again, 499: again,
		500: again, 501: again, 502: again, 503: again, 504: again, 505: again, 507: again, 511: again, 599: again, 999: again,
	} {
		status = code
		err := sub.Handle(t.Context(), delivery(1))
		got := outcome{err == nil, subscriber.IsPermanent(err), subscriber.IsPause(err)}
		if got != want {
			t.Errorf("%d: got %+v (%v), want %+v", code, got, err, want)
		}
	}
	if got, want := len(r.got()), 47; got != want {
		t.Errorf("%d requests for %d answers: something was followed or sent twice", got, want)
	}
}

// A receiver that answers with a page instead of a word has taken the event; one that does not end has not.
func TestAnswer_mayBeLongButEnds(t *testing.T) {
	size := 0
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) })
	sub := open(t, options(r.URL))
	for n, delivered := range map[int]bool{0: true, 1: true, 65 << 10: true, 1 << 20: true, 1<<20 + 1: false} {
		size = n
		if err := sub.Handle(t.Context(), delivery(1)); (err == nil) != delivered {
			t.Errorf("200 with %d bytes: got %v, want delivered: %t", n, err, delivered)
		}
	}
}

// F-65, F-66: a wait of many digits neither overflows nor becomes none.
func TestAnswer_asksForAWait(t *testing.T) {
	status, value := 0, ""
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", value)
		w.WriteHeader(status)
	})
	sub := open(t, options(r.URL))
	const year = 365 * 24 * time.Hour
	for _, test := range []struct {
		status   int
		value    string
		min, max time.Duration
	}{
		{429, "30", 30 * time.Second, 30 * time.Second},
		{503, "1", time.Second, time.Second},
		{500, time.Now().Add(time.Minute).UTC().Format(http.TimeFormat), 50 * time.Second, time.Minute},
		{429, time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), 0, 0},
		{429, "0", 0, 0}, {429, "-1", 0, 0}, {429, "soon", 0, 0}, {429, "", 0, 0}, {429, "1.5", 0, 0},
		{429, "999999", 999999 * time.Second, 999999 * time.Second},
		{429, "99999999999999999999999", year, year}, {429, "-99999999999999999999999", 0, 0},
		{429, "Fri, 31 Dec 9999 23:59:59 GMT", year, year},
		{200, "30", 0, 0}, {400, "30", 0, 0},
	} {
		status, value = test.status, test.value
		got := subscriber.RetryAfterOf(sub.Handle(t.Context(), delivery(1)))
		if got < test.min || got > test.max {
			t.Errorf("%d with Retry-After %q: got %s, want %s to %s", test.status, test.value, got, test.min, test.max)
		}
	}
}

// F-33: the dead letter says what was too large.
func TestAnswer_413NamesTheSize(t *testing.T) {
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "limit is 1 MB", http.StatusRequestEntityTooLarge)
	})
	d := delivery(1)
	d.Payload = []byte(`"` + strings.Repeat("x", 1_100_000) + `"`)
	err := open(t, options(r.URL)).Handle(t.Context(), d)
	wantError(t, "an event of 1.1 MB", err, "413", "1100002 bytes", "limit is 1 MB")
	if !subscriber.IsPermanent(err) {
		t.Errorf("%v is not permanent", err)
	}
}

// What is kept goes into a table of Postgres, into logs and to terminals.
func TestAnswer_keepsAnExcerptThatCanBeStoredAndShown(t *testing.T) {
	body := ""
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte(body))
	})
	sub := open(t, options(r.URL+"/?token=hidden"))
	for _, test := range []struct{ body, want string }{
		{"out of stock\n", ": out of stock"},
		{"a\x00b\x1b[31mc\r\nd", ": a b [31mc  d"},
		{"\xff\xfe", ": \uFFFD"},
		{"", "500 Internal Server Error"},
		{strings.Repeat("ü", 40_000), strings.Repeat("ü", 1000)},
	} {
		body = test.body
		err := sub.Handle(t.Context(), delivery(1))
		wantError(t, test.body[:min(len(test.body), 20)], err, test.want)
		if text := err.Error(); !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\x1b\n") || len(text) > 2500 || strings.Contains(text, "hidden") {
			t.Errorf("error of %d bytes: %.100q", len(text), text)
		}
	}
}

// F-57: a clock that is wrong is readable in the failure.
func TestAnswer_namesADifferenceOfTheClocks(t *testing.T) {
	off := time.Duration(0)
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
		http.Error(w, "message timestamp too old", http.StatusUnauthorized)
	})
	sub := open(t, options(r.URL))
	for _, test := range []struct {
		off  time.Duration
		want string
	}{{10 * time.Minute, "ahead of ours"}, {-10 * time.Minute, "behind ours"}, {0, "401 Unauthorized: message"}} {
		off = test.off
		wantError(t, test.off.String(), sub.Handle(t.Context(), delivery(1)), test.want, "too old")
	}
}
