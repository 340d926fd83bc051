package webhook_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDZ0J7cMlQr4A="
)

// received is a request as a receiver sees it.
type received struct {
	header http.Header
	body   string
}

// receiver is an HTTP server that keeps what it is sent and answers as it is told.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received // guarded by mu
}

func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			t.Errorf("receiver: %v", err)
		}
		r.mu.Lock()
		r.requests = append(r.requests, received{request.Header.Clone(), string(body)})
		r.mu.Unlock()
		if request.Method != http.MethodPost {
			t.Errorf("method %s, want POST", request.Method)
		}
		if answer != nil {
			answer(w, request)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// got returns what has come so far.
func (r *receiver) got() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.requests...)
}

// options are those of a webhook that may post to a receiver on this machine.
func options(url string) webhook.Options {
	return webhook.Options{
		Name: "billing", URL: url, AllowPrivate: true, Secrets: []string{oldSecret}, Concurrency: 8, Timeout: 5 * time.Second,
	}
}

func open(t *testing.T, o webhook.Options) subscriber.Subscriber {
	t.Helper()
	sub, err := webhook.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { webhook.CloseIdle(sub) })
	return sub
}

// delivery makes the n-th of a series of deliveries.
func delivery(n int) subscriber.Delivery {
	return subscriber.Delivery{Attempt: 1, Term: 7, Event: &event.Event{
		Source: "lessons", ID: fmt.Sprintf("01K0WEBH00K%015d", n), Type: "lesson.completed", Key: "user-42",
		Payload:    []byte(fmt.Sprintf(`{"n": %d, "big": 12345678901234567890.123456789}`, n)),
		Headers:    []byte(`{"correlation_id": "c-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`),
		OccurredAt: "2026-01-02 03:04:05.678901+00", Position: event.Position{Commit: 0x16B3748, Ordinal: int64(n)},
	}}
}

// verify checks a request with the library that receivers use.
func verify(t *testing.T, r received, secret string) error {
	t.Helper()
	library, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return library.Verify([]byte(r.body), r.header)
}

// wantError checks that there is an error with these words.
func wantError(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, words)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: got %q, want %q in it", what, err, word)
		}
	}
}
