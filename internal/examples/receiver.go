package examples

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// receiver takes webhooks as a service of the reader's would: it verifies the signature, notes the event, answers 204.
type receiver struct {
	url, secret string

	mu    sync.Mutex
	posts []string // guarded by mu
}

func startReceiver(r *runner) *receiver {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	into := &receiver{secret: "whsec_" + base64.StdEncoding.EncodeToString(key)}
	library, err := standardwebhooks.NewWebhook(into.secret)
	if err != nil {
		r.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	into.url = "http://" + listener.Addr().String() + "/events"
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err == nil {
			err = library.Verify(body, q.Header)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		into.notePost(fmt.Sprintf("%s %s key=%s %s", q.Header.Get("webhook-id"), q.Header.Get("Walpost-Type"), q.Header.Get("Walpost-Key"), body))
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = server.Serve(listener) }()
	r.Cleanup(func() { _ = server.Close() })
	return into
}

func (r *receiver) notePost(post string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.posts = append(r.posts, post)
}

func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.posts)
}
