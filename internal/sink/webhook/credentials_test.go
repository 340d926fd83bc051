package webhook_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/backendstart/walpost/internal/safefile"
	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
)

// S-58: a signing secret and a token are rotated in their files while the relay runs.
func TestWebhook_readsSecretsInFilesAgain(t *testing.T) {
	folder := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return safefile.Live(path, content)
	}
	for _, batch := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			var got received
			answer := http.StatusNoContent
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var text strings.Builder
				if err := r.Write(&text); err != nil {
					t.Error(err)
				}
				_, body, _ := strings.Cut(text.String(), "\r\n\r\n")
				got = received{r.Header.Clone(), body}
				w.WriteHeader(answer)
				if answer != http.StatusNoContent {
					w.Write([]byte(text.String()))
				}
			})}
			listener := make(pipes)
			go server.Serve(listener)
			defer server.Close()
			o := options("http://192.0.2.1/")
			o.Batch = batch
			o.Secrets = []string{write("key", oldSecret)}
			o.Headers = map[string]string{"Authorization": write("token", "Bearer the-first-token")}
			sub, err := webhook.New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer webhook.CloseIdle(sub)
			webhook.DialBy(sub, listener.dial)
			send := func() error { return sub.Handle(t.Context(), delivery(1)) }
			sends := func(what, token, secret string) {
				t.Helper()
				if err := send(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if got := got.header.Get("Authorization"); got != token {
					t.Errorf("%s: Authorization %q, want %q", what, got, token)
				}
				if err := verify(t, got, secret); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			sends("at the start", "Bearer the-first-token", oldSecret)
			write("key", newSecret)
			write("token", "Bearer the-second-token")
			sends("at once", "Bearer the-first-token", oldSecret)
			time.Sleep(time.Second)
			sends("after a second", "Bearer the-second-token", newSecret)

			answer = http.StatusInternalServerError
			err = send()
			wantError(t, "a receiver that shows what it got", err, "answered 500")
			wantNoSecret(t, "a receiver that shows what it got", err.Error(), "the-second-token", strings.TrimPrefix(newSecret, "whsec_"))
			answer = http.StatusNoContent

			write("key", "half of it")
			time.Sleep(time.Second)
			err = send()
			wantError(t, "a file that makes no sense", err, "the file of secret", "whsec_")
			wantNoSecret(t, "a file that makes no sense", err.Error(), "half of it")
			if !subscriber.IsAway(err) {
				t.Errorf("%v counts for the event", err)
			}
			write("key", oldSecret)
			time.Sleep(time.Second)
			sends("a file that makes sense again", "Bearer the-second-token", oldSecret)
			write("key", newSecret)
			time.Sleep(time.Second)
			sends("the new key", "Bearer the-second-token", newSecret)
			if err := os.Remove(filepath.Join(folder, "key")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			sends("a file that is gone says what it said at the start", "Bearer the-second-token", oldSecret)
		})
	}
}
