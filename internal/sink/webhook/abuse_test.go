package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/sink/webhook"
	"github.com/backendstart/walpost/internal/subscriber"
	"github.com/backendstart/walpost/internal/testprogram"
)

// F-37: receivers that do what receivers must not do. Each attempt ends with the reason at its time limit
// or before, and leaves neither goroutines nor memory behind.
func TestWebhook_survivesReceiversThatMisbehave(t *testing.T) {
	chunk := []byte(strings.Repeat("x", 32<<10))
	// Some way of the handler to go on until its client has gone.
	forever := func(w http.ResponseWriter, r *http.Request, status int, body []byte, pause time.Duration) {
		w.WriteHeader(status)
		for r.Context().Err() == nil {
			if _, err := w.Write(body); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			if pause > 0 {
				select {
				case <-time.After(pause):
				case <-r.Context().Done():
				}
			}
		}
	}
	serve := func(handler http.HandlerFunc) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that its client has gone
			if handler != nil {
				handler(w, r)
			}
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	untrusted := httptest.NewUnstartedServer(nil)
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	const short, long = time.Second, 10 * time.Second // long for what ends by itself before
	for _, test := range []struct {
		name, url string
		timeout   time.Duration
		want      string
	}{
		{"never answers", serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), short, "the deadline is over"},
		{"endless body with 200", serve(func(w http.ResponseWriter, r *http.Request) { forever(w, r, 200, chunk, 0) }), long, "does not end within"},
		{"endless body with 500", serve(func(w http.ResponseWriter, r *http.Request) { forever(w, r, 500, chunk, 0) }), long, "answered 500"},
		{"a byte at a time with 200", serve(func(w http.ResponseWriter, r *http.Request) { forever(w, r, 200, chunk[:1], 20*time.Millisecond) }), short, "the deadline is over"},
		{"a byte at a time with 500", serve(func(w http.ResponseWriter, r *http.Request) { forever(w, r, 500, chunk[:1], 20*time.Millisecond) }), short, "answered 500"},
		{"a gigabyte", serve(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1073741824")
			forever(w, r, 200, chunk, 0)
		}), long, "does not end within"},
		{"endless headers", raw(t, func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
			for {
				if _, err := fmt.Fprintf(c, "X-A: %s\r\n", chunk[:8000]); err != nil {
					return
				}
			}
		}), long, "headers exceeded"},
		{"endless 103 Early Hints", raw(t, func(c net.Conn) {
			for {
				if _, err := fmt.Fprint(c, "HTTP/1.1 103 Early Hints\r\nX-A: a\r\n\r\n"); err != nil {
					return
				}
			}
		}), long, "headers exceeded"},
		{"switches protocols", raw(t, func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			holdOpen(c)
		}), long, "answered 101"},
		{"speaks no HTTP", raw(t, func(c net.Conn) { fmt.Fprint(c, "220 mail.example ESMTP\r\n"); holdOpen(c) }), long, ""},
		{"closes without an answer", raw(t, func(net.Conn) {}), long, ""},
		{"breaks off", raw(t, func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
		}), long, "unexpected EOF"},
		{"certificate of no one", untrusted.URL, long, "certificate"},
		{"no TLS", strings.Replace(serve(nil), "http:", "https:", 1), long, "first record does not look like"},
		{"hangs in the handshake", strings.Replace(raw(t, holdOpen), "http:", "https:", 1), short, "TLS handshake timeout"},
		{"is not there", closedPort(t), long, "refused"},
		{"has no address", "http://receiver.invalid/", long, "receiver.invalid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := options(test.url)
			o.Timeout = test.timeout
			sub := open(t, o)
			goroutines, heap := level()
			var calls sync.WaitGroup
			for n := range o.Concurrency {
				calls.Go(func() {
					ctx, cancel := context.WithTimeoutCause(t.Context(), o.Timeout, errors.New("the deadline is over"))
					defer cancel()
					begin := time.Now()
					err := sub.Handle(ctx, delivery(n))
					wantError(t, "an attempt", err, test.want)
					if subscriber.IsPermanent(err) {
						t.Errorf("%v is permanent", err)
					}
					if took := time.Since(begin); took > o.Timeout+10*time.Second {
						t.Errorf("an attempt took %s", took)
					}
				})
			}
			calls.Wait()
			webhook.CloseIdle(sub)
			testprogram.Within(t, 20*time.Second, "goroutines and memory to be what they were", func() bool {
				now, memory := level()
				return now <= goroutines && memory < heap+4<<20
			})
		})
	}
}

// level is how much is in use.
func level() (goroutines int, heap uint64) {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return runtime.NumGoroutine(), stats.HeapAlloc
}

// raw listens and gives each connection to talk, which closes it by returning.
func raw(t *testing.T, talk func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				conn.Read(make([]byte, 4096)) // what the client says first
				talk(conn)
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// holdOpen reads until the other side has gone.
func holdOpen(c net.Conn) {
	for buffer := make([]byte, 4096); ; {
		if _, err := c.Read(buffer); err != nil {
			return
		}
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	return "http://" + listener.Addr().String()
}
