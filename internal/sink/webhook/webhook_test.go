package webhook_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

func TestWebhook_postsThePayloadWithTheHeadersOfTheDelivery(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL + "/hooks?token=t")
	o.Headers = map[string]string{"authorization": "Bearer b", "User-Agent": "school"}
	d := delivery(3)
	d.Attempt, d.Replay = 2, true
	if err := open(t, o).Handle(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	got := r.got()[0]
	for name, want := range map[string]string{
		"webhook-id": d.ID, "Walpost-Type": "lesson.completed", "Walpost-Key": "user-42",
		"Walpost-Position": d.Position.String(), "Walpost-Attempt": "2", "Walpost-Term": "7", "Walpost-Replay": "true",
		"X-Correlation-Id": "c-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"Content-Type": "application/json", "Authorization": "Bearer b", "User-Agent": "school", "Idempotency-Key": "",
	} {
		if got := got.header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if err := verify(t, got, oldSecret); err != nil {
		t.Error(err)
	}
}

// F-49: numbers that no float holds, and the text as Postgres sent it.
func TestWebhook_changesNoByteOfThePayload(t *testing.T) {
	r := newReceiver(t, nil)
	sub := open(t, options(r.URL))
	payloads := []string{
		`{"id":9007199254740993,"n":12345678901234567890.123456789,"neg":-9223372036854775808,"e":1e30}`,
		"{ \"a\" : \"<&>\u2028\", \"a\" : 1.0,\n \"ü\": null }", `"text"`, `null`, `no JSON at all`, ``, strings.Repeat("x", 3<<20),
	}
	for _, payload := range payloads {
		d := delivery(0)
		d.Payload = []byte(payload)
		if err := sub.Handle(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for i, got := range r.got() {
		if got.body != payloads[i] {
			t.Errorf("got %.80q, want %.80q", got.body, payloads[i])
		}
		if err := verify(t, got, oldSecret); err != nil {
			t.Errorf("payload %.80q: %v", payloads[i], err)
		}
	}
}

// F-46: the receiver does the work and answers too late; the second attempt can be told to be the same.
func TestWebhook_isTheSameAtEachAttemptButForItsNumber(t *testing.T) {
	slow := make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(slow) }))
	calls := 0
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {
		if calls++; calls == 1 {
			<-slow
		}
	})
	sub := open(t, options(r.URL))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, fmt.Errorf("the deadline is over"))
	defer cancel()
	d := delivery(1)
	wantError(t, "first attempt", sub.Handle(ctx, d), "the deadline is over")
	d.Attempt = 2
	slow <- struct{}{}
	restarted := open(t, options(r.URL)) // nothing is remembered between attempts
	if err := restarted.Handle(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	got := r.got()
	for _, request := range got {
		for _, name := range []string{"Walpost-Attempt", "Webhook-Timestamp", "Webhook-Signature"} {
			if request.header.Get(name) == "" {
				t.Errorf("%s is missing", name)
			}
			request.header.Del(name)
		}
	}
	if len(got) != 2 || fmt.Sprint(got[0]) != fmt.Sprint(got[1]) {
		t.Errorf("attempts differ: %v", got)
	}
}

// F-57: a receiver that refuses signatures older than five minutes, and is away for a quarter of an hour.
func TestWebhook_signsEachAttemptAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests []received
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			var body strings.Builder
			if err := request.Write(&body); err != nil {
				t.Error(err)
			}
			_, text, _ := strings.Cut(body.String(), "\r\n\r\n")
			r := received{request.Header.Clone(), text}
			requests = append(requests, r)
			if err := verify(t, r, oldSecret); err != nil {
				t.Error(err)
			}
			if len(requests) == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})}
		listener := make(pipes)
		go server.Serve(listener)
		defer server.Close()
		sub, err := webhook.New(options("http://192.0.2.1/"))
		if err != nil {
			t.Fatal(err)
		}
		defer webhook.CloseIdle(sub)
		webhook.DialBy(sub, listener.dial)
		d := delivery(1)
		wantError(t, "first attempt", sub.Handle(t.Context(), d), "503")
		time.Sleep(15 * time.Minute)
		if err := sub.Handle(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if verify(t, requests[0], oldSecret) == nil {
			t.Error("the first signature is still good after 15 minutes, so this test shows nothing")
		}
	})
}

// pipes is a listener in memory, for virtual time.
type pipes chan net.Conn

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p <- theirs
	return ours, nil
}

