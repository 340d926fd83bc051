package webhook_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/subscriber"
)

// S-06: a receiver that answers with the request it got. The failure is stored, logged and shown.
func TestWebhook_keepsOurSecretsOutOfAFailure(t *testing.T) {
	const token, password, query, path = "tok3n-of-ours-1234", "pa55/of+ours%20", "qu3ry-of-ours-1", "T0K3N0F0URS00000000"
	for name, answer := range map[string]func(w http.ResponseWriter, whole string, r *http.Request){
		"as it is": func(w http.ResponseWriter, whole string, _ *http.Request) { fmt.Fprint(w, whole) },
		"in base64": func(w http.ResponseWriter, whole string, _ *http.Request) {
			fmt.Fprint(w, base64.StdEncoding.EncodeToString([]byte(whole)))
		},
		"in a URL": func(w http.ResponseWriter, whole string, _ *http.Request) { fmt.Fprint(w, url.QueryEscape(whole)) },
		"quoted":   func(w http.ResponseWriter, whole string, _ *http.Request) { fmt.Fprintf(w, "%q", whole) },
		"only credentials": func(w http.ResponseWriter, _ string, r *http.Request) {
			fmt.Fprint(w, "bad token "+r.Header.Get("X-Token"))
		},
		"cut in it": func(w http.ResponseWriter, _ string, r *http.Request) {
			fmt.Fprint(w, strings.Repeat("x", 2<<10-9)+r.Header.Get("X-Token"))
		},
		"decoded": func(w http.ResponseWriter, _ string, r *http.Request) {
			user, password, _ := r.BasicAuth()
			fmt.Fprintf(w, "no user %s with password %s", user, password)
		},
		"key by key": func(w http.ResponseWriter, _ string, r *http.Request) {
			for _, signature := range strings.Fields(r.Header.Get("Webhook-Signature") + " " + r.Header.Get("Walpost-Signature")) {
				fmt.Fprintf(w, "wrong signature %s, ", strings.TrimPrefix(signature, "v1,"))
			}
		},
	} {
		var signatures []string
		r := newReceiver(t, func(w http.ResponseWriter, request *http.Request) {
			signatures = strings.Fields(strings.ReplaceAll(request.Header.Get("Webhook-Signature")+" "+request.Header.Get("Walpost-Signature"), "v1,", ""))
			whole, err := httputil.DumpRequest(request, false)
			if err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusInternalServerError)
			answer(w, string(whole), request)
		})
		o := options(r.URL + "/hooks/" + path + "?key=" + query)
		o.Secrets, o.SignHeaders = []string{oldSecret, newSecret}, true
		o.Headers = map[string]string{"X-Token": token, "Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+password))}
		err := open(t, o).Handle(t.Context(), delivery(1))
		wantError(t, name, err, "answered 500", "****")
		wantNoSecret(t, name, err.Error(), append(signatures, token, password, query, path, strings.TrimPrefix(oldSecret, "whsec_"))...)
	}
}

// A server that breaks the protocol is quoted by net/http.
func TestWebhook_keepsOurSecretsOutOfABrokenAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			request := make([]byte, 4<<10)
			n, _ := connection.Read(request)
			_, rest, _ := strings.Cut(string(request[:n]), "Authorization: ")
			_, _ = io.WriteString(connection, rest)
			connection.Close()
		}
	}()
	o := options("http://" + listener.Addr().String())
	o.Headers = map[string]string{"Authorization": "Bearer tok3n-of-ours-1234"}
	failure := open(t, o).(interface {
		Handle(context.Context, subscriber.Delivery) error
	}).Handle(t.Context(), delivery(1))
	wantError(t, "an answer that is the request", failure, "malformed HTTP", "****")
	wantNoSecret(t, "an answer that is the request", failure.Error(), "tok3n-of-ours-1234")
}

// wantNoSecret looks for parts of secrets, in the forms in which they are easy to read.
func wantNoSecret(t *testing.T, what, text string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		for _, part := range []string{
			secret[:8], secret[len(secret)-8:], url.QueryEscape(secret)[:8],
			base64.StdEncoding.EncodeToString([]byte(secret))[:8],
		} {
			if strings.Contains(text, part) {
				t.Errorf("%s: %q of a secret is in %q", what, part, text)
			}
		}
	}
}
