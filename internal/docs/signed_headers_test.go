package docs

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/event"
	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	webhooks      = "../../docs/webhooks.md"
	firstSecret   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	rotatedSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDZ0J7cMlQr4A="
)

func TestWebhooks_showsTheGoCodeThatIsTested(t *testing.T) {
	shown, tested := blocks(t, webhooks, "go"), declarations(t, "signed_headers_go_test.go")
	if len(shown) != 1 || len(tested) != 1 || shown[0] != tested[0] {
		t.Errorf("the page shows\n%s\nsigned_headers_go_test.go has\n%s\ncopy it over", strings.Join(shown, "\n"), strings.Join(tested, "\n"))
	}
}

// signedRequest is what a receiver gets from a webhook that signs its headers with both secrets.
type signedRequest struct {
	header http.Header
	body   []byte
}

// signedRequests are one of each format, and one of a batch.
func signedRequests(t *testing.T) []signedRequest {
	t.Helper()
	var got []signedRequest
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = append(got, signedRequest{r.Header.Clone(), body})
	}))
	t.Cleanup(receiver.Close)
	for _, o := range []webhook.Options{{}, {Format: webhook.CloudEvents}, {Format: webhook.CloudEventsStructured}, {Batch: 10}} {
		o.Name, o.URL, o.AllowPrivate, o.Concurrency, o.Timeout = "billing", receiver.URL, true, 1, 10*time.Second
		o.Secrets, o.SignHeaders = []string{firstSecret, rotatedSecret}, true
		o.Headers = map[string]string{"X-Tenant": "7"}
		sub, err := webhook.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := sub.Handle(t.Context(), subscriber.Delivery{Attempt: 2, Term: 7, Replay: true, Event: &event.Event{
			Source: "lessons", ID: "a b", Type: "lesson.completed", Key: "user ü", AggregateID: "42", Position: event.Position{Epoch: 1, Commit: 8},
			Payload: []byte(`{"n": 12345678901234567890}`), Headers: []byte(`{"correlation_id": "c-1", "traceparent": "00-1-2-01"}`),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// tampered are changes on the way that no signature may survive.
var tampered = map[string]func(*signedRequest){
	"the term":                  func(r *signedRequest) { r.header.Set("Walpost-Term", "8") },
	"the source":                func(r *signedRequest) { r.header.Set("Walpost-Source", "payments") },
	"a header that is gone":     func(r *signedRequest) { r.header.Del("Walpost-Replay") },
	"a header that is added":    func(r *signedRequest) { r.header.Set("Walpost-Version", "3") },
	"a header that comes twice": func(r *signedRequest) { r.header.Add("Walpost-Term", "9") },
	"an attribute of an event":  func(r *signedRequest) { r.header.Set("Ce-Subject", "43") },
	"the id":                    func(r *signedRequest) { r.header.Set("Webhook-Id", "b") },
	"the time":                  func(r *signedRequest) { r.header.Set("Webhook-Timestamp", "1") },
	"the body":                  func(r *signedRequest) { r.body = append(r.body, ' ') },
	"the other signature":       func(r *signedRequest) { r.header.Set("Walpost-Signature", r.header.Get("Webhook-Signature")) },
}

// S-314: what the page tells receivers verifies what the webhook sends, and nothing else.
func TestWebhooks_signedHeadersVerifyAsThePageShows(t *testing.T) {
	for _, r := range signedRequests(t) {
		for _, secret := range []string{firstSecret, rotatedSecret} {
			key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
			if err != nil {
				t.Fatal(err)
			}
			if !SignedHeaders(r.header, r.body, key) {
				t.Errorf("%v is not signed", r.header)
			}
			on := r
			on.header = r.header.Clone()
			on.header.Set("Traceparent", "00-3-4-01") // a proxy traces
			on.header.Set("X-Forwarded-For", "192.0.2.1")
			if !SignedHeaders(on.header, on.body, key) {
				t.Error("what a proxy may change is signed")
			}
			for what, change := range tampered {
				on := signedRequest{r.header.Clone(), append([]byte(nil), r.body...)}
				change(&on)
				if SignedHeaders(on.header, on.body, key) {
					t.Errorf("%s can be changed", what)
				}
			}
		}
		if SignedHeaders(r.header, r.body, []byte("another key")) {
			t.Error("a key that has signed nothing verifies")
		}
	}
}