func (p pipes) Accept() (net.Conn, error) {
	conn, open := <-p
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestWebhook_signsWithEveryKeySideBySide(t *testing.T) {
	r := newReceiver(t, nil)
	o := options(r.URL)
	o.Secrets = []string{newSecret, oldSecret}
	if err := open(t, o).Handle(t.Context(), delivery(1)); err != nil {
		t.Fatal(err)
	}
	o.Secrets = nil
	if err := open(t, o).Handle(t.Context(), delivery(1)); err != nil {
		t.Fatal(err)
	}
	signed, unsigned := r.got()[0], r.got()[1]
	for _, secret := range []string{newSecret, oldSecret} {
		if err := verify(t, signed, secret); err != nil {
			t.Errorf("%s: %v", secret, err)
		}
	}
	if got := len(strings.Fields(signed.header.Get("webhook-signature"))); got != 2 {
		t.Errorf("%d signatures, want 2", got)
	}
	if verify(t, signed, "whsec_"+strings.Repeat("A", 32)) == nil {
		t.Error("a key that no one has verifies")
	}
	if got := unsigned.header.Values("webhook-signature"); got != nil || unsigned.header.Get("webhook-timestamp") == "" {
		t.Errorf("without a secret: signatures %q, want none but a timestamp", got)
	}
}

// F-42: whatever stands in an event arrives, and no header is smuggled in.
func TestWebhook_encodesWhatIsNotLegalInAHeader(t *testing.T) {
	r := newReceiver(t, nil)
	sub := open(t, options(r.URL))
	values := []string{
		"a\r\nX-Injected: 1", "العربية", "日本語", " leading and trailing ", "..", "*", ">", "/", "100%", "%41", `"`,
		"\x01\x7f", "\t", "\u2028", "ascii-as-it-is", strings.Repeat("k", 1024),
	}
	for _, value := range values {
		d := delivery(0)
		d.ID, d.Type, d.Key = value, value, value
		d.Headers = fmt.Appendf(nil, `{"correlation_id": %q, "traceparent": "a\r\nX-Injected: 1"}`, "c\r\nX-Injected: 1")
		if err := sub.Handle(t.Context(), d); err != nil {
			t.Errorf("%q: %v", value, err)
		}
	}
	for i, got := range r.got() {
		for _, name := range []string{"Webhook-Id", "Walpost-Type", "Walpost-Key"} {
			if decoded, err := url.PathUnescape(got.header.Get(name)); err != nil || decoded != values[i] {
				t.Errorf("%s: got %q, %v, want %q", name, decoded, err, values[i])
			}
		}
		if got.header.Get("X-Injected") != "" {
			t.Errorf("%q smuggled a header in", values[i])
		}
		if err := verify(t, got, oldSecret); err != nil {
			t.Errorf("%q: %v", values[i], err)
		}
	}
	if got := r.got()[14].header.Get("Walpost-Key"); got != "ascii-as-it-is" {
		t.Errorf("a legal value is sent as %q", got)
	}
}

// F-42: a key of 10 kB does not make the headers larger than servers take.
func TestWebhook_sendsTheHashOfAKeyThatIsTooLong(t *testing.T) {
	r := newReceiver(t, nil)
	sub := open(t, options(r.URL))
	d := delivery(0)
	d.Key = strings.Repeat("k", 10_000)
	d.Headers = fmt.Appendf(nil, `{"correlation_id": %q}`, d.Key)
	empty := delivery(1)
	empty.Key, empty.Headers = "", nil
	for _, d := range []subscriber.Delivery{d, empty} {
		if err := sub.Handle(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.got()[0].header.Get("Walpost-Key"); !strings.HasPrefix(got, "sha256=") || len(got) != len("sha256=")+64 {
		t.Errorf("key is sent as %.100q", got)
	}
	if got := r.got()[0].header.Values("X-Correlation-Id"); got != nil {
		t.Errorf("correlation id is sent as %.100q", got)
	}
	for _, name := range []string{"Walpost-Key", "X-Correlation-Id", "Traceparent", "Walpost-Replay"} {
		if got, there := r.got()[1].header[name]; there {
			t.Errorf("%s without a value is sent as %q", name, got)
		}
	}
}

func TestWebhook_keepsItsConnections(t *testing.T) {
	var mu sync.Mutex
	opened := 0
	r := newReceiver(t, func(w http.ResponseWriter, request *http.Request) {
		if request.Header.Get("Walpost-Attempt") == "2" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(w, strings.Repeat("answer ", 3000))
	})
	counting := httptest.NewUnstartedServer(r.Config.Handler)
	counting.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			mu.Lock()
			opened++
			mu.Unlock()
		}
	}
	counting.Start()
	defer counting.Close()
	sub := open(t, options(counting.URL))
	for n := range 20 {
		d := delivery(n)
		d.Attempt = n%2 + 1
		if err := sub.Handle(t.Context(), d); (err != nil) != (d.Attempt == 2) {
			t.Errorf("attempt %d: %v", d.Attempt, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if opened != 1 {
		t.Errorf("%d connections for 20 posts one after the other, want 1", opened)
	}
}

// A receiver that restarts closes connections that are kept; the event is not blamed for it.
func TestWebhook_postsOnceMoreWhenAKeptConnectionWasClosed(t *testing.T) {
	r := newReceiver(t, nil)
	sub := open(t, options(r.URL))
	for n := range 20 {
		if err := sub.Handle(t.Context(), delivery(n)); err != nil {
			t.Fatal(err)
		}
		r.CloseClientConnections()
	}
}

func TestWebhook_postsOverTLSToWhomItTrusts(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer server.Close()
	sub := open(t, options(server.URL))
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	webhook.Trust(sub, roots)
	if err := sub.Handle(t.Context(), delivery(1)); err != nil {
		t.Fatal(err)
	}
}

// What traces a call goes on from the call's own span: the receiver's part stands below it, and not next to it.
func TestWebhook_sendsTheSpanOfTheCallWhereItIsTraced(t *testing.T) {
	r := newReceiver(t, nil)
	sub := open(t, options(r.URL))
	call := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	for _, ctx := range []context.Context{
		trace.ContextWithSpanContext(t.Context(), call), trace.ContextWithSpanContext(t.Context(), call.WithTraceFlags(0)),
	} {
		if err := sub.Handle(ctx, delivery(1)); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{
		"00-01000000000000000000000000000000-0200000000000000-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	} {
		if got := r.got()[i].header.Get("Traceparent"); got != want {
			t.Errorf("traceparent %s, want %s", got, want)
		}
	}
}
